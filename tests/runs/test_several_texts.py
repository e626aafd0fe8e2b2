"""Whole runs with three and more texts: training, prediction, truncation, and what refuses them."""

import json
from pathlib import Path
from typing import Any

import pytest

import polytask
from polytask import UserError, load, predict_file, prepare, recipe_from, train

ENCODER = {"layers": 1, "hidden": 16, "heads": 2, "ffn": 32, "positions": 64}
NAMES = ("question", "answer", "source")


def write(folder: Path) -> str:
    path = folder / "answers.jsonl"
    rows = [
        {"question": f"is {n} even", "answer": "yes" if n % 3 else "no", "source": f"number {n}", "right": n % 2}
        for n in range(24)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def content(file: str, **more: Any) -> dict[str, Any]:
    task = {"kind": "yes_no", "text": list(NAMES), "label": "right", "train": file, "dev": file, **more}
    settings = {"epochs": 1, "steps_per_epoch": 3, "batch_size": 6, "device": "cpu", "precision": "float32"}
    return {"name": "several", "encoder": ENCODER, "max_length": 24, "tasks": {"t": task}, "train": settings}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    return train(recipe_from(content(write(folder))), folder / "run").folder


def test_three_texts_are_trained_and_predicted(run: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (run / "predictions" / "t-dev.jsonl").read_text().splitlines()]
    model = load(run)
    again = model.predict("t", [tuple(row["text"]) for row in rows])
    assert [one.label for one in again] == [row["prediction"] for row in rows]
    assert [one.tokens for one in again] == [row["tokens"] for row in rows]
    (short,) = model.predict("t", [("a", "b", "c")])
    assert (short.tokens, short.truncated) == (7, False)  # [CLS] a [SEP] b [SEP] c [SEP]
    (long,) = model.predict("t", [("a", "b " * 30, "c")])
    assert (long.tokens, long.truncated) == (36, True)
    assert load(run, few=True).predict("t", [("a", "b", "c")])[0].probabilities == pytest.approx(
        short.probabilities, abs=1e-5
    )
    source = tmp_path / "new.csv"
    source.write_text("question,answer,source\na,b,c\n")
    predict_file(model, None, str(source), tmp_path / "out.csv")
    assert str(short.label) in (tmp_path / "out.csv").read_text()
    assert model.predict([dict(zip(NAMES, "abc", strict=True))])[0]["predicted_t"] == short.label
    assert {word.text for word in model.explain(["a", "b", "c"], task="t").words} == {0, 1, 2}
    with pytest.raises(UserError, match=r"task t takes 3 text\(s\) per example, found 2"):
        model.predict("t", "a", "b")
    assert "reads `question` and `answer` and `source`" in (run / "model" / "README.md").read_text()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head": "bi"}, r"head: bi does not support 3 text\(s\); choose one of: cross"),
        ({"head": "cosine"}, r"cosine does not support 3 text\(s\); choose one of: cross"),
        ({"head": "joint"}, r"joint does not support 3 text\(s\); choose one of: cross"),
        ({"head": "linear"}, r"linear does not support 3 text\(s\); choose one of: cross"),
        ({"text": list("abcdefghi")}, r"text: must be one column, or a list of up to 8; found 9"),
        ({"text": [*NAMES, "sauce"]}, r"no column 'sauce'; .* did you mean 'source'\?"),
    ],
)
def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(recipe_from(content(write(tmp_path), **fields)))


def test_a_sequence_must_have_room_for_all_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="max_length: must be at least 7 for task t, whose sequences have 4 special"):
        prepare(recipe_from(content(write(tmp_path)) | {"max_length": 6}))
    prepare(recipe_from(content(write(tmp_path)) | {"max_length": 7}))


def test_long_rows_are_counted_and_refused(tmp_path: Path) -> None:
    recipe = content(write(tmp_path)) | {"max_length": 8}
    found = {(one.split, one.what): one for one in prepare(recipe_from(recipe)).findings()}
    assert found["dev", "cut"].count > 0
    with pytest.raises(UserError, match="longer than max_length"):
        prepare(recipe_from(recipe | {"truncate": "error"}))


def test_four_texts_of_a_frame(tmp_path: Path) -> None:
    rows = [{"a": f"x {n}", "b": "y", "c": f"z {n % 5}", "d": "w", "label": ("no", "yes")[n % 2]} for n in range(40)]
    task = polytask.YesNo(rows, text=["a", "b", "c", "d"], label="label")
    settings = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8, "device": "cpu", "precision": "float32"}
    fitted = polytask.fit({"t": task}, run=tmp_path / "run", encoder=ENCODER, max_length=32, train=settings)
    assert fitted.model.predict("t", [("x", "y", "z", "w")])[0].label in ("no", "yes")


def test_options_of_a_frame(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"q": [f"q {n}" for n in range(40)], "right": [n % 2 for n in range(40)]})
    frame["answers"] = [[f"a {n}", f"b {n}", "c"][: 2 + n % 2] for n in range(40)]
    task = polytask.Choice(frame, text="q", options="answers", label="right")
    settings = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8, "device": "cpu", "precision": "float32"}
    fitted = polytask.fit({"t": task}, run=tmp_path / "run", encoder=ENCODER, max_length=32, train=settings)
    assert fitted.summary.tasks["t"].data["dev"]["rows"] == 8
    predicted = fitted.model.predict(frame[:3])
    assert predicted["predicted_t"].tolist() == [
        frame["answers"][n][index] for n, index in enumerate(predicted["index_t"].tolist())
    ]
