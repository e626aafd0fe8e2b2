"""The recipe fields that a search varies, as the command line names them, and those that it varies by default."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polytask.build import option
from polytask.disk.kept import keeping_values
from polytask.methods import find_method, options_of
from polytask.recipe.reading import recipe_from, with_value
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.recipe.yaml_files import load_yaml
from polytask.runs.prepare import trained_tasks
from polytask.runs.run import rehearse
from polytask.settings import MethodChoice
from polytask.studies.study import shown
from polytask.types import UserError

NUMBER = r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*"
RANGE = re.compile(rf"{NUMBER}\.\.{NUMBER}(:\w+)?\s*")
MEASURED = frozenset(
    {"kind", "text", "label", "dev", "test", "trained", "classes", "range", "metric", "metrics", "options"}
    | {"separator", "blank_labels", "share_rows", "scheme", "tags"}
)
"""The fields of a task that decide what is scored, and how: scores of other values could not be compared."""
SCHEDULED = frozenset({"in_order", "sequential", "weights"})
"""Samplers that are a choice of the experiment, not a detail to tune."""
SAMPLERS = ("proportional", "square_root", "annealed", "round_robin")
SIZES = ("size", "rank", "length")
"""The options of adapters that set how many parameters a task has."""
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Range:
    """A numeric field and its lowest and highest value."""

    field: str
    low: float
    high: float
    log: bool = False

    @property
    def integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def contains(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def value(self, parameter: Any) -> Any:
        """Returns the recipe's value for a suggested number: at most three digits, inside the range."""
        return parameter if self.integer else min(max(float(f"{parameter:.3g}"), self.low), self.high)

    def parameter(self, value: Any) -> Scalar:
        """Returns the value in the form in which Optuna keeps it."""
        return int(value) if self.integer else float(value)

    def examples(self) -> list[Any]:
        """Returns the values to check before anything runs; the middle is not a whole number."""
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return [self.low, self.high] if self.integer else [self.low, self.high, middle * 0.999]


@dataclass(frozen=True)
class Choices:
    """A field and the values to choose from, as a recipe file contains them."""

    field: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(map(text_of, self.values))

    def contains(self, value: Any) -> bool:
        return value in self.values

    def value(self, parameter: Any) -> Any:
        return next(value for value in self.values if self.parameter(value) == parameter)

    def parameter(self, value: Any) -> Scalar:
        """Returns the value in the form in which Optuna keeps it: methods with options as text."""
        return value if isinstance(value, Scalar) else shown(value)

    def examples(self) -> list[Any]:
        return list(self.values)


Field = Range | Choices


def text_of(value: Any) -> str:
    """Formats a value of a field for people."""
    return "default" if value is None else shown(value)


def read_field(text: str) -> Field:
    """Reads `FIELD=A,B`, `FIELD=LOW..HIGH` or `FIELD=LOW..HIGH:log`."""
    where = f"--vary {text}"
    field, equals, values = text.partition("=")
    if not equals or not field:
        raise UserError(f"{where}: must be FIELD=A,B or FIELD=LOW..HIGH, as in optimizer.lr=1e-5..1e-3:log")
    if match := RANGE.fullmatch(values):
        return _read_range(field, match, where)
    content = _with_numbers(load_yaml(f"[{values}]", where))
    if len(set(map(repr, content))) < max(2, len(content)):
        raise UserError(f"{where}: must have two or more different values, or a range LOW..HIGH; found {values!r}")
    return Choices(field, tuple(content))


