"""The predictor: one text or many, in order, in flat memory, on the device asked for."""

from collections.abc import Iterator

import pytest

from polytask import Finished, load
from polytask.serving import predictor as module


def test_forms_of_asking(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    assert model.tasks == ("opinion", "question", "similarity")
    (one,) = model.predict("opinion", "fine")
    for again in model.predict("opinion", ["fine", "fine"]):
        assert again.label == one.label
        assert again.probabilities == pytest.approx(one.probabilities, abs=1e-5)
    (pair,) = model.predict("question", "is it?", "is it not?")
    assert model.predict("question", [("is it?", "is it not?")]) == [pair]
    assert pair.label in ("yes", "no")
    assert model.predict("opinion", []) == []


def test_windows_keep_the_order_and_read_no_further_than_needed(
    tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 4)
    model = load(tiny_run.folder)
    texts = ["word " * (i % 7 + 1) for i in range(10)]
    read = 0

    def examples() -> Iterator[tuple[str, ...]]:
        nonlocal read
        for text in texts:
            read += 1
            yield (text,)

    stream = model.stream("opinion", examples())
    first = next(stream)
    assert read == 4
    found = [first, *stream]
    assert [p.label for p in found] == [model.predict("opinion", text)[0].label for text in texts]


def test_an_empty_or_strange_text_still_gets_an_answer(tiny_run: Finished) -> None:
    model = load(tiny_run.folder)
    for text in ("", "\u200b", "x" * 20_000, "[CLS] [SEP]", "\ud800", "日本語"):
        assert len(model.predict("opinion", text)) == 1
