"""Strict YAML: plain values only, no key twice, no aliases that explode."""

from collections.abc import Hashable
from typing import Any

import yaml

from polytask.disk.records import MAX_INTEGER
from polytask.types import UserError

MOST_VALUES = 100_000  # a recipe has hundreds


def load_yaml(text: str, where: str) -> Any:
    """Plain values only: no tags, no key twice in one mapping, no more than a person can have meant."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  (a subclass of SafeLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{where}: not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: not valid YAML: brackets inside brackets, too many of them") from None


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
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
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
