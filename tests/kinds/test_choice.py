"""Options of a row: all ways of writing them and the label, what is refused, and formulas with missing options."""

from typing import Any

import numpy as np
import pytest
import torch

from polytask.evaluation.calibration import calibrate
from polytask.evaluation.metrics import chosen_metric
from polytask.evaluation.scoring import Predictions, score
from polytask.kinds.choice import MISSING
from polytask.kinds.names import LabelProblem
from polytask.kinds.options import MOST_OPTIONS, option_index, read_options
from polytask.kinds.table import KINDS
from polytask.losses.base import distillation_loss, symmetric_distance
from polytask.types import LabelSpace

KIND, SPACE = KINDS["choice"], LabelSpace("choice")


# --- reading ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "options"),
    [
        (["a", "b"], ("a", "b")), (["a", "b", "", None], ("a", "b")), ([["a", "b", "c"]], ("a", "b", "c")),
        (['["a", "b"]'], ("a", "b")), (["['a', 'b']"], ("a", "b")), ([1, 2.5], ("1", "2.5")),
        (["a", "b", float("nan")], ("a", "b")), ([("x", "y")], ("x", "y")), ([["a", "b", None]], ("a", "b")),
    ],
)  # fmt: skip
def test_ways_to_write_options(values: list[object], options: tuple[str, ...]) -> None:
    assert read_options(values) == options


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (["a", ""], r"1 option\(s\); expected 2 to 256"), (["", ""], r"0 option\(s\)"), ([[]], r"0 option\(s\)"),
        (["a", None, "c"], r"option 1 \(counted from 0\) is empty"), ([None], "no options"),
        (["a", "b", " a"], r"options 0 and 2 \(counted from 0\) are the same text"),
        ([["a", ["b"]]], r"option 1 \(counted from 0\) is a list"), (["plain text"], "must be a list such as"),
        (["[broken"], "must be a list"), (["[broken]"], "in brackets, but not a list"), ([7], "must be a list"),
        ([[str(n) for n in range(MOST_OPTIONS + 1)]], r"257 option\(s\)"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used(values: list[object], problem: str) -> None:
    with pytest.raises(LabelProblem, match=problem):
        read_options(values)


@pytest.mark.parametrize(
    ("label", "options", "index"),
    [
        ("b", "abc", 1), (" b ", "abc", 1), (2, "abc", 2), ("2", "abc", 2), (0.0, "abc", 0), ("1.0", "abc", 1),
        ("2", "210", 0), (2, "210", 2), ("0", "210", 2),  # a text that is an option means it; a number is an index
    ],
)  # fmt: skip
def test_the_label_is_a_text_or_an_index(label: object, options: str, index: int) -> None:
    assert option_index(label, tuple(options)) == index


def test_the_label_may_be_the_name_of_the_column() -> None:
    columns = ("A", "B", "C")
    assert [option_index(name, ("x", "y", "z"), columns) for name in ("A", " C ")] == [0, 2]
    assert option_index("C", ("C", "A", "B"), columns) == 0  # the text of an option comes first
    assert option_index("1", ("x", "y", "z"), ("1", "2", "3")) == 1  # a number is an index
    with pytest.raises(LabelProblem, match="not an index from 0 to 1"):
        option_index("C", ("x", "y"), columns)  # this row has no such option


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("d", "not one of the row's options, and not an index"), (3, "not an index from 0 to 2"), (-1, "from 0 to 2"),
        ("1.5", "from 0 to 2"), (None, "the label is empty"), ("", "the label is empty"), (True, "must be the text"),
        (["a"], "must be the text of an option"), ("nan", "not an index"), (float("inf"), "not an index"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used(label: object, problem: str) -> None:
    with pytest.raises(LabelProblem, match=problem):
        option_index(label, ("a", "b", "c"))


# --- outputs ----------------------------------------------------------------------------------------------------------
def outputs(seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(5, 4).masked_fill(torch.arange(4) >= torch.tensor([[2], [4], [3], [4], [2]]), MISSING)


@pytest.mark.parametrize(
    "formula",
    [
        lambda one, other: symmetric_distance(one, other, "choice"),
        lambda one, other: symmetric_distance(one, other, "choice", fixed_targets=True),
        lambda one, other: distillation_loss(one, other, "choice", 2.0, "kl"),
        lambda one, other: distillation_loss(one, other, "choice", 2.0, "cross_entropy"),
        lambda one, other: KIND.loss(one, torch.tensor([[1, 2], [3, 4], [0, 3], [2, 4], [0, 2]])),
    ],
)
def test_formulas_are_those_of_the_options_that_exist(formula: Any) -> None:
    one, other = outputs().requires_grad_(), outputs(1)
    whole = formula(one, other)
    whole.backward()
    assert one.grad is not None
    assert one.grad.isfinite().all()
    assert (one.grad[one == MISSING] == 0).all()
    wide = [torch.cat([x.detach(), torch.full((5, 3), MISSING)], 1) for x in (one, other)]
    torch.testing.assert_close(formula(*wide), whole.detach())


def test_uninformed_outputs_give_every_option_the_same_probability() -> None:
    targets = torch.tensor([[1, 2], [3, 4]])
    flat = KIND.uninformed(targets, 1)
    torch.testing.assert_close(flat.softmax(-1), torch.tensor([[0.5, 0.5, 0, 0], [0.25] * 4]))
    torch.testing.assert_close(KIND.loss(flat, targets), torch.tensor([2.0, 4.0]).log().mean())


def test_metrics() -> None:
    shares = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.2, 0.3, 0.4], [0.6, 0.4, 0.0, 0.0], [0.25] * 4])
    gold, predicted = np.array([0, 2, 1, 3]), shares.argmax(1)
    found = score(Predictions(gold, predicted, shares), SPACE, 0.0)
    assert found.primary == "accuracy"
    assert set(found.metrics) == {"accuracy", "mrr", "log_loss", "calibration_error"}
    assert found.value == 0.25
    assert found.metrics["mrr"].value == pytest.approx((1 + 1 / 2 + 1 / 2 + 1 / 2.5) / 4)
    perfect = score(Predictions(np.zeros(50, int), np.zeros(50, int), np.tile([1.0, 0, 0], (50, 1))), SPACE, 0.0)
    assert perfect.metrics["mrr"].low < perfect.metrics["mrr"].value == 1
    assert perfect.metrics["accuracy"].low < 1
    assert chosen_metric(None, "choice", "here").name == "accuracy"


def test_a_temperature_is_fitted_over_the_options_that_exist() -> None:
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(2, 5, (2000, 1), generator=generator)
    missing = torch.arange(4) >= counts
    logits = torch.randn(2000, 4, generator=generator).masked_fill(missing, MISSING)
    gold = torch.multinomial((logits).softmax(-1), 1, generator=generator)
    targets = torch.cat([gold, counts], 1).numpy()
    found = calibrate((logits * 3).masked_fill(missing, MISSING), targets, SPACE, "t", None, fit=True)
    assert found["temperature"] == pytest.approx(3, rel=0.15)
    assert found["after"]["log_loss"] < found["before"]["log_loss"]
