"""A recipe as a typed record, and the record as a plain mapping. Knows no file and no method."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from polytask.types import AddSettings, MaxLength, MethodChoice, Rate, TaskSpec, TrainSettings

TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
CHOICES = ("mean", "last")
"""What `train.select` can be beside a task."""


@dataclass(frozen=True)
class Recipe:
    """One whole run: tasks, encoder, the six swaps, and how to train."""

    tasks: Mapping[str, TaskSpec]
    """Task name -> what it is."""
    name: str = "run"
    """Names the run's folder: runs/NAME."""
    encoder: str | Mapping[str, Any] = "minilm"
    """minilm, a folder, ID or ID@REVISION of the hub, or {layers: 2, hidden: 128, ...} for an untrained one."""
    max_length: MaxLength = 128
    """Longest sequence in tokens; longer texts lose their end."""
    dropout: Rate | None = None
    """Of hidden states; left out: as the encoder was trained."""
    attention_dropout: Rate | None = None
    """Of attention weights; left out: as the encoder was trained. Above 128 tokens, 0 is faster on CUDA."""
    data: str | None = None
    """Folder the tasks' files are in; left out: the recipe's own folder. May be ${POLYTASK_DATA}."""
    seed: int = 0
    """Every random draw of the run comes from it: same seed, same machine, same weights."""
    adapter: MethodChoice = field(default_factory=lambda: MethodChoice("none"))
    """Task-specific parts inside the encoder."""
    regularizers: tuple[MethodChoice, ...] = ()
    """Penalties added to the loss, any number."""
    sampler: MethodChoice = field(default_factory=lambda: MethodChoice("proportional"))
    """Which tasks enter a step."""
    policy: MethodChoice = field(default_factory=lambda: MethodChoice("sum"))
    """How the tasks' losses become one update."""
    optimizer: MethodChoice = field(default_factory=lambda: MethodChoice("adamw"))
    """Its `lr` and `weight_decay` are the encoder's."""
    teachers: Mapping[str, str] = field(default_factory=dict)
    """Task -> the folder of a finished run that knows it: its outputs are learned beside the labels."""
    train: TrainSettings = field(default_factory=TrainSettings)
    """How long, how fast and on what: below."""
    add: AddSettings | None = None
    """For `polytask add-task RUN RECIPE` only: how the tasks join a run that has finished: below."""


def recipe_to_mapping(recipe: Recipe) -> dict[str, Any]:
    content: dict[str, Any] = _plain(asdict(recipe))
    for task in content["tasks"].values():
        del task["name"]
    return content


def flat_fields(recipe: Recipe) -> dict[str, Any]:
    """A recipe's fields by dotted name; a method is its name, and its options by their own."""
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


# --- checks a type cannot make ----------------------------------------------------------------------------------------
