"""Plain YAML and JSON values -> typed records, strictly: every mistake is told with the place it stands at.

Knows types and their names; knows no recipe and no method.
"""

import difflib
import json
import types
import typing
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml

from polytask.types import Bounds, Swap, UserError

MOST_VALUES = 100_000  # a recipe has hundreds
MOST_BYTES = 2**20  # of a recipe: PyYAML needs seconds for a megabyte
MOST_JSON_BYTES = 2**26  # of a JSON file, or of one line of a JSONL file
MOST_LEVELS = 20
LARGEST = 2**63  # no setting is larger, and Python writes no number of thousands of digits


def load_yaml(text: str, where: str) -> Any:
    """Plain values only: no tags, no key twice in one mapping, no more than a person can have meant."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  (a subclass of SafeLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: not valid YAML: brackets inside brackets, too many of them") from None


def read_text(path: Path, what: str, most_bytes: int = MOST_BYTES) -> str:
    """A small text file that people write. It is read up to a limit, so that /dev/zero cannot fill the memory."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise UserError(f"{path}: the {what} is larger than {most_bytes:,} bytes, which is the limit")
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise UserError(f"{path}: the {what} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: the {what} is not UTF-8 text (byte {error.start})") from None


def parse_json(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # includes bytes that are not UTF-8
        raise UserError(f"{where} is not valid JSON: {error}") from None
    except RecursionError:
        raise UserError(f"{where} is not valid JSON: its brackets are nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    content = parse_json(read_text(path, "file", MOST_JSON_BYTES), str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a JSON object, found {type(content).__name__}")
    return content


def read_json_lines(path: Path, containing: bytes = b"") -> Iterator[dict[str, Any]]:
    """The JSON object in each line of a file that contains these bytes.

    A last line without its line end is still being written, and left out.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while (line := file.readline(MOST_JSON_BYTES)).endswith(b"\n"):
                number += 1
                if containing not in line:
                    continue
                content = parse_json(line, f"{path}, line {number}")
                if not isinstance(content, dict):
                    raise UserError(f"{path}, line {number} is not a JSON object, found {type(content).__name__}")
                yield content
            if len(line) == MOST_JSON_BYTES:
                raise UserError(f"{path}, line {number + 1} is longer than {MOST_JSON_BYTES:,} bytes")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def convert(value: Any, kind: Any, where: str) -> Any:
    """`value`, as YAML gives it, as the type `kind`; or a UserError that says where it stood and what was expected."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return _shallow(value, where)
    if origin is Annotated:
        return _bounded(convert(value, inner[0], where), inner[1:], where)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, inner, where)
    if origin is Literal:
        if value in inner:
            return value
        raise UserError(f"{where}: {value!r} is not one of: {', '.join(map(str, inner))}")
    if kind is Swap:
        return _swap(value, where)
    if is_dataclass(kind):
        return _record(mapping(value, where), kind, where)
    if origin is tuple:
        return _convert_tuple(value, inner, where)
    if origin in (Mapping, dict):
        return {str(k): convert(v, inner[1], _inside(where, str(k))) for k, v in mapping(value, where).items()}
    return _scalar(value, kind, where)


def _bounded(value: Any, annotations: tuple[Any, ...], where: str) -> Any:
    for bounds in annotations:
        if isinstance(bounds, Bounds) and value not in bounds:
            raise UserError(f"{where}: must be {bounds}, found {value!r}")
    return value


def _shallow(value: Any, where: str) -> Any:
    """A value whose type is checked later, if it is not nested so deeply that later steps could not follow it."""
    level = [value]
    for _ in range(MOST_LEVELS):
        lists = [inner for one in level if isinstance(one, list | tuple) for inner in one]
        level = lists + [inner for one in level if isinstance(one, Mapping) for inner in one.values()]
        if not level:
            return value
    raise UserError(f"{where}: nested more than {MOST_LEVELS} levels deep")


def _convert_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None:
        if type(None) in kinds:
            return None
        raise UserError(f"{where}: a value is needed, found nothing")
    choices = [kind for kind in kinds if kind is not type(None)]
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
        raise UserError(f"{where}: {len(inner)} values are needed, found {len(items)}: {value!r}")
    return tuple(convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(items, inner, strict=True)))


def _scalar(value: Any, kind: type, where: str) -> Any:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    assert kind in names, f"{where}: recipes hold no {kind}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and (isinstance(value, str) or is_number):
        return str(value)
    if kind is int and is_number and (isinstance(value, int) or value.is_integer()) and abs(value) <= LARGEST:
        return int(value)
    if kind is float and (is_number or isinstance(value, str)):
        try:
            number = float(value)  # YAML reads 1e-5 as text: it wants 1.0e-5
        except (ValueError, OverflowError):
            number = float("nan")
        if number == number and abs(number) != float("inf"):
            return number
    raise UserError(f"{where}: {names[kind]} is needed, found {value!r}")


def _swap(value: Any, where: str) -> Swap:
    if isinstance(value, str):
        return Swap(value)
    content = dict(mapping(value, where))
    name = content.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{where}: a method is given by its name, as `{{name: NAME, option: value}}`; found {value!r}")
    return Swap(name, _shallow(content, where))


def _record(content: Mapping[str, Any], kind: Any, where: str) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {f.name: f for f in fields(kind)}
    for key in content:
        if key not in known:
            raise UserError(unknown(where, str(key), known, "field"))
    for name, f in known.items():
        if name not in content and f.default is MISSING and f.default_factory is MISSING:
            raise UserError(f"{where}: the field {name} is missing")
    return kind(**{key: convert(value, hints[key], _inside(where, key)) for key, value in content.items()})


def unknown(where: str, name: str, known: Iterable[str], what: str) -> str:
    """The message for a name that is not in a table: the nearest one, and all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{where}: there is no {what} {name!r}{hint}. Valid: {', '.join(known) or 'none'}"


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it is fields."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: fields are needed here, found {value!r}")
    return value


def _inside(where: str, key: str) -> str:
    """`recipe.yaml` and `train` -> `recipe.yaml: train`; `recipe.yaml: train` and `lr` -> `recipe.yaml: train.lr`."""
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


class _StrictLoader(yaml.SafeLoader):
    """Plain YAML values only; a key that stands twice in one mapping is an error, not silently the last one."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _size(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES:,} values, each alias counted as what it stands for")
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """What is written as a number or a date, and is none, is an error with its place."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, ArithmeticError):
            raise _at(node, f"{node.value!r:.80} is no {node.tag.rpartition(':')[2]}") from None
        if isinstance(value, int) and abs(value) > LARGEST:
            raise _at(node, "a number too large")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *other` puts in what stands there
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _at(key_node, "a name is needed here, found a list or fields")
            if key in seen:
                raise yaml.YAMLError(
                    f"the key {key!r} stands twice, the second time in line {key_node.start_mark.line + 1}"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values there are when every alias is written out; aliases of aliases make billions out of ten lines."""
    if known.get(id(node)) == 0:
        raise _at(node, "an alias inside of what it stands for")
    if id(node) not in known:
        known[id(node)] = 0
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for pair in inner for part in pair] if isinstance(node, yaml.MappingNode) else inner
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _at(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}: {problem}")
