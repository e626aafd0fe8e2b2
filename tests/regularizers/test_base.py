"""What regularizers share: the distance of two passes' outputs, and what needs tasks one after another."""

from dataclasses import replace
from typing import Any

import pytest

from polytask.regularizers import Ewc, Lwf, Smart
from polytask.regularizers.base import Regularizer
from polytask.types import UserError


def test_tasks_count_by_their_weight(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    one, other = (model.run(tiny_stream()) for _ in range(2))
    parts = {
        task: Smart(make_context(model)).output_distance(model, replace(one, outputs={task: own}), other.outputs).item()
        for task, own in one.outputs.items()
    }
    weighted = Smart(make_context(model, topic=0.5, alike=4.0)).output_distance(model, one, other.outputs).item()
    assert weighted == pytest.approx(0.5 * parts["topic"] + parts["same"] + 4 * parts["alike"])


@pytest.mark.parametrize(("name", "method"), [("ewc", Ewc), ("lwf", Lwf)])
def test_what_was_learned_before_needs_tasks_one_after_another(
    tiny_model: Any, make_context: Any, name: str, method: type[Regularizer]
) -> None:
    message = rf"{name}: requires tasks that are trained one after another \(sampler: in_order\)"
    with pytest.raises(UserError, match=message):
        method(make_context(tiny_model()))
