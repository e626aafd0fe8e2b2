"""Every loss of the table: supports the kinds it declares, is a mean, is smooth, and is smallest at the true label."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from polytask.build import make_loss
from polytask.contracts import losses as contract
from polytask.contracts.losses import COUNTS, SPACES
from polytask.losses import LOSSES
from polytask.settings import MethodChoice, TaskSpec
from polytask.types import LabelKind, UserError

OPTIONS: dict[str, list[dict[str, Any]]] = {  # in addition to the defaults
    "cross_entropy": [{"smoothing": 0.1}, {"class_weights": "balanced"}],
    "focal": [{"gamma": 0.5}, {"class_weights": "balanced"}],
    "ordinal": [{"form": "emd"}, {"slope": 0.5, "power": 2.0}],
}
CASES = [
    pytest.param(name, kind, options, id=f"{name}-{kind}-{'-'.join(options) or 'plain'}")
    for name, method in LOSSES.items()
    for kind in method.kinds
    for options in [{}, *OPTIONS.get(name, [])]
    if kind != "choice" or "class_weights" not in options
]


def spec(kind: LabelKind, loss: MethodChoice | None) -> TaskSpec:
    return TaskSpec("t", kind, ("text",), "label", "train.csv", "dev.csv", loss=loss)


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in LOSSES for k in SPACES if k not in LOSSES[n].kinds])
def test_other_kinds_are_refused_with_those_that_fit(name: str, kind: LabelKind) -> None:
    fits = [other for other, method in LOSSES.items() if kind in method.kinds]
    others = f"choose one of: {', '.join(fits)}" if fits else "leave it out"
    message = f"tasks.t.loss: {name} does not support kind {kind}; {others}"
    for options in [{}, *OPTIONS.get(name, [])]:
        with pytest.raises(UserError, match=message):
            make_loss(spec(kind, MethodChoice(name, options)), SPACES[kind], COUNTS[kind])


def test_no_loss_is_the_heads_own() -> None:
    assert make_loss(spec("classes", None), SPACES["classes"], COUNTS["classes"]) is None


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_the_contract(
    name: str, kind: LabelKind, options: dict[str, Any], holds: Callable[[contract.Subject], None]
) -> None:
    holds(contract.Subject(partial(LOSSES[name], **options), kind))
