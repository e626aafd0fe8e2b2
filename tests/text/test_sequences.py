"""Many examples are packed, masked and sliced exactly as one example after another."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.stream import Layout, Stream
from polytask.text.filler import filler_lengths, longest_class, static_rooms
from polytask.text.masking import Masker
from polytask.text.packing import InputFormat, Packer, Part
from polytask.text.store import StoreWriter, TokenStore
from polytask.text.texts import Texts

Examples = list[tuple[npt.NDArray[np.integer], ...]]
TASKS = ("a", "b", "c", "d")
SPECIAL = (0, 1, 2, 3, 4)
FORMS = [
    InputFormat(),
    InputFormat("separate"),
    InputFormat("separate", copies=2),
    InputFormat("separate", copies=3),
    InputFormat("both"),
]


def packer(max_length: int) -> Packer:
    return Packer(TASKS, 2, 3, max_length, Masker(4, 300, SPECIAL))


def reference(parts: dict[str, Part], packer: Packer, token_budget: int | None, static_shape: bool) -> Stream:
    """What `Packer.pack` must return: token by token, as its docstring says."""
    sequences = {
        task: [one for texts in parts[task].texts for one in packer.sequences(texts, parts[task].reading)]
        for task in TASKS
        if task in parts
    }
    tokens = [sum(len(piece) for pieces, _ in own for piece in pieces) for own in sequences.values()]
    rooms = dict(zip(sequences, static_rooms(tokens), strict=True)) if static_shape else {}
    rows: list[tuple[list[int], int]] = []
    sequence_ranges, token_ranges = dict.fromkeys(TASKS, (0, 0)), dict.fromkeys(TASKS, (0, 0))

    def end() -> int:
        return sum(len(row) for row, _ in rows)

    for (task, own), count in zip(sequences.items(), tokens, strict=True):
        first, start = len(rows), end()
        rows += [(np.concatenate(pieces).tolist(), second) for pieces, second in own]
        sequence_ranges[task] = (first, len(rows))
        if static_shape:
            rows += [([0] * length, length) for length in rooms[task].filler_lengths(count)]
        token_ranges[task] = (start, end())
    if token_budget is not None:
        rows += [([0] * length, length) for length in filler_lengths(token_budget - end())]
    lengths = [len(row) for row, _ in rows]
    layout = Layout(
        torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
        tuple(lengths),
        tuple(sequence_ranges.values()),
        tuple(token_ranges.values()),
        longest_class(max(lengths)) if static_shape else None,
    )
    return Stream(
        torch.tensor([token for row, _ in rows for token in row]),
        torch.tensor([place for row, _ in rows for place in range(len(row))]),
        torch.tensor([int(place >= second) for row, second in rows for place in range(len(row))]),
        layout,
        {task: torch.tensor(parts[task].labels) for task in sequences if parts[task].labels is not None},
    )


def assert_same(one: Stream, other: Stream) -> None:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("token_ids_T", "position_ids_T", "segment_ids_T")]
    pairs += [(one.layout.cu_seqlens_S1, other.layout.cu_seqlens_S1)]
    pairs += [(one.labels[task], other.labels[task]) for task in one.labels]
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert list(one.labels) == list(other.labels)
    assert [vars(one.layout)[name] for name in ("lengths", "sequence_ranges", "token_ranges", "length_bound")] == [
        vars(other.layout)[name] for name in ("lengths", "sequence_ranges", "token_ranges", "length_bound")
    ]


def drawn_examples(data: st.DataObject, width: int, min_size: int = 1) -> Examples:
    lengths = data.draw(st.lists(st.tuples(*[st.integers(0, 40)] * width), min_size=min_size, max_size=6))
    rng = np.random.default_rng(len(lengths))
    return [tuple(rng.integers(5, 300, length).astype(np.uint16) for length in example) for example in lengths]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(5, 60), st.sampled_from(["tight", "budget", "static"]))
def test_streams_are_those_of_a_plain_loop(data: st.DataObject, max_length: int, shape: str) -> None:
    """For texts, the readings of pairs, and copies, truncated or not, of several tasks, with and without filler."""
    parts = {}
    for task in data.draw(st.lists(st.sampled_from(TASKS), min_size=1, unique=True)):
        examples = drawn_examples(data, data.draw(st.integers(1, 2)))
        form = data.draw(st.sampled_from(FORMS))
        labels = np.arange(len(examples), dtype=data.draw(st.sampled_from([np.int64, np.float32])))
        whole = packer(max_length).part(task, examples, form, labels)
        plain = Part(task, [texts * form.copies for texts in examples], form.reading, labels)
        parts[task] = whole, plain
    static, budget = shape == "static", 5000 if shape == "budget" else None
    stream = packer(max_length).pack([whole for whole, _ in parts.values()], budget, static)
    expected = reference({task: plain for task, (_, plain) in parts.items()}, packer(max_length), budget, static)
    assert_same(stream, expected)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(5, 60), st.booleans())
def test_both_readings_are_a_joined_sequence_and_two_separate_ones(
    data: st.DataObject, max_length: int, static: bool
) -> None:
    """Each example has the sequences that the other readings make of it, in this order."""
    examples = drawn_examples(data, 2)
    packing = packer(max_length)
    both = packing.pack([packing.part("b", examples, InputFormat("both"))], static_shape=static)
    expected = []
    for example in examples:
        for reading in ("joined", "separate"):
            stream = packing.pack([Part("b", [example], reading)])  # type: ignore[arg-type]
            columns = (stream.token_ids_T, stream.position_ids_T, stream.segment_ids_T)
            expected += zip(*(column.split(stream.layout.lengths) for column in columns), strict=True)
    columns = (both.token_ids_T, both.position_ids_T, both.segment_ids_T)
    found = list(zip(*(column.split(both.layout.lengths) for column in columns), strict=True))
    assert both.layout.sequence_ranges[1] == (0, 3 * len(examples)) == (0, len(expected))
    for one, other in zip(found, expected, strict=not static):  # a static shape has filler behind them
        assert all(map(torch.equal, one, other))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 2), st.sampled_from(FORMS), st.integers(5, 60))
def test_a_slice_has_the_sequences_of_its_examples(
    data: st.DataObject, width: int, form: InputFormat, max_length: int
) -> None:
    examples = drawn_examples(data, width)
    last = data.draw(st.integers(1, len(examples)))
    first = data.draw(st.integers(0, last - 1))
    packing = packer(max_length)
    sequences = packing.sequences_of(packing.part("a", examples, form))
    each = len(sequences) // len(examples)
    sliced = packing.pack([Part("a", sequences.slice(first * each, last * each))])
    assert_same(sliced, packing.pack([packing.part("a", examples[first:last], form)]))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(3, 40), st.floats(0.01, 0.99), st.booleans())
def test_masking_many_texts_is_masking_each(data: st.DataObject, max_length: int, share: float, static: bool) -> None:
    examples = [(np.where(text < 100, 1, text),) for (text,) in drawn_examples(data, 1)]  # 1 is special
    packing = packer(max_length)

    def rngs() -> list[np.random.Generator]:
        return [np.random.default_rng(n) for n in range(len(examples))]

    together = packing.part("b", examples, InputFormat(mask_share=share), rngs=rngs())
    each = Part.masked(
        "b", [packing.mask(text, share, rng) for (text,), rng in zip(examples, rngs(), strict=True)], share
    )
    assert_same(packing.pack([together], static_shape=static), packing.pack([each], static_shape=static))


@pytest.mark.parametrize("width", [1, 2])
def test_texts_of_a_store_are_gathered_in_any_order(tmp_path: Path, width: int) -> None:
    rng = np.random.default_rng(0)
    texts: Any = [tuple(rng.integers(5, 300, n % 7) for n in range(i, i + width)) for i in range(20)]
    with StoreWriter(tmp_path / "s", width=width, vocabulary=300, label_type="int") as writer:
        writer.append(texts, [0] * 20, list(range(20)))
        writer.close({})
    gathered = TokenStore.open(tmp_path / "s").gather([3, 19, 0, 3])
    assert isinstance(gathered, Texts)
    assert len(gathered) == 4
    found = [[text.tolist() for text in example] for example in gathered]
    assert found == [[text.tolist() for text in texts[i]] for i in (3, 19, 0, 3)]
    one, other = (packer(8).pack([Part("a", given)], static_shape=True) for given in (gathered, list(gathered)))
    assert_same(one, other)


def test_texts_without_any_token() -> None:
    empty = np.zeros(0, dtype=np.uint16)
    assert packer(8).pack([Part("a", [(empty,), (empty,)])]).token_ids_T.tolist() == [2, 3, 2, 3]
    assert packer(8).pack([Part("a", [(empty, empty)])]).token_ids_T.tolist() == [2, 3, 3]
    assert packer(8).pack([Part("a", []), Part("b", [(empty,)])]).layout.sequence_ranges[:2] == ((0, 0), (0, 1))
