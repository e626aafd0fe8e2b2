"""polytask methods: every swap and option, straight from the constructors."""

from typing import Any

from polytask import TABLES, options_of


def test_every_method_and_option_is_shown(cli: Any) -> None:
    said = cli("methods")
    for table, methods in TABLES.items():
        assert table in said.out
        for name, method in methods.items():
            assert f"  {name}  " in said.out
            for option in options_of(method):
                assert f"{option.name}: " in said.out
    assert "form: concat | difference | product = difference" in said.out
    assert "class_weights: tuple[float, ...] | balanced | None = None" in said.out
    only = cli("methods", "sampler").out
    assert "round_robin" in only
    assert "adamw" not in only
