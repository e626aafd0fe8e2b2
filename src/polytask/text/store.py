"""Token ids on disk: written once in batches, read as memory-mapped arrays. Knows no task and no data file.

A store is a folder: `tokens` (all ids, one text after another), `offsets` (where each text starts, and the end),
`labels`, `rows` (each example's row number in its source), `tags` (a number for each token, if words have tags),
`words` (the label of the word that starts with a token, if words have labels), and `meta.json` with the sizes. It is
written atomically.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from polytask.disk.atomic import put_in_place
from polytask.disk.hidden_folder import HiddenFolder
from polytask.text.texts import Texts
from polytask.types import NO_LABEL

FORMAT = 1
NO_WORD, UNLABELLED, FIRST_LABEL = 0, 1, 2
"""In `words`: no word starts with the token, the word has no label, or its label's number plus 2."""
LABEL_TYPES = {"int": "<i8", "float": "<f8"}
PART_EXAMPLES = 2_000
"""Examples that are copied at once."""


class DamagedStore(Exception):
    """The folder is not a complete store and must be built again."""


class TokenStore:
    """N examples of `width` texts each, as memory-mapped arrays."""

    def __init__(self, folder: Path, header: Mapping[str, Any]):
        self.folder = folder
        self.width: int = header["width"]
        self.meta: dict[str, Any] = header["meta"]
        count: int = header["examples"]
        self._tokens = _map(folder / "tokens", header["token_type"], header["tokens"])
        self._offsets = _map(folder / "offsets", "<i8", count * self.width + 1)
        self.labels = _map(folder / "labels", LABEL_TYPES[header["label_type"]], count)
        self.rows = _map(folder / "rows", "<i8", count)
        self.tags = _map(folder / "tags", "<u2", header["tokens"]) if header.get("tagged") else None
        self.words = _map(folder / "words", "<u2", header["tokens"]) if header.get("words") else None
        if self._offsets[0] != 0 or self._offsets[-1] != header["tokens"]:
            raise DamagedStore(f"{folder / 'offsets'}: does not match the number of tokens")

    @classmethod
    def open(cls, folder: Path) -> "TokenStore":
        """Opens a store; raises DamagedStore if the folder is missing, incomplete, or differs from its meta.json."""
        try:
            header = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            if header["format"] != FORMAT:
                raise DamagedStore(f"{folder}: format {header['format']}, expected {FORMAT}")
            return cls(folder, header)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedStore(f"{folder}: {error}") from error

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, i: int) -> tuple[npt.NDArray[np.integer], ...]:
        """Returns the ids of example i's texts, without special tokens."""
        return self._slices(self._tokens, i)

    def _slices(self, numbers: npt.NDArray[np.integer], i: int) -> tuple[npt.NDArray[np.integer], ...]:
        """Returns the numbers of the tokens of example i, for each text."""
        bounds = self._offsets[i * self.width : (i + 1) * self.width + 1].tolist()
        return tuple(numbers[a:b] for a, b in pairwise(bounds))

    def gather(self, indices: npt.ArrayLike) -> Texts:
        """Returns the texts of several examples, which are not copied."""
        first_N1 = np.asarray(indices, dtype=np.int64)[:, None] * self.width
        bounds = self._offsets[first_N1 + np.arange(self.width + 1)]
        starts_NW = bounds[:, :-1]
        return Texts(self._tokens, starts_NW, bounds[:, 1:] - starts_NW)

    def lengths(self) -> npt.NDArray[np.int64]:
        """Returns the number of tokens of each text: [N, width]."""
        lengths: npt.NDArray[np.int64] = np.diff(self._offsets).reshape(len(self), self.width)
        return lengths

    def word_labels(self) -> npt.NDArray[np.int64]:
        """Returns the labels of the words of each example: [N, W], with NO_LABEL where there is no label or no word."""
        assert self.words is not None
        places = np.flatnonzero(self.words)
        first = np.searchsorted(places, self._offsets)  # the first word of each example
        counts = np.diff(first)
        labels_NW = np.full((len(self), int(counts.max(initial=0))), NO_LABEL, dtype=np.int64)
        columns = np.arange(len(places)) - first[:-1].repeat(counts)
        labels_NW[np.arange(len(self)).repeat(counts), columns] = self.words[places].astype(np.int64) - FIRST_LABEL
        return labels_NW

    def write_part(self, folder: Path, indices: npt.NDArray[np.int64]) -> None:
        """Writes a store with these examples only."""
        vocabulary = 2 ** (8 * self._tokens.itemsize) - 1
        label_type: Literal["int", "float"] = "float" if self.labels.dtype.kind == "f" else "int"
        sizes = {"width": self.width, "vocabulary": vocabulary}
        has = {"tagged": self.tags is not None, "words": self.words is not None}
        with StoreWriter(folder, **sizes, label_type=label_type, **has) as writer:
            for first in range(0, len(indices), PART_EXAMPLES):
                some = indices[first : first + PART_EXAMPLES]
                texts = [self.texts(i) for i in some.tolist()]
                tags, words = (
                    [] if numbers is None else [part for i in some.tolist() for part in self._slices(numbers, i)]
                    for numbers in (self.tags, self.words)
                )
                writer.append(texts, self.labels[some].tolist(), self.rows[some].tolist(), tags, words)
            writer.close(self.meta)

    def pieces(self, max_tokens: int) -> Iterator[tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]]:
        """Yields all texts in pieces of at most `max_tokens` ids (or one longer text): the ids, and their offsets."""
        first, end = 0, len(self._offsets) - 1
        while first < end:
            start = self._offsets[first]
            last = max(first + 1, int(np.searchsorted(self._offsets, start + max_tokens, side="right")) - 1)
            yield self._tokens[start : self._offsets[last]], self._offsets[first : last + 1] - start
            first = last


