"""The JSON of a server: inputs of requests -> examples, and predictions -> answers. Knows no HTTP and no queue."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from polytask.serving.examples import Example
from polytask.serving.explanation import Explanation, explained_value
from polytask.serving.failures import Failure
from polytask.serving.limits import ServingLimits
from polytask.serving.mixed import MixedPredictor
from polytask.tasks.rows import EMPTY_TEXT, words_problem
from polytask.types import Prediction, unknown

Probabilities = Literal["all", "top", "none"]
EXPECTED = 'expected a text, a pair of texts ["a", "b"], or {"text": "a", "text2": "b"}'


def read_inputs(inputs: Any, limits: ServingLimits) -> list[Example | Failure]:
    """One example for each input, or why it cannot be used. Raises a Failure if there are too many inputs."""
    values = inputs if isinstance(inputs, list) else [inputs]
    if len(values) > limits.max_inputs:
        raise Failure(
            "too_many_inputs", f"the request has {len(values):,} inputs; at most {limits.max_inputs:,} are accepted"
        )
    return [read_input(value, limits) for value in values]


def read_input(value: Any, limits: ServingLimits) -> Example | Failure:
    """The example of one input: a text, a pair, or an object with text and text2. A text may be a list of words."""
    if isinstance(value, Mapping):
        if not {"text"} <= set(value) <= {"text", "text2"}:
            return Failure("invalid_input", EXPECTED)
        texts = [value["text"]] if value.get("text2") is None else [value["text"], value["text2"]]
    else:
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, list) and (len(value) != 2 or not all(isinstance(text, str) for text in value)):
            return Failure("invalid_input", EXPECTED)
    characters = sum(map(len, _strings(texts)))
    if characters > limits.max_characters:
        found = f"the input has {characters:,} characters; at most {limits.max_characters:,} are accepted"
        return Failure("too_many_characters", found)
    example: list[str | tuple[str, ...]] = []
    for text in texts:
        if not isinstance(text, str) and not (isinstance(text, list) and all(isinstance(word, str) for word in text)):
            return Failure("invalid_input", EXPECTED)
        if problem := words_problem(text):
            return Failure("empty_text" if problem == EMPTY_TEXT else "invalid_input", problem)
        example.append(text if isinstance(text, str) else tuple(text))
    return tuple(example)


def _strings(texts: Sequence[Any]) -> list[str]:
    """All texts and words."""
    flat = [word for text in texts for word in (text if isinstance(text, list) else [text])]
    return [word for word in flat if isinstance(word, str)]


def read_tasks(model: MixedPredictor, tasks: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The tasks that a request names, without repetitions; None: all. Raises a Failure if one has no predictions."""
    if tasks is None:
        return None
    known = model.tasks_taking(1) + model.tasks_taking(2)
    names = tuple(dict.fromkeys([tasks] if isinstance(tasks, str) else tasks))
    for name in names:
        if name not in known:
            raise Failure("unknown_task", unknown("predict", name, known, "task"))
    if not names:
        raise Failure("invalid_request", "tasks: must name at least one task; leave it out for all tasks")
    return names


def tasks_for(model: MixedPredictor, tasks: tuple[str, ...] | None, example: Example) -> tuple[str, ...] | Failure:
    """The tasks to predict for an example: by default all that take its number of texts."""
    has_words = any(isinstance(text, tuple) for text in example)
    fitting = [task for task in model.tasks_taking(len(example)) if not has_words or model.predictor.is_per_word(task)]
    form = f"{len(example)} {'text' if len(example) == 1 else 'texts'}{' as a list of words' if has_words else ''}"
    wrong = [task for task in tasks or () if task not in fitting]
    if wrong:
        return Failure("invalid_input", f"task {wrong[0]} does not take {form}")
    if not fitting:
        return Failure("invalid_input", f"none of the tasks takes {form}")
    return tuple(fitting) if tasks is None else tasks


def prediction_json(prediction: Prediction, probabilities: Probabilities = "all") -> dict[str, Any]:
    """A prediction as an answer has it."""
    label = prediction.label
    answer: dict[str, Any] = {"label": list(label) if isinstance(label, tuple) else label}
    if prediction.probabilities is not None and probabilities != "none":
        answer["probabilities"] = dict(prediction.probabilities)
        if probabilities == "top":
            highest = max(prediction.probabilities, key=prediction.probabilities.__getitem__)
            chosen = label if isinstance(label, tuple) else (highest,)
            answer["probabilities"] = {name: prediction.probabilities[name] for name in chosen}
    if prediction.spans is not None:
        answer["words"] = list(prediction.word_texts or ())
        answer["spans"] = [asdict(span) for span in prediction.spans]
    more = {"tokens": prediction.tokens, "truncated": prediction.truncated, "abstained": prediction.abstained}
    return answer | more


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """An explanation as an answer has it."""
    label = explanation.label
    return {
        "task": explanation.prediction.task,
        "label": list(label) if isinstance(label, tuple) else label,
        "value": explained_value(explanation.prediction, label),
        "method": explanation.method,
        "texts": list(explanation.texts),
        "words": [asdict(word) for word in explanation.words],
        "truncated": explanation.prediction.truncated,
    }


def score_of(prediction: Prediction) -> float:
    """The number that orders pairs: a score, a cosine, or the probability of yes."""
    if isinstance(prediction.label, float):
        return prediction.label
    assert prediction.probabilities is not None
    return prediction.probabilities["yes"]


def scoring_task(model: MixedPredictor, task: str | None) -> str:
    """The task that scores pairs of texts: the given one, or the first with a score, a cosine, or yes and no."""
    labels = model.predictor.bundle.labels
    pairs = [
        name for kind in ("score", "match", "yes_no") for name in model.tasks_taking(2) if labels[name].kind == kind
    ]
    if task is not None and task not in pairs:
        known = model.tasks_taking(1) + model.tasks_taking(2)
        if task not in known:
            raise Failure("unknown_task", unknown("predict", task, known, "task"))
        raise Failure("invalid_request", f"task {task} does not score pairs of texts; these do: {', '.join(pairs)}")
    if not pairs:
        raise Failure("invalid_request", "this model has no task that scores pairs of texts")
    return task or pairs[0]


def describe_tasks(model: MixedPredictor) -> list[dict[str, Any]]:
    """What a client needs to know about each task."""
    bundle = model.predictor.bundle
    described = []
    for name in bundle.specs:
        labels, spec = bundle.labels[name], bundle.specs[name]
        has_range = labels.kind == "score" and labels.bounded
        described.append(
            {
                "name": name,
                "kind": labels.kind_name,
                "texts": len(spec.text),
                "text_names": list(spec.text),
                "classes": list(labels.classes),
                "range": [labels.low, labels.high] if has_range else None,
                "metric": spec.metric,
                "predicts": bundle.model.head(name).kind.has_predictions,
                "reads_long_texts": model.predictor.is_per_word(name),
            }
        )
    return described


def describe_model(model: MixedPredictor, name: str) -> dict[str, Any]:
    """The model's sizes and settings."""
    predictor, bundle = model.predictor, model.predictor.bundle
    shape = bundle.model.encoder.shape
    return {
        "name": name,
        "tasks": list(bundle.specs),
        "adapter": bundle.adapter.name,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "max_length": bundle.packer.max_length,
        "truncate": bundle.packer.truncate,
        "device": str(bundle.model.device),
        "precision": "bf16" if predictor.bf16 else "float32",
    }
