"""Strict YAML: plain values only, no duplicate keys, no aliases that expand without limit."""

from collections.abc import Hashable
from typing import Any

import yaml

from polytask.disk.records import MAX_INTEGER
from polytask.types import UserError

MAX_VALUES = 100_000  # a recipe has hundreds


def load_yaml(text: str, where: str) -> Any:
    """Parses YAML with plain values only: no tags, no duplicate keys, at most MAX_VALUES values."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  (a subclass of SafeLoader)
    except yaml.YAMLError as error:
        message = str(error).replace('in "<unicode string>", ', "in ")
        raise UserError(f"{where}: not valid YAML: {message}") from None
    except RecursionError:
        raise UserError(f"{where}: not valid YAML: its brackets are nested too deeply") from None


class _StrictLoader(yaml.SafeLoader):
    """Plain YAML values only; a duplicate key is an error, where PyYAML silently takes the last one."""

    def construct_document(self, node: yaml.Node) -> Any:
        if _size(node, {}) > MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES:,} values with all aliases expanded")
        return super().construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Errors in numbers and dates say where they are."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, ArithmeticError):
            raise _at(node, f"{node.value!r:.80} is not a valid {node.tag.rpartition(':')[2]}") from None
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise _at(node, "the number is too large")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *other` inserts the other mapping's keys
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _at(key_node, "a key must be a name, found a list or a mapping")
            if key in seen:
                raise _at(key_node, f"duplicate key {key!r}")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """The number of values with all aliases expanded: aliases of aliases make billions out of ten lines."""
    if known.get(id(node)) == 0:
        raise _at(node, "an alias contains itself")
    if id(node) not in known:
        known[id(node)] = 0
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for pair in inner for part in pair] if isinstance(node, yaml.MappingNode) else inner
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _at(node: yaml.Node, problem: str) -> yaml.YAMLError:
    return yaml.YAMLError(f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}: {problem}")
