"""polytask methods: every swap and option, straight from the constructors."""

import inspect
from typing import Any

import pytest

from polytask import TABLES, options_of
from polytask.cli.methods import NO_MEANING, meaning_of, read_docstring


def test_every_method_and_option_is_shown(cli: Any) -> None:
    said = cli("methods")
    for table, methods in TABLES.items():
        assert table in said.out
        for name, method in methods.items():
            assert f"  {name}  " in said.out
            for option in options_of(method):
                assert f"{option.name}: " in said.out
    assert "form: concat | difference | product = difference" in said.out
    assert "class_weights: list of float | balanced | None = None" in said.out
    assert "sites: list of query | key | value | attention_output | up | down = [query, value]" in said.out
    assert "adapters: list of method = [pal, conditional_norm]" in said.out
    assert "weights: mapping of names to float at least 0 | None = None" in said.out
    only = cli("methods", "sampler").out
    assert "round_robin" in only
    assert "adamw" not in only


def test_one_method_in_plain_words(cli: Any) -> None:
    said = cli("methods", "pal")
    assert said.code == 0
    words = " ".join(said.out.split())
    for part in (
        "pal (adapter) Projected attention layers:",
        "Formula LN2(a + FFN(a) + TS(h)) TS(h) = V_D g(V_E h)",
        'Paper Stickland & Murray, "BERT and PALs", 2019',
        "heads: int in [1, 65536] = 12 Number of attention heads of the branch",
        "In a recipe adapter: {name: pal, size: 204,",
    ):
        assert part in words, part


def test_a_formula_keeps_its_lines(cli: Any) -> None:
    assert "\n  v = beta2 v + (1 - beta2) g^2 " in cli("methods", "adamw").out


def test_an_unknown_name_suggests_the_nearest(cli: Any) -> None:
    said = cli("methods", "houlsbi")
    assert said.code == 1
    assert "there is no method or table 'houlsbi' (did you mean houlsby?)" in said.err


@pytest.mark.parametrize("table", TABLES)
def test_every_option_has_a_meaning(table: str) -> None:
    for name, method in TABLES[table].items():
        paragraphs, _, _ = read_docstring(inspect.getdoc(method) or "")
        for option in options_of(method):
            meaning = meaning_of(table, option.name, paragraphs)
            assert meaning != NO_MEANING, f"the docstring of {name} must explain its option {option.name}"
