"""The options of a row as files write them: a list, or one column for each option. Imports no PyTorch."""

from collections.abc import Sequence

from polytask.kinds.names import LabelProblem, is_empty, is_list, parsed_list

FEWEST_OPTIONS = 2
MOST_OPTIONS = 256  # a row is encoded once for each option; a longer list is some other column


def read_options(values: Sequence[object]) -> tuple[str, ...]:
    """Returns the options of a row; raises LabelProblem if they cannot be used.

    `values` are those of the option columns, or the only item is a list. Options may be missing at the end.
    """
    items: Sequence[object] = values
    if len(values) == 1:
        items = _listed(values[0])
    while items and is_empty(items[-1]):
        items = items[:-1]
    if not FEWEST_OPTIONS <= len(items) <= MOST_OPTIONS:
        raise LabelProblem(f"{len(items)} option(s); expected {FEWEST_OPTIONS} to {MOST_OPTIONS}")
    texts = []
    for number, item in enumerate(items):
        if is_empty(item):
            raise LabelProblem(f"option {number} (counted from 0) is empty; only options at the end may be missing")
        if not isinstance(item, str | int | float):
            raise LabelProblem(f"option {number} (counted from 0) is a list or table; expected text")
        texts.append(str(item))
    keys = [text.strip() for text in texts]
    for number, key in enumerate(keys):
        if keys.index(key) < number:
            raise LabelProblem(f"options {keys.index(key)} and {number} (counted from 0) are the same text")
    return tuple(texts)


def option_index(value: object, options: Sequence[str], columns: Sequence[str] = ()) -> int:
    """Returns the index of the right option, which a label names by its text, by its column, or by its index.

    `columns` are those of the options, if each has one; a name that is a number is left to mean an index.
    """
    if is_empty(value):
        raise LabelProblem("the label is empty")
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise LabelProblem("must be the text of an option, or its index")
    if isinstance(value, str):
        keys = [option.strip() for option in options]
        if value.strip() in keys:
            return keys.index(value.strip())
        if value.strip() in columns[: len(options)] and not value.strip().isdecimal():
            return columns.index(value.strip())
    try:
        index = float(value)
    except ValueError:
        raise LabelProblem(f"not one of the row's options, and not an index from 0 to {len(options) - 1}") from None
    if not index.is_integer() or not 0 <= index < len(options):
        raise LabelProblem(f"not one of the row's options, and not an index from 0 to {len(options) - 1}")
    return int(index)


def _listed(value: object) -> Sequence[object]:
    """Returns the items of a list, or of a list that is written as JSON."""
    if isinstance(value, str) and is_list(value):
        return parsed_list(value)
    if isinstance(value, list | tuple):
        return value
    if is_empty(value):
        raise LabelProblem("no options")
    raise LabelProblem('must be a list such as ["text", "text"]')
