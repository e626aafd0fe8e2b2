"""Several classes per row from Python: lists and columns of 0 and 1 in frames, held-out rows, predictions as lists."""

from pathlib import Path
from typing import Any

import pytest

import polytask

pd = pytest.importorskip("pandas")

SETS = [["late", "broken"], ["late"], [], ["broken"], ["late", "wrong"], ["wrong"]]
TINY: dict[str, Any] = {
    "encoder": {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 128},
    "train": {"epochs": 1, "steps_per_epoch": 4, "batch_size": 8, "device": "cpu", "precision": "float32"},
}


def frame() -> Any:
    rows = [(f"parcel {n} number {n * n}", SETS[n % 6]) for n in range(60)]
    table = pd.DataFrame({"message": [text for text, _ in rows], "topics": [names for _, names in rows]})
    for name in ("broken", "late", "wrong"):
        table[name] = [int(name in names) for _, names in rows]
    return table


def test_lists_and_columns_train_the_same_model(tmp_path: Path) -> None:
    tasks = {
        "lists": polytask.MultiLabel(frame(), text="message", label="topics"),
        "columns": polytask.MultiLabel(frame(), text="message", label=["broken", "late", "wrong"]),
    }
    fitted = {name: polytask.fit({"t": task}, run=tmp_path / name, **TINY) for name, task in tasks.items()}
    for name, one in fitted.items():
        assert one.summary.tasks["t"].classes == ("broken", "late", "wrong"), name
        assert one.summary.tasks["t"].data["dev"]["rows"] == 12, name
    assert fitted["lists"].scores == fitted["columns"].scores

    model, some = fitted["lists"].model, frame()[:3]
    predicted = model.predict(some)
    expected = [list(prediction.label) for prediction in model.predict("t", list(some["message"]))]
    assert predicted["predicted_t"].tolist() == expected
    explained = model.explain("late parcel", task="t")
    assert explained.label in ("broken", "late", "wrong")
    assert model.explain("late parcel", task="t", label="wrong").label == "wrong"
