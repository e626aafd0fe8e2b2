"""Methods by name: options come from the constructor, and what is unknown is an error that lists what there is."""

import inspect

import pytest

from polytask.build import TABLES, make, option, options_of
from polytask.samplers.base import SamplerContext
from polytask.types import Swap, UserError

METHODS = [(table, name) for table, methods in TABLES.items() for name in methods]


@pytest.mark.parametrize(("table", "name"), METHODS)
def test_every_method_can_be_read_by_people(table: str, name: str) -> None:
    method = TABLES[table][name]
    first = (inspect.getdoc(method) or "").splitlines()[0]
    assert first.endswith((".", ":")) or len(first) > 20, f"{table} {name} opens with one sentence"
    for entry in options_of(method):
        assert entry.default is not inspect.Parameter.empty, f"{table} {name}: {entry.name} needs a default"


def test_tables_are_sorted() -> None:
    assert all(list(methods) == sorted(methods) for methods in TABLES.values())


def test_options_reach_the_method_with_their_types() -> None:
    import torch  # noqa: PLC0415

    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]}]
    made = make("optimizer", Swap("adamw", {"lr": "1e-3", "betas": [0.5, 0.9]}), "here", groups)
    assert made.defaults["lr"] == 1e-3
    assert made.defaults["betas"] == (0.5, 0.9)
    assert option("optimizer", Swap("adamw"), "lr", "here") == 5e-5
    assert option("optimizer", Swap("adamw", {"lr": "2e-5"}), "lr", "here") == 2e-5


def test_unknown_names_and_options() -> None:
    context = SamplerContext({"a": 1}, 1, 0, 1, 1)
    with pytest.raises(UserError, match=r"here: there is no sampler 'proportionl' .did you mean proportional"):
        make("sampler", Swap("proportionl"), "here", context)
    with pytest.raises(UserError, match=r"there is no option of round_robin 'order'\. Valid: none"):
        make("sampler", Swap("round_robin", {"order": 1}), "here", context)
    with pytest.raises(UserError, match="there is no optimizer 'sgd'"):
        option("optimizer", Swap("sgd"), "lr", "here")
