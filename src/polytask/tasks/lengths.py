"""The number of tokens of a split's rows before truncation, and the error for rows that are too long."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from polytask.kinds.table import KINDS
from polytask.tasks.reading import open_for
from polytask.tasks.sources.source import BrokenRow
from polytask.tasks.task import Split
from polytask.text.packing import InputFormat, Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

MOST_SHOWN = 20


def text_lengths(split: Split, tokenizer: TextTokenizer) -> npt.NDArray[np.int64]:
    """Returns the number of tokens of each text: [N, W].

    The store has at most `max_tokens` tokens of a text, so longer texts are read again and counted. Texts whose words
    have labels are stored whole.
    """
    lengths_NW = split.store.lengths().copy()
    if KINDS[split.spec.kind].per_word:
        return lengths_NW
    at_limit_N = lengths_NW.max(1, initial=0) >= tokenizer.max_tokens
    if at_limit_N.any():
        for i, example in enumerate(split.examples()):
            if at_limit_N[i]:
                lengths_NW[i] = [tokenizer.count(text) for text in example.texts]
    return lengths_NW


def count_truncated(split: Split, packer: Packer, form: InputFormat) -> int:
    """Counts the rows that are longer than `max_length`, or than all windows of a text."""
    return int((packer.full_lengths(split.store.lengths(), form.reading) > packer.longest(form)).sum())


def check_lengths(splits: Iterable[tuple[Split, InputFormat]], packer: Packer, tokenizer: TextTokenizer) -> None:
    """With `truncate: error`, raises a UserError that names the rows that are too long."""
    if packer.truncate != "error":
        return
    total, rows = 0, list[BrokenRow]()
    for split, form in splits:
        found = count_truncated(split, packer, form)
        total += found
        if found and len(rows) < MOST_SHOWN:
            rows += _long_rows(split, form, packer, tokenizer)
    refuse_long(rows, total, packer.max_length)


def too_many_tokens(tokens: int, packer: Packer, form: InputFormat) -> str:
    """Says how long a row is, and with windows how long it may be."""
    most = "" if form.windows is None else f" in windows that have room for {packer.longest(form):,}"
    return f"{tokens:,} tokens{most}"


def refuse_long(rows: list[BrokenRow], total: int, max_length: int) -> None:
    """Raises a UserError that lists the first rows, if there are any."""
    if rows:
        count = "1 row is" if total == 1 else f"{total:,} rows are"
        shown = "".join(f"\n  {row}" for row in rows[:MOST_SHOWN])
        more = f"\n  ... and {total - MOST_SHOWN:,} more" if total > MOST_SHOWN else ""
        raise UserError(
            f"{count} longer than max_length ({max_length} tokens), which is an error with `truncate: error`; shorten "
            f"the texts, or train with a greater max_length, with windows, or with truncate: end or start:{shown}{more}"
        )


def _long_rows(split: Split, form: InputFormat, packer: Packer, tokenizer: TextTokenizer) -> list[BrokenRow]:
    tokens_N = packer.full_lengths(text_lengths(split, tokenizer), form.reading)
    unit, task = open_for(split.spec, split.source).unit, split.spec.name
    long = np.flatnonzero(tokens_N > packer.longest(form))[:MOST_SHOWN].tolist()
    problems = {i: f"task {task}: {too_many_tokens(int(tokens_N[i]), packer, form)}" for i in long}
    return [BrokenRow(split.source, unit, int(split.rows[i]), None, "", problem) for i, problem in problems.items()]
