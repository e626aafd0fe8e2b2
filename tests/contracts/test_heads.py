"""Every head of the table: its loss decreases on one batch, predictions are valid, other kinds of label are refused."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from polytask.build import make_head
from polytask.contracts import heads as contract
from polytask.contracts.heads import SPACES, STANDARDIZED, WITHOUT_RANGE
from polytask.heads import HEADS
from polytask.settings import MethodChoice, TaskSpec
from polytask.types import LabelKind, LabelSpace, UserError

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "choice": [{"pooling": p} for p in ("first", "pooler", "mean")],
    "linear": [{"pooling": p} for p in ("first", "pooler", "mean")],
    "cross": [{"pooling": p} for p in ("first", "pooler", "mean")],
    "bi": [{"form": f} for f in ("concat", "difference", "product")] + [{"pooling": "first"}],
    "cosine": [{"map": m} for m in ("linear", "direct", "sigmoid")] + [{"pooling": "pooler"}],
    "joint": [{"map": m} for m in ("linear", "direct", "sigmoid")] + [{"pooling": p} for p in ("first", "pooler")],
    "match": [{"pooling": p} for p in ("first", "pooler", "mean")] + [{"temperature": 0.5}, {"symmetric": True}],
    "mlm": [{}, {"share": 0.5}],
    "simcse": [{"pooling": p} for p in ("first", "pooler", "mean")] + [{"temperature": 0.5}],
}
"""Heads that are not named here are tested with their defaults."""
CASES = [
    (name, options, kind, labels)
    for name in HEADS
    for options in OPTIONS.get(name, [{}])
    for kind in HEADS[name].kinds
    for labels in (SPACES[kind], *([STANDARDIZED, WITHOUT_RANGE] if kind == "score" else []))
    if labels.bounded or not HEADS[name].needs_range
]


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("name", "options", "kind", "labels"), CASES)
def test_the_contract(
    name: str,
    options: dict[str, Any],
    kind: LabelKind,
    labels: LabelSpace,
    holds: Callable[[contract.Subject], None],
) -> None:
    holds(contract.Subject(partial(HEADS[name], **options), labels))


@pytest.mark.parametrize(("name", "kind"), [(n, kind) for n in HEADS for kind in SPACES if kind not in HEADS[n].kinds])
def test_a_head_refuses_kinds_that_are_not_its_own(name: str, kind: LabelKind) -> None:
    spec = TaskSpec("t", kind, ("a", "b")[: HEADS[name].texts[-1]], None, "", "", head=MethodChoice(name))
    with pytest.raises(
        UserError, match=f"tasks.t.head: {name} does not support kind {kind}; choose one of: "
    ) as refused:
        make_head(spec, SPACES[kind], 32)
    suggested(spec, refused.value)


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if head.needs_range])
def test_a_head_that_needs_a_range_says_what_to_write(name: str) -> None:
    spec = TaskSpec("t", "score", ("a", "b"), "l", "", "", head=MethodChoice(name))
    with pytest.raises(UserError) as refused:
        make_head(spec, WITHOUT_RANGE, 32)
    assert f"tasks.t.head: {name} needs scores with a range (to use it, write tasks.t.range: [" in str(refused.value)
    suggested(spec, refused.value, WITHOUT_RANGE)


def suggested(spec: TaskSpec, refused: UserError, labels: LabelSpace | None = None) -> None:
    """The heads that an error suggests are exactly those that are accepted."""
    names = str(refused).rpartition("choose one of: ")[2]
    accepted = []
    for name in HEADS:
        with suppress(UserError):
            make_head(replace(spec, head=MethodChoice(name)), labels or SPACES[spec.kind], 32)
            accepted.append(name)
    assert names == (", ".join(accepted) or "none")


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("texts", [("a",), ("a", "b")])
@pytest.mark.parametrize("name", HEADS)
def test_a_hint_suggests_heads_that_are_accepted(name: str, texts: tuple[str, ...], kind: LabelKind) -> None:
    spec = TaskSpec("t", kind, texts, None, "", "", head=MethodChoice(name))
    try:
        make_head(spec, SPACES[kind], 32)
    except UserError as error:
        suggested(spec, error)
