"""The JSON of a server: inputs of requests -> texts, and predictions -> answers. Knows no HTTP and no queue."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from polytask.kinds.names import LabelProblem
from polytask.kinds.options import read_options
from polytask.serving.failures import Failure
from polytask.serving.items import Input
from polytask.serving.limits import ServingLimits
from polytask.serving.mixed import MixedPredictor
from polytask.settings import MOST_TEXTS
from polytask.tasks.rows import EMPTY_TEXT, words_problem
from polytask.types import Prediction, unknown

Probabilities = Literal["all", "top", "none"]
EXPECTED = (
    'expected a text, a list of two to eight texts ["a", "b"], {"text": "a", "text2": "b"}, {"texts": ["a", "b"]}, or '
    '{"text": "a", "options": ["b", "c"]}'
)
FIELDS = ({"text"}, {"text", "text2"}, {"texts"}, {"text", "options"})
"""The fields of an input that is an object."""


def read_inputs(inputs: Any, limits: ServingLimits) -> list[Input | Failure]:
    """One input for each value, or why it cannot be used. Raises a Failure if there are too many inputs."""
    values = inputs if isinstance(inputs, list) else [inputs]
    if len(values) > limits.max_inputs:
        raise Failure(
            "too_many_inputs", f"the request has {len(values):,} inputs; at most {limits.max_inputs:,} are accepted"
        )
    return [read_input(value, limits) for value in values]


def read_texts(inputs: Any, limits: ServingLimits) -> list[Input | Failure]:
    """The inputs of a request for embeddings, each of which is a single text."""
    wrong = Failure("invalid_input", "an embedding is that of one text; expected a text")
    return [one if isinstance(one, Failure) or one.shape == 1 else wrong for one in read_inputs(inputs, limits)]


def read_input(value: Any, limits: ServingLimits) -> Input | Failure:
    """One input: a text, several texts, or an object with texts or options. A single text may be a list of words."""
    if isinstance(value, Mapping):
        fields = {name: one for name, one in value.items() if name != "text2" or one is not None}
        if set(fields) not in FIELDS:
            return Failure("invalid_input", EXPECTED)
        if "options" in fields:
            return _with_options(fields["text"], fields["options"], limits)
        is_list = "texts" in fields
        texts = fields["texts"] if is_list else [fields[name] for name in ("text", "text2") if name in fields]
    else:
        texts, is_list = (value, True) if isinstance(value, list) else ([value], False)
    if is_list and not (_is_strings(texts) and 1 < len(texts) <= MOST_TEXTS):
        return Failure("invalid_input", EXPECTED)
    if long := _too_long(texts, limits):
        return long
    example: list[str | tuple[str, ...]] = []
    for text in texts:
        if not isinstance(text, str) and not _is_strings(text):
            return Failure("invalid_input", EXPECTED)
        if problem := words_problem(text):
            return Failure("empty_text" if problem == EMPTY_TEXT else "invalid_input", problem)
        example.append(text if isinstance(text, str) else tuple(text))
    return Input(tuple(example))


def _with_options(text: Any, options: Any, limits: ServingLimits) -> Input | Failure:
    """A text with options, for kind choice."""
    if not isinstance(text, str) or not _is_strings(options):
        return Failure("invalid_input", EXPECTED)
    if long := _too_long([text, *options], limits):
        return long
    if len(options) > limits.max_options:
        found = f"the input has {len(options):,} options; at most {limits.max_options:,} are accepted"
        return Failure("too_many_options", found)
    if problem := words_problem(text):
        return Failure("empty_text" if problem == EMPTY_TEXT else "invalid_input", problem)
    try:
        return Input((text, *read_options([options])), has_options=True)
    except LabelProblem as problem:
        return Failure("invalid_input", str(problem))


def _too_long(texts: Sequence[Any], limits: ServingLimits) -> Failure | None:
    characters = sum(map(len, _strings(texts)))
    if characters <= limits.max_characters:
        return None
    found = f"the input has {characters:,} characters; at most {limits.max_characters:,} are accepted"
    return Failure("too_many_characters", found)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _strings(texts: Sequence[Any]) -> list[str]:
    """All texts and words."""
    flat = [word for text in texts for word in (text if isinstance(text, list) else [text])]
    return [word for word in flat if isinstance(word, str)]


def read_tasks(model: MixedPredictor, tasks: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """The tasks that a request names, without repetitions; None: all. Raises a Failure if one has no predictions."""
    if tasks is None:
        return None
    names = tuple(dict.fromkeys([tasks] if isinstance(tasks, str) else tasks))
    for name in names:
        if name not in model.tasks:
            raise Failure("unknown_task", unknown("predict", name, model.tasks, "task"))
    if not names:
        raise Failure("invalid_request", "tasks: must name at least one task; leave it out for all tasks")
    return names


def tasks_for(model: MixedPredictor, tasks: tuple[str, ...] | None, one: Input) -> tuple[str, ...] | Failure:
    """The tasks to predict for an input: by default all that take its number of texts, or its options."""
    has_words = any(isinstance(text, tuple) for text in one.example)
    fitting = [task for task in model.tasks_taking(one.shape) if not has_words or model.forward.is_per_word(task)]
    wrong = next((task for task in tasks or () if task not in fitting), None)
    if wrong is not None:
        hint = '; it takes {"text": "a", "options": ["b", "c"]}' if model.shape(wrong) == "options" else ""
        return Failure("invalid_input", f"task {wrong} does not take {_described(one, has_words)}{hint}")
    if not fitting:
        return Failure("invalid_input", f"none of the tasks takes {_described(one, has_words)}")
    return tuple(fitting) if tasks is None else tasks


def _described(one: Input, has_words: bool) -> str:
    if one.has_options:
        return "a text with options"
    number = f"{len(one.example)} {'text' if len(one.example) == 1 else 'texts'}"
    return f"{number} as a list of words" if has_words else number


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
    if prediction.index is not None:
        answer["index"] = prediction.index
    if prediction.spans is not None:
        answer["words"] = list(prediction.word_texts or ())
        answer["spans"] = [asdict(span) for span in prediction.spans]
        if probabilities != "none":
            answer["word_probabilities"] = list(prediction.word_probabilities or ())
    names = ("tokens", "truncated", "windows", "abstained")
    return answer | {name: getattr(prediction, name) for name in names}


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
        if task not in model.tasks:
            raise Failure("unknown_task", unknown("predict", task, model.tasks, "task"))
        raise Failure("invalid_request", f"task {task} does not score pairs of texts; these do: {', '.join(pairs)}")
    if not pairs:
        raise Failure("invalid_request", "this model has no task that scores pairs of texts")
    return task or pairs[0]


def score_range(model: MixedPredictor, task: str) -> list[float] | None:
    """The lowest and the highest score of a task that has both."""
    labels = model.predictor.bundle.labels[task]
    return [labels.low, labels.high] if labels.kind == "score" and labels.bounded else None


def describe_tasks(model: MixedPredictor) -> list[dict[str, Any]]:
    """What a client needs to know about each task."""
    bundle = model.predictor.bundle
    described = []
    for name, spec in bundle.specs.items():
        form = bundle.model.input_format(name)
        described.append(
            {
                "name": name,
                "kind": bundle.labels[name].kind_name,
                "texts": len(spec.text),
                "text_names": list(spec.text),
                "options": spec.has_options,
                "classes": list(bundle.labels[name].classes),
                "range": score_range(model, name),
                "metric": spec.metric,
                "predicts": name in model.tasks,
                "has_windows": form.has_windows,
                "max_tokens": None if form.stride is not None else bundle.packer.longest(form),
            }
        )
    return described


def describe_model(model: MixedPredictor, name: str) -> dict[str, Any]:
    """The model's sizes and settings."""
    bundle = model.predictor.bundle
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
        "precision": "bf16" if model.forward.bf16 else "float32",
    }
