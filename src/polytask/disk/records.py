"""Converts plain YAML and JSON values to typed records. Strict: an error names the field and the expected type."""

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from polytask.settings import OPEN, Bounds, MethodChoice
from polytask.types import UserError, unknown

MAX_LEVELS = 20
PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
EARLIER_NAMES = {"own_trunk": "own_encoder"}
"""Methods that have been renamed: recipes and models with the earlier name can still be read."""
MAX_INTEGER = 2**63  # no setting is larger, and Python refuses to print integers with thousands of digits


def convert(value: Any, kind: Any, where: str) -> Any:
    """Converts a YAML value to the type `kind`; raises a UserError that says where it is and what is expected."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return _shallow(value, where)
    if origin is Annotated and OPEN in inner[1:] and isinstance(value, str) and PLUGIN_NAME.fullmatch(value):
        return value
    if origin is Annotated:
        return _bounded(convert(value, inner[0], where), inner[1:], where)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, inner, where)
    if origin is Literal:
        if value in inner:
            return value
        raise UserError(f"{where}: must be one of {', '.join(map(str, inner))}; found {value!r}")
    if kind is MethodChoice:
        return _method_choice(value, where)
    if is_dataclass(kind):
        return _record(mapping(value, where), kind, where)
    if origin is tuple:
        return _convert_tuple(value, inner, where)
    if origin in (Mapping, dict):
        return {str(k): convert(v, inner[1], _join(where, str(k))) for k, v in mapping(value, where).items()}
    return _scalar(value, kind, where)


def check_kind(kind: Any, where: str) -> None:
    """Raises a UserError if a recipe cannot have values of this type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        check_kind(inner[0], where)
    elif origin in (types.UnionType, typing.Union, tuple) or (origin in (Mapping, dict) and inner[0] is str):
        for one in inner:
            if one not in (type(None), Ellipsis):
                check_kind(one, where)
    elif origin is not Literal and kind not in (int, float, str, bool, Any, MethodChoice):
        raise UserError(
            f"{where}: recipes have no values of type {getattr(kind, '__name__', kind)}; use int, float, str, bool, "
            "Literal, MethodChoice, and unions, tuples or mappings of them"
        )


def _bounded(value: Any, annotations: tuple[Any, ...], where: str) -> Any:
    for bounds in annotations:
        if isinstance(bounds, Bounds) and value not in bounds:
            raise UserError(f"{where}: must be {bounds}, found {value!r}")
    return value


def _shallow(value: Any, where: str) -> Any:
    """Returns a value whose type is checked later, unless it is nested too deeply for recursive functions."""
    level = [value]
    for _ in range(MAX_LEVELS):
        lists = [inner for item in level if isinstance(item, list | tuple) for inner in item]
        level = lists + [inner for item in level if isinstance(item, Mapping) for inner in item.values()]
        if not level:
            return value
    raise UserError(f"{where}: must be nested at most {MAX_LEVELS} levels deep")


def _convert_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None:
        if type(None) in kinds:
            return None
        raise UserError(f"{where}: must have a value, found nothing")
    choices = [kind for kind in kinds if kind is not type(None)]
    if any(map(is_dataclass, choices)):  # a mapping can only be meant as a record, and a record only be a mapping
        choices = [kind for kind in choices if is_dataclass(kind) == isinstance(value, Mapping)] or choices
    for kind in choices[:-1]:
        try:
            return convert(value, kind, where)
        except UserError:
            continue
    return convert(value, choices[-1], where)


def _convert_tuple(value: Any, inner: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    if inner[-1] is Ellipsis:
        return tuple(convert(item, inner[0], f"{where}[{i}]") for i, item in enumerate(items))
    if len(items) != len(inner):
        raise UserError(f"{where}: must have {len(inner)} values, found {len(items)}: {value!r}")
    return tuple(convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(items, inner, strict=True)))


def _scalar(value: Any, kind: type, where: str) -> Any:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    assert kind in names, f"{where}: recipes have no fields of type {kind}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and (isinstance(value, str) or is_number):
        return str(value)
    if kind is int and is_number and (isinstance(value, int) or value.is_integer()) and abs(value) <= MAX_INTEGER:
        return int(value)
    if kind is float and (is_number or isinstance(value, str)):
        try:
            number = float(value)  # YAML reads 1e-5 as a string: it wants 1.0e-5
        except (ValueError, OverflowError):
            number = float("nan")
        if number == number and abs(number) != float("inf"):
            return number
    raise UserError(f"{where}: must be {names[kind]}, found {value!r}")


def _method_choice(value: Any, where: str) -> MethodChoice:
    if isinstance(value, str):
        return MethodChoice(EARLIER_NAMES.get(value, value))
    content = dict(mapping(value, where))
    name = content.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{where}: must be a name, or `{{name: NAME, option: value}}`; found {value!r}")
    return MethodChoice(EARLIER_NAMES.get(name, name), _shallow(content, where))


def _record(content: Mapping[str, Any], kind: Any, where: str) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {f.name: f for f in fields(kind)}
    for key in content:
        if key not in known:
            raise UserError(unknown(where, str(key), known, "field"))
    for name, f in known.items():
        if name not in content and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{where}: the field {name} is missing")
    return kind(**{key: convert(value, hints[key], _join(where, key)) for key, value in content.items()})


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Returns the value if it is a mapping; raises a UserError otherwise."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: must be a mapping (FIELD: VALUE), found {' '.join(repr(value).split()):.80}")
    return value


def _join(where: str, key: str) -> str:
    """`recipe.yaml` and `train` -> `recipe.yaml: train`; `recipe.yaml: train` and `lr` -> `recipe.yaml: train.lr`."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"
