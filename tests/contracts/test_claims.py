"""Statements of properties raise errors with one sentence that says what does not hold."""

import pytest
import torch

from polytask.contracts.claims import require, require_close, require_finite


def test_what_holds_raises_nothing() -> None:
    require(True, "never")
    require(torch.tensor(1.0) > 0, "never")
    require_close(torch.ones(3), torch.ones(3) + 1e-7, "never", atol=1e-6)
    require_finite(torch.zeros(3), "zeros")


@pytest.mark.parametrize("value", [False, None, 0, torch.tensor(False), torch.tensor(0.0)])
def test_what_does_not_hold_raises_the_sentence(value: object) -> None:
    with pytest.raises(AssertionError, match=r"^the loss must fall$"):
        require(value, "the loss must fall")


def test_different_tensors_are_reported_with_the_greatest_difference_in_one_line() -> None:
    with pytest.raises(AssertionError, match=r"^they differ \(Greatest absolute difference: 0\.5\)$"):
        require_close(torch.zeros(4), torch.tensor([0.0, 0.5, 0.1, 0.0]), "they differ", atol=1e-6)


def test_other_shapes_are_reported() -> None:
    with pytest.raises(AssertionError, match=r"they differ \(The values for attribute 'shape' do not match"):
        require_close(torch.zeros(4), torch.zeros(3), "they differ", atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_and_infinity_are_named(value: float) -> None:
    with pytest.raises(AssertionError, match="outputs must be finite, found NaN or infinity"):
        require_finite(torch.tensor([0.0, value]), "outputs")