class StoreWriter:
    """Appends examples to a store, which `close` puts in place. After an error, `with` leaves no files."""

    def __init__(
        self,
        folder: Path,
        *,
        width: int,
        vocabulary: int,
        label_type: Literal["int", "float"],
        tagged: bool = False,
        words: bool = False,
    ):
        self._folder = folder
        self._width = width
        self._token_type = "<u2" if vocabulary < 65536 else "<i4"
        self._label_type = label_type
        self._tagged = tagged
        self._words = words
        self._examples = 0
        self._num_tokens = 0
        self._hidden = HiddenFolder(folder)
        names = ("tokens", "offsets", "labels", "rows", *(["tags"] if tagged else []), *(["words"] if words else []))
        self._files = {name: (self._hidden.path / name).open("wb") for name in names}
        self._files["offsets"].write(np.zeros(1, "<i8").tobytes())

    def append(
        self,
        texts: Sequence[tuple[npt.NDArray[np.integer], ...]],
        labels: Sequence[int | float],
        rows: Sequence[int],
        tags: Sequence[npt.NDArray[np.integer]] = (),
        words: Sequence[npt.NDArray[np.integer]] = (),
    ) -> None:
        """Appends examples: the ids of their texts, their labels as numbers, and their row numbers in the source.

        `tags` has the numbers of the tags of each text, one text after another, if the store is tagged; `words` has
        those of its words' labels in the same way.
        """
        assert len(texts) == len(labels) == len(rows)
        assert all(len(example) == self._width for example in texts)
        if not texts:
            return
        flat = [text for example in texts for text in example]
        ends = self._num_tokens + np.cumsum([len(text) for text in flat])
        self._files["tokens"].write(np.concatenate(flat).astype(self._token_type).tobytes())
        self._files["offsets"].write(ends.astype("<i8").tobytes())
        self._files["labels"].write(np.array(labels, LABEL_TYPES[self._label_type]).tobytes())
        self._files["rows"].write(np.array(rows, "<i8").tobytes())
        for name, numbers in (("tags", tags), ("words", words)):
            if name in self._files:
                assert [len(text) for text in numbers] == [len(text) for text in flat]
                self._files[name].write(np.concatenate(numbers).astype("<u2").tobytes())
        self._examples += len(texts)
        self._num_tokens = int(ends[-1])

    def close(self, meta: Mapping[str, Any]) -> None:
        """Flushes everything to disk and renames the folder; a complete store that already exists is kept."""
        header = {
            "format": FORMAT,
            "examples": self._examples,
            "width": self._width,
            "tokens": self._num_tokens,
            "token_type": self._token_type,
            "label_type": self._label_type,
            **({"tagged": True} if self._tagged else {}),
            **({"words": True} if self._words else {}),
            "meta": dict(meta),
        }
        for file in self._files.values():
            file.close()
        (self._hidden.path / "meta.json").write_text(json.dumps(header, indent=1), encoding="utf-8")
        put_in_place(self._hidden, self._folder, keep_if=_is_complete)

    def abort(self) -> None:
        """Deletes the unfinished store."""
        for file in self._files.values():
            file.close()
        self._hidden.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()  # does nothing after `close`, which has moved the folder


def _map(file: Path, dtype: str, count: int) -> npt.NDArray[Any]:
    expected = count * np.dtype(dtype).itemsize
    if file.stat().st_size != expected:
        raise DamagedStore(f"{file}: {file.stat().st_size} bytes, expected {expected}")
    if count == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    # A plain array over the map: slices of np.memmap are several times slower.
    return np.asarray(np.memmap(file, dtype, mode="r", shape=(count,)))


def _is_complete(folder: Path) -> bool:
    try:
        TokenStore.open(folder)
    except DamagedStore:
        return False
    return True
