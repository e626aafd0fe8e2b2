"""Converts the arguments of `predict` to examples, and splits any number of examples into chunks."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from polytask.kinds.names import LabelProblem
from polytask.kinds.options import read_options
from polytask.tasks.in_memory import kind_of
from polytask.tasks.rows import EMPTY_TEXT, row_words, words_problem
from polytask.tasks.sources.source import shortened
from polytask.types import UserError

CHUNK = 4096
"""Examples that are tokenized and sorted by length together, whatever the size of the input."""
CHUNK_CHARACTERS = 16_000_000
"""A chunk of long documents has fewer examples, to limit its memory."""

T = TypeVar("T")
Text = str | None
"""None, like an empty text, is a missing text."""


class Series(Protocol):
    """A column of a frame: a series of pandas or Polars."""

    @property
    def name(self) -> Hashable: ...

    def to_list(self) -> list[Any]: ...


Column = Series | np.ndarray[Any, Any]
"""A column of texts. A column of pyarrow has no type, and is taken too."""
Texts = Text | Sequence[Text] | Sequence[tuple[Text, ...]] | Column
"""One text, a list or column of texts, or a list of tuples of texts."""
Example = tuple[Text | tuple[str, ...], ...]
"""One or more texts; for kind choice, a text and its options; for tags of words, a text may be a tuple of words."""


def has_text(example: Example) -> bool:
    """Whether none of the example's texts is missing or empty."""
    return not any(map(words_problem, example))


def plain_texts(example: Example) -> tuple[str, ...]:
    """The texts of an example that has text; words are joined by spaces."""
    return tuple(row_words(text).text for text in example)


def examples_from(text: Texts, text2: Text | Sequence[Text] | Column, strict: bool) -> list[Example]:
    """The arguments of `predict` as examples."""
    _check_no_table(text, text2)
    text, text2 = _listed(text), _listed(text2)
    if _is_one(text) != _is_one(text2) and text2 is not None:
        raise UserError("predict: text and text2 must be two texts, or two lists; found one text and one list")
    if _is_one(text):
        rows: list[tuple[object, ...]] = [(text,) if text2 is None else (text, text2)]
    elif text2 is None:
        rows = [(item,) if _is_one(item) else tuple(item) for item in cast(Sequence[Any], text)]
    else:
        firsts, seconds = list(cast(Sequence[Text], text)), list(cast(Sequence[Text], text2))
        if len(firsts) != len(seconds):
            raise UserError(
                f"predict: text has {len(firsts):,} texts and text2 has {len(seconds):,}; both lists must have the "
                "same length"
            )
        rows = list(zip(firsts, seconds, strict=True))
    return [tuple(_text(value, number, strict) for value in row) for number, row in enumerate(rows)]


def option_examples(text: Texts, options: Any, strict: bool) -> list[Example]:
    """The arguments of `predict` as examples of kind choice: one text and a list of options, or lists of both."""
    _check_no_table(text, options)
    text, options = _listed(text), _listed(options)
    texts, lists = ([text], [options]) if _is_one(text) else (list(cast(Sequence[Any], text)), options)
    if _is_one(lists) or any(_is_one(one) for one in lists) or len(texts) != len(lists):
        raise UserError(
            "predict: kind choice takes a text and a list of options, as in predict(task, 'a text', ['one', 'two']), "
            f"or a list of texts and as many lists of options; found {len(texts):,} text(s) and {options!r:.80}"
        )
    rows = enumerate(zip(texts, lists, strict=True))
    return [with_options(_text(one, number, strict), [list(given)], _numbered(number)) for number, (one, given) in rows]


def with_options(text: Text | tuple[str, ...], values: Sequence[object], where: str) -> Example:
    """The example of a text and its options, which are a list or the values of several columns."""
    if text is None:
        return (None,)
    if isinstance(text, tuple):
        raise UserError(f"{where}: {list(text)!r:.80}: a list; expected text")
    try:
        return (text, *read_options(values))
    except LabelProblem as problem:
        raise UserError(f"{where}: {problem}") from None


def check_options(task: str, examples: Sequence[Example]) -> None:
    """Raises a UserError if an example with a text has not the options that kind choice needs."""
    for example in examples:
        if len(example) == 2 or (len(example) == 1 and example[0] is not None):
            raise UserError(
                f"predict: task {task} takes a text and two or more options (--option, or a list of options in "
                f"Python), found {example!r:.80}"
            )
        if example[0] is not None:
            with_options(example[0], example[1:], f"predict: task {task}: {example!r:.80}")


def _numbered(number: int) -> str:
    return f"predict: example {number} (counted from 0)"


def _check_no_table(*texts: object) -> None:
    """Refuses tables and dicts, of which Python iterates over the names of the columns."""
    for given in texts:
        first = given[0] if isinstance(given, list | tuple) and given else given
        if isinstance(first, Mapping) or kind_of(first):
            raise UserError(
                f"predict: expected texts, found a {type(first).__name__}; pass one column of a table, as in "
                "table['text'], or the table alone, as in predict(table, task='...')"
            )


def _listed(value: Any) -> Any:
    """A column of pyarrow as a list, because its items are not Python's."""
    return value.to_pylist() if hasattr(value, "to_pylist") else value


def _is_one(value: object) -> bool:
    """Whether the value is one text (or a missing value, such as NaN) rather than several."""
    return isinstance(value, str | bytes) or not isinstance(value, Iterable)


def _text(value: object, number: int, strict: bool) -> Text | tuple[str, ...]:
    missing = not isinstance(value, str) and str(value) == "<NA>"  # pandas.NA, which cannot be compared
    problem = EMPTY_TEXT if missing else words_problem(value)
    if problem and (strict or problem != EMPTY_TEXT):
        raise UserError(f"{_numbered(number)}: {shortened(value)!r}: {problem}")
    if isinstance(value, list | tuple) and not problem:
        return tuple(map(str, value))
    return None if problem else str(value)


# --- chunks -----------------------------------------------------------------------------------------------------------
def chunks(items: Iterable[T], characters: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits the items into lists of limited length and size."""
    chunk: list[T] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += characters(item)
        if len(chunk) >= CHUNK or size > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def num_characters(example: Example) -> int:
    """The size of an example, for `chunks`."""
    return sum(len(text or "") for text in example)
