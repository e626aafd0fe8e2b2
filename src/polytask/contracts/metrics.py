"""Properties of metrics: functions of true and predicted labels, tried with each kind of label."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from polytask.contracts.claims import require

Method = Callable[[npt.NDArray[Any], npt.NDArray[Any]], Any]


def labels() -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """True and predicted labels, as evaluation gives them to a metric."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 3, (2, 40))
    return {"classes": (classes[0], classes[1]), "all predictions the same": (classes[0], np.zeros(40, np.int64))}


def a_finite_number(method: Method) -> None:
    """It returns a finite number, also if all predictions are the same."""
    for what, (gold, predicted) in labels().items():
        value = float(method(gold.copy(), predicted.copy()))
        require(np.isfinite(value), f"the value for {what} must be finite, found {value}")


def the_order_of_rows_does_not_matter(method: Method) -> None:
    """The value does not depend on the order of the rows."""
    gold, predicted = labels()["classes"]
    one, other = float(method(gold.copy(), predicted.copy())), float(method(gold[::-1].copy(), predicted[::-1].copy()))
    require(abs(one - other) <= 1e-9 * max(1.0, abs(one)), f"rows in another order give {other} instead of {one}")


PROPERTIES = (a_finite_number, the_order_of_rows_does_not_matter)
