"""The distance of two passes' outputs: each task counts with its weight."""

from typing import Any

import pytest

from polytask.regularizers import Smart


def test_tasks_count_by_their_weight(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    one, other = (model(tiny_stream()) for _ in range(2))
    parts = {t: Smart(make_context(model)).output_distance(model, {t: one[t]}, {t: other[t]}).item() for t in one}
    weighted = Smart(make_context(model, topic=0.5, alike=4.0)).output_distance(model, one, other).item()
    assert weighted == pytest.approx(0.5 * parts["topic"] + parts["same"] + 4 * parts["alike"])