def _with_numbers(value: Any) -> Any:
    """Returns the value with 1e-3 as a number, also inside of methods: YAML reads it as text, as it wants 1.0e-3."""
    if isinstance(value, Mapping):
        return {key: _with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and re.fullmatch(NUMBER, value) else value


def _read_range(field: str, match: re.Match[str], where: str) -> Range:
    low, high = (int(end) if end.lstrip("+-").isdigit() else float(end) for end in match.group(1, 2))
    if match.group(3) not in (None, ":log"):
        raise UserError(f"{where}: after a range only :log can follow, found {match.group(3)!r}")
    log = match.group(3) is not None
    if not low < high:
        raise UserError(f"{where}: the range is empty: its low end {low:g} must be below its high end {high:g}")
    if log and low <= 0:
        raise UserError(f"{where}: the low end of a range with :log must be above 0, found {low:g}")
    return Range(field, low, high, log)


def check_fields(fields: Iterable[Field], content: Mapping[str, Any]) -> None:
    """Raises a UserError for a field that does not exist or cannot be varied, or for an invalid value of it."""
    seen = set[str]()
    with keeping_values():
        for field in fields:
            keys, where = field.field.split("."), f"--vary {field.field}"
            if field.field in seen:
                raise UserError(f"{where}: the field is named twice")
            seen.add(field.field)
            whole_task = keys[0] == "tasks" and len(keys) < 3
            if keys[0] in ("seed", "name", "data", "add") or whole_task or MEASURED & set(keys[2:3]):
                raise UserError(f"{where}: cannot be varied: scores of different values could not be compared")
            for value in field.examples():
                try:
                    rehearse(recipe_from(with_value(content, keys, value), where="recipe"))
                except UserError as error:
                    raise UserError(f"{where}: with the value {text_of(value)}: {error}") from None


# --- defaults ---------------------------------------------------------------------------------------------------------
def default_fields(recipe: Recipe) -> list[Field]:
    """Returns the fields to vary if none are named: those that matter for most recipes, around the recipe's values."""
    train = recipe.train
    lr = option("optimizer", recipe.optimizer, "lr", "recipe: optimizer")
    fields: list[Field] = [_around("optimizer.lr", lr)]
    if train.head_lr is not None:
        fields.append(_around("train.head_lr", train.head_lr))
    name, batch = ("batch_size", train.batch_size)
    if train.batch_tokens is not None:
        name, batch = "batch_tokens", train.batch_tokens
    fields.append(_choices(f"train.{name}", batch, (max(1, batch // 2), batch, 2 * batch)))
    if train.warmup < 1:  # else it is a number of steps
        fields.append(_choices("train.warmup", train.warmup, (0.0, 0.1, 0.2)))
    fields.append(_choices("dropout", recipe.dropout, (0.0, 0.2) if recipe.dropout is None else (0.0, 0.1, 0.2)))
    if len(trained_tasks(recipe)) > 1 and recipe.sampler.name not in SCHEDULED:
        fields.append(_choices("sampler", _method(recipe.sampler), SAMPLERS))
    return [*fields, *_adapter_sizes(recipe.adapter)]


def _around(field: str, value: float) -> Range:
    return Range(field, float(f"{value / 4:.3g}"), float(f"{value * 4:.3g}"), log=True)


def _choices(field: str, own: Any, others: Iterable[Any]) -> Choices:
    """Returns the recipe's own value, and the others."""
    return Choices(field, (own, *(value for value in others if value != own)))


def _method(choice: MethodChoice) -> Any:
    return {"name": choice.name, **choice.options} if choice.options else choice.name


def _adapter_sizes(adapter: MethodChoice) -> list[Field]:
    declared = {one.name for one in options_of(find_method("adapter", adapter.name, "recipe: adapter"))}
    names = [name for name in SIZES if name in declared]
    # PAL's size is divided among its heads.
    unit = option("adapter", adapter, "heads", "recipe: adapter") if "heads" in declared else 1
    fields: list[Field] = []
    for name in names:
        size = option("adapter", adapter, name, "recipe: adapter")
        fields.append(_choices(f"adapter.{name}", size, (max(unit, size // 2 // unit * unit), 2 * size)))
    return fields


def values_of(recipe: Recipe, fields: Iterable[Field]) -> dict[str, Any]:
    """Returns the recipe's own value of each field; the default of a method's option that the recipe leaves out."""
    return {field.field: _value_of(recipe, field.field.split(".")) for field in fields}


def _value_of(recipe: Recipe, keys: Sequence[str]) -> Any:
    owner: Any = recipe
    for key in keys[:-1]:
        owner = owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
    name = keys[-1]
    if isinstance(owner, MethodChoice):
        return option(keys[-2], owner, name, f"recipe: {'.'.join(keys[:-1])}")
    value: Any = recipe_to_mapping(recipe)
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value["name"] if isinstance(value, Mapping) and set(value) == {"name"} else value
