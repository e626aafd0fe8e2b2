"""The recipe as a typed record, its conversion to a plain mapping, and the names that tasks may have."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from polytask.settings import AddSettings, MaxLength, MethodChoice, Rate, TaskSpec, TrainSettings, Truncate, WordTags
from polytask.types import UserError

TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SELECT_WORDS = ("mean", "last")
"""The values of `train.select` that are not tasks; no task can have these names."""


def check_task_name(name: str, where: str) -> None:
    """Raises a UserError if no task may have this name."""
    if not TASK_NAME.fullmatch(name) or name in SELECT_WORDS:
        raise UserError(
            f"{where}: a task's name must be 1 to 64 letters, digits, - and _, starting with a letter or digit, and "
            f"not {' or '.join(SELECT_WORDS)}; found {name!r:.80}"
        )


@dataclass(frozen=True)
class Recipe:
    """Everything about one run: tasks, encoder, methods, and how to train."""

    tasks: Mapping[str, TaskSpec]
    """The tasks by name. See below for their fields."""
    name: str = "run"
    """Name of the run. Its folder is runs/NAME."""
    encoder: str | Mapping[str, Any] = "minilm"
    """The pretrained encoder: minilm, a folder, or a hub ID or ID@REVISION.
    {layers: 2, hidden: 128, ...} creates an untrained encoder."""
    max_length: MaxLength = 128
    """Maximum sequence length in tokens. Longer texts are truncated."""
    truncate: Truncate = "end"
    """Which end of texts that are too long is cut off: end or start. Of a pair, the longer text is cut. error: a text
    that is too long is an error that names its row. Predictions with the model follow the same rule."""
    dropout: Rate | None = None
    """Dropout rate of hidden states. Default: the encoder's own."""
    attention_dropout: Rate | None = None
    """Dropout rate of attention weights. Default: the encoder's own. With more than 128 tokens, 0 is faster on CUDA."""
    data: str | None = None
    """Folder that the tasks' files are relative to. Default: the recipe's folder. Can be ${POLYTASK_DATA}."""
    seed: int = 0
    """Random seed. The same seed on the same machine gives the same weights."""
    adapter: MethodChoice = field(default_factory=lambda: MethodChoice("none"))
    """Task-specific modules inside the encoder."""
    regularizers: tuple[MethodChoice, ...] = ()
    """Penalties that are added to the loss."""
    sampler: MethodChoice = field(default_factory=lambda: MethodChoice("proportional"))
    """Chooses the tasks of each step."""
    policy: MethodChoice = field(default_factory=lambda: MethodChoice("sum"))
    """Combines the tasks' losses or gradients into one update."""
    optimizer: MethodChoice = field(default_factory=lambda: MethodChoice("adamw"))
    """The optimizer. Its `lr` and `weight_decay` are those of the encoder."""
    teachers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Folder of a finished run for each task to distill: the task learns the run's outputs as well as the labels.
    With a list of runs, as in {sts: [runs/a, runs/b]}, it learns the mean of their predictions."""
    word_tags: WordTags | None = None
    """A tagger for the words of all texts. An embedding of each word's tag is added to its token embeddings. Default:
    no tags, or those of the tasks' `tags` columns. See below."""
    plugins: tuple[str, ...] = ()
    """Python files in the recipe's folder that register methods of your own, as in [my_adapter.py]. They run only after
    you have trusted them (--trust-plugins): see plugins.md."""
    train: TrainSettings = field(default_factory=TrainSettings)
    """Training settings. See below."""
    add: AddSettings | None = None
    """How tasks or a class are added to a finished run, for `polytask add-task` and `add-class` only. See below."""


def teacher_runs(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yields each teacher's field in the recipe, as error messages name it, its task and its run's folder."""
    for task, runs in recipe.teachers.items():
        for i, run in enumerate(runs):
            yield (f"teachers.{task}[{i}]" if len(runs) > 1 else f"teachers.{task}"), task, run


def recipe_to_mapping(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a mapping of plain values, as a recipe file contains it."""
    content: dict[str, Any] = _plain(asdict(recipe))
    for task in content["tasks"].values():
        del task["name"]
    return content


def strings_in(content: Any) -> Iterator[str]:
    """All strings in a mapping of plain values, such as the names of methods."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for inner in content.values() if isinstance(content, Mapping) else content:
            yield from strings_in(inner)


def flat_fields(recipe: Recipe) -> dict[str, Any]:
    """The recipe's fields by dotted name. The value of a method's field is the method's name."""
    return dict(_flat(recipe_to_mapping(recipe), ""))


def _flat(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if not isinstance(value, Mapping):
            yield f"{prefix}{key}", value
        elif "name" in value:
            yield f"{prefix}{key}", value["name"]
            yield from _flat({k: v for k, v in value.items() if k != "name"}, f"{prefix}{key}.")
        else:
            yield from _flat(value, f"{prefix}{key}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"name", "options"}:  # a MethodChoice
            return {"name": value["name"], **_plain(value["options"])}
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
