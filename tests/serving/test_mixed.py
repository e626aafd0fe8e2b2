"""Examples of any tasks in one batch get the predictions that each would get by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polytask import Finished, Prediction, Predictor
from polytask.serving.failures import Failure
from polytask.serving.items import Embedded, Item
from polytask.serving.mixed import MixedPredictor

TEXTS = ["Ada Lovelace lived in London.", "Not bad at all.", "The battery died. " * 3, "Who?"]
LONG = "a very long text about nothing in particular " * 40
PAIRS = [("Is it?", "Is it not?"), ("How old is it?", "What is its age?"), ("why", LONG)]


def items_of(found: Sequence[list[Item] | Failure]) -> list[Item]:
    assert not [one for one in found if isinstance(one, Failure)]
    return [item for own in found if not isinstance(own, Failure) for item in own]


def assert_close(found: Prediction, expected: Prediction) -> None:
    def rounded(value: Any) -> Any:
        return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value

    assert found.label == rounded(expected.label)
    assert found.probabilities == (expected.probabilities and pytest.approx(expected.probabilities, abs=1e-5))
    assert (found.tokens, found.truncated) == (expected.tokens, expected.truncated)
    assert found.word_texts == expected.word_texts
    if expected.spans is not None:
        assert [replace(span, probability=0) for span in found.spans or ()] == [
            replace(span, probability=0) for span in expected.spans
        ]
        assert found.word_probabilities == pytest.approx(expected.word_probabilities, abs=1e-5)


@pytest.mark.parametrize(
    "adapter", ["none", "{name: houlsby, size: 4}", "{name: lora, rank: 2}", "{name: pal, size: 12}"]
)
def test_a_mixed_batch_equals_one_task_and_one_text_at_a_time(
    make_mixed_run: Callable[[str], Finished], adapter: str
) -> None:
    predictor = Predictor.load(make_mixed_run(adapter).folder, device="cpu")
    model = MixedPredictor(predictor)
    assert set(model.tasks_taking(1) + model.tasks_taking(2)) == set(predictor.tasks)
    texts = [(text,) for text in (*TEXTS, LONG)]
    items = items_of(model.tokenize(model.tasks_taking(2), PAIRS)) + items_of(
        model.tokenize(model.tasks_taking(1), texts)
    )
    items += items_of(model.tokenize_for_embedding(None, texts)) + items_of(model.tokenize(("opinion",), texts))
    items += items_of(model.tokenize_for_embedding("opinion", texts))
    order = np.random.default_rng(0).permutation(len(items)).tolist()
    answers = dict(zip(order, model.compute([items[i] for i in order]), strict=True))
    for i, item in enumerate(items):
        answer = answers[i]
        if isinstance(answer, Embedded):
            alone = predictor.embed([item.example[0]], normalize=False, task=item.embedding_task)[0]
            np.testing.assert_allclose(answer.vector, alone, atol=1e-5)
            continue
        assert set(answer) == set(item.tasks)
        for task, prediction in answer.items():
            (alone,) = predictor.predict(task, [item.example if len(item.example) == 2 else item.example[0]])
            assert_close(prediction, alone)


def test_tasks_share_passes_unless_they_have_adapters(make_mixed_run: Callable[[str], Finished]) -> None:
    shared = MixedPredictor(Predictor.load(make_mixed_run("none").folder, device="cpu"))
    separate = MixedPredictor(Predictor.load(make_mixed_run("{name: houlsby, size: 4}").folder, device="cpu"))
    assert len(shared.groups) < len(separate.groups) == len(separate.predictor.tasks)
    one_pass = [group for group in shared.groups if "question" in group]
    assert "similarity" in one_pass[0]


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


def test_an_empty_text_is_an_error_of_its_own(tiny_run: Finished) -> None:
    model = MixedPredictor(Predictor.load(tiny_run.folder, device="cpu"))
    found = model.tokenize(("opinion",), [("fine",), (" ",), ("bad",)])
    assert [isinstance(one, Failure) for one in found] == [False, True, False]
    assert len(model.compute(items_of([found[0], found[2]]))) == 2
