"""Examples of any tasks in one batch get the predictions that each would get by itself, whatever their kinds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polytask import Finished, Prediction, Predictor, UserError
from polytask.serving.examples import Example
from polytask.serving.failures import Failure
from polytask.serving.items import Embedded, Item
from polytask.serving.mixed import SHAPES, MixedPredictor, places_for
from polytask.types import LabelKind

Make = Callable[[str], Finished]
ADAPTERS = ["none", "{name: houlsby, size: 4}", "{name: lora, rank: 2}", "prefix"]
WORDS = ["ada", "lives", "in", "london", "and", "the", "battery", "died", "within", "a", "week", "42", "why", "not"]
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
LONG = st.integers(60, 300).map(lambda words: " ".join((WORDS * words)[:words]))
ANY = st.one_of(TEXT, TEXT, LONG)
OPTIONS = st.lists(ANY, min_size=2, max_size=9, unique=True)


def items_of(found: Sequence[list[Item] | Failure]) -> list[Item]:
    assert not [one for one in found if isinstance(one, Failure)]
    return [item for own in found if not isinstance(own, Failure) for item in own]


def assert_close(found: Prediction, expected: Prediction) -> None:
    def rounded(value: Any) -> Any:
        return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value

    if found.task == "size":  # without a range: the error is that of the standardized score
        assert found.label == pytest.approx(expected.label, rel=1e-5, abs=1e-3)
    else:
        assert found.label == rounded(expected.label)
    assert found.probabilities == (expected.probabilities and pytest.approx(expected.probabilities, abs=1e-5))
    for name in ("tokens", "truncated", "windows", "abstained", "index", "words", "word_texts"):
        assert getattr(found, name) == getattr(expected, name), name
    if expected.spans is not None:
        assert [replace(span, probability=0) for span in found.spans or ()] == [
            replace(span, probability=0) for span in expected.spans
        ]
        assert found.word_probabilities == pytest.approx(expected.word_probabilities, abs=1e-5)


def predicted(predictor: Predictor, task: str, example: Example) -> Prediction:
    """The prediction of `Predictor.predict`."""
    text: Any = example[0] if len(example) == 1 else example
    if predictor.spec(task).has_options:
        return predictor.predict(task, [example[0]], [list(example[1:])])[0]  # type: ignore[arg-type, list-item]
    return predictor.predict(task, [text])[0]


@pytest.fixture(scope="module")
def models(make_mixed_run: Make) -> Callable[[str], MixedPredictor]:
    """The model with an adapter, loaded once."""
    return cache(lambda adapter: MixedPredictor(Predictor.load(make_mixed_run(adapter).folder, device="cpu")))


@st.composite
def requests(draw: st.DrawFn, model: MixedPredictor) -> tuple[tuple[str, ...], Example]:
    """Some tasks that take the same shape, and an example of it."""
    shape = draw(st.sampled_from([shape for shape in SHAPES if model.tasks_taking(shape)]))
    tasks = draw(st.lists(st.sampled_from(model.tasks_taking(shape)), min_size=1, unique=True))
    if shape == "options":
        return tuple(tasks), (draw(ANY), *draw(OPTIONS))
    return tuple(tasks), tuple(draw(st.lists(ANY, min_size=shape, max_size=shape)))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_mixed_batch_equals_one_input_at_a_time_and_predict(
    models: Callable[[str], MixedPredictor], adapter: str
) -> None:
    model = models(adapter)
    kinds = {model.predictor.bundle.labels[task].kind for task in model.tasks}
    assert kinds == set(LabelKind.__args__) - {"text"}  # type: ignore[attr-defined]
    cases = settings(
        max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )

    @cases
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        asked = data.draw(st.lists(requests(model), min_size=2, max_size=8))
        items = [item for tasks, example in asked for item in items_of(model.tokenize(tasks, [example]))]
        texts = data.draw(st.lists(ANY, max_size=3))
        task = data.draw(st.sampled_from([None, *model.predictor.tasks]))
        items += items_of(model.tokenize_for_embedding(task, [(text,) for text in texts]))
        items = data.draw(st.permutations(items))
        for item, answer in zip(items, model.compute(items), strict=True):
            (alone,) = model.compute([item])
            if isinstance(answer, Embedded):
                assert isinstance(alone, Embedded)
                np.testing.assert_allclose(answer.vector, alone.vector, atol=1e-5)
                vector = model.predictor.embed([item.example[0]], normalize=False, task=task)[0]  # type: ignore[list-item]
                np.testing.assert_allclose(answer.vector, vector, atol=1e-5)
                continue
            assert not isinstance(alone, Embedded)
            assert set(answer) == set(alone) == set(item.tasks)
            for name, prediction in answer.items():
                assert_close(prediction, alone[name])
                assert_close(prediction, predicted(model.predictor, name, item.example))

    check()


@pytest.mark.parametrize("adapter", ADAPTERS[:2])
def test_every_task_in_one_batch(models: Callable[[str], MixedPredictor], adapter: str) -> None:
    model, long = models(adapter), " ".join(WORDS * 20)
    items = []
    for shape in SHAPES:
        examples: list[Example] = [("why", *(f"not {i}" for i in range(n))) for n in (2, 3, 5)]
        examples = examples if shape == "options" else [("why",) * shape, ("why",) * (shape - 1) + (long,)]
        for example in examples if model.tasks_taking(shape) else []:
            items += items_of(model.tokenize(model.tasks_taking(shape), [example]))
    assert {task for item in items for task in item.tasks} == set(model.tasks)
    for item, answer in zip(items, model.compute(items), strict=True):
        assert not isinstance(answer, Embedded)
        for task, prediction in answer.items():
            assert_close(prediction, predicted(model.predictor, task, item.example))
            if task in ("decision", "alike") and len(item.example[-1] or "") > 300:
                assert (prediction.windows, prediction.truncated) == (4, True)


def test_tasks_share_passes_unless_they_have_adapters(models: Callable[[str], MixedPredictor]) -> None:
    shared, separate = models("none"), models(ADAPTERS[1])
    assert len(shared.groups) < len(separate.groups) == len(separate.predictor.tasks)
    one_pass = [group for group in shared.groups if "question" in group]
    assert "similarity" in one_pass[0]


def test_a_mixed_batch_is_one_pass_of_the_encoder(
    models: Callable[[str], MixedPredictor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models(ADAPTERS[1])
    encode, passes = model.predictor.bundle.model.encode, []

    def counted(stream: Any, *more: Any, **options: Any) -> Any:
        passes.append(stream.layout.tasks)
        return encode(stream, *more, **options)

    monkeypatch.setattr(model.predictor.bundle.model, "encode", counted)
    examples = {1: ("fine",), 2: ("is it?", "is it not?"), 3: ("a", "b", "c"), "options": ("why", "because", "no")}
    items = [
        item
        for shape, example in examples.items()
        for item in items_of(model.tokenize(model.tasks_taking(shape), [example, example]))  # type: ignore[arg-type]
    ]
    model.compute(items)
    assert [len(tasks) for tasks in passes] == [len(model.tasks)]
    other = items_of(model.tokenize(("reply",), [("why", *"abcde")]))  # eight places
    model.compute(items + other)
    assert [len(tasks) for tasks in passes] == [len(model.tasks), len(model.tasks), 1]


@pytest.mark.parametrize(("options", "places"), [(2, 2), (3, 4), (4, 4), (5, 8), (16, 16), (17, 32)])
def test_the_places_of_options(options: int, places: int) -> None:
    assert places_for(options) == places


def test_truncation_is_chosen_per_request_and_reported(tiny_run: Finished) -> None:
    model = MixedPredictor(Predictor.load(tiny_run.folder, device="cpu"))
    text = "good " * 600 + "bad " * 600  # more tokens than the tokenizer keeps
    start, end = "good " * 62, "bad " * 62
    (cut_end,), (cut_start,) = (model.tokenize(("opinion",), [(text,)], cut) for cut in ("end", "start"))
    assert isinstance(cut_end, list)
    assert isinstance(cut_start, list)
    together: Any = model.compute([*cut_end, *cut_start])
    for answer, kept in zip(together, (start, end), strict=True):
        assert answer["opinion"].truncated
        assert answer["opinion"].tokens == 1202
        (alone,) = model.predictor.predict("opinion", kept)
        assert answer["opinion"].probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    (refused,) = model.tokenize(("opinion",), [(text,)], "error")
    assert isinstance(refused, Failure)
    assert refused.error_type == "too_many_tokens"
    assert "1,202 tokens, and the model reads at most 64" in str(refused)
    (embedded,) = model.tokenize_for_embedding(None, [(text,)], "start")
    (vector,) = model.compute(items_of([embedded]))
    assert isinstance(vector, Embedded)
    assert vector.truncated
    np.testing.assert_allclose(vector.vector, model.predictor.embed(end, normalize=False)[0], atol=1e-5)


def test_the_windows_of_a_long_text_are_cut_at_the_chosen_end(models: Callable[[str], MixedPredictor]) -> None:
    model = models("none")
    kept = 62 + 3 * 31  # of four windows
    text = "good " * 300 + "bad " * 300
    ends: Any = model.compute([*items_of(model.tokenize(("decision",), [(text,)], "end"))])
    starts: Any = model.compute([*items_of(model.tokenize(("decision",), [(text,)], "start"))])
    for (answer,), word in ((ends, "good "), (starts, "bad ")):
        assert (answer["decision"].windows, answer["decision"].truncated) == (4, True)
        (alone,) = model.predictor.predict("decision", word * kept)
        assert (alone.windows, alone.truncated) == (4, False)
        assert answer["decision"].probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    (refused,) = model.tokenize(("decision",), [(text,)], "error")
    assert isinstance(refused, Failure)
    assert f"602 tokens, and the model reads at most {kept + 2}" in str(refused)


def test_an_empty_text_is_an_error_of_its_own(tiny_run: Finished) -> None:
    model = MixedPredictor(Predictor.load(tiny_run.folder, device="cpu"))
    found = model.tokenize(("opinion",), [("fine",), (" ",), ("bad",)])
    assert [isinstance(one, Failure) for one in found] == [False, True, False]
    assert len(model.compute(items_of([found[0], found[2]]))) == 2


def test_a_text_on_which_the_tokenizer_fails_is_an_error_of_its_own(
    tiny_run: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MixedPredictor(Predictor.load(tiny_run.folder, device="cpu"))
    tokenizer = model.predictor.bundle.tokenizer
    encode = tokenizer.encode

    def failing(texts: Sequence[str]) -> Any:
        if "bad" in texts:
            raise UserError("the encoder's tokenizer failed on a text")
        return encode(texts)

    monkeypatch.setattr(tokenizer, "encode", failing)
    found = model.tokenize(("opinion",), [("fine",), ("bad",), ("good",)])
    assert [isinstance(one, Failure) for one in found] == [False, True, False]
    assert isinstance(found[1], Failure)
    assert found[1].error_type == "invalid_input"
