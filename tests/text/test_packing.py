"""Packing keeps every token of every example, ordered by task, with the right borders, segments and fillers."""

import string
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from polytask.kernels.static_tensors import shape_of
from polytask.settings import Truncate
from polytask.stream import Encoded, Reading, Stream
from polytask.text.filler import FILLER_LENGTH, StaticShape, filler_lengths, size_class, static_rooms
from polytask.text.masking import Masker
from polytask.text.packing import InputFormat, Packer, Part, batches_by_length
from polytask.text.templates import PairForm
from polytask.text.texts import Texts

CLS, SEP = 101, 102
WORDS = string.ascii_lowercase[:20]


READINGS: list[Reading] = ["joined", "separate", "both", "options"]


def lengths_and_reading(most: int = 40) -> st.SearchStrategy[tuple[list[int], Reading]]:
    """The numbers of tokens of one to four texts, and a reading of them; options need two texts."""
    return st.lists(st.integers(0, most), min_size=1, max_size=4).flatmap(
        lambda lengths: st.tuples(st.just(lengths), st.sampled_from(READINGS if len(lengths) > 1 else READINGS[:3]))
    )


def packer(max_length: int = 16) -> Packer:
    return Packer(("a", "b", "c"), CLS, SEP, max_length)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint16)


def test_single_texts_and_the_readings_of_pairs() -> None:
    single = list(packer().sequences((ids(1, 2),), "joined"))
    pair = list(packer().sequences((ids(1), ids(2, 3)), "joined"))
    separate = list(packer().sequences((ids(1), ids(2, 3)), "separate"))
    both = list(packer().sequences((ids(1), ids(2, 3)), "both"))
    assert [(np.concatenate(s).tolist(), start) for s, start in single] == [([CLS, 1, 2, SEP], 4)]
    assert [(np.concatenate(s).tolist(), start) for s, start in pair] == [([CLS, 1, SEP, 2, 3, SEP], 3)]
    assert [np.concatenate(s).tolist() for s, _ in separate] == [[CLS, 1, SEP], [CLS, 2, 3, SEP]]
    assert [(np.concatenate(s).tolist(), start) for s, start in both] == [
        ([CLS, 1, SEP, 2, 3, SEP], 3),
        ([CLS, 1, SEP], 3),
        ([CLS, 2, 3, SEP], 4),
    ]


def test_a_stream_is_ordered_by_task_with_its_ranges() -> None:
    parts = [
        Part("c", [(ids(7), ids(8))], labels=np.array([1.0], dtype=np.float32)),
        Part("a", [(ids(1, 2),), (ids(),)], labels=np.array([0, 4])),
    ]
    stream = packer().pack(parts)
    assert stream.token_ids_T.tolist() == [CLS, 1, 2, SEP, CLS, SEP, CLS, 7, SEP, 8, SEP]
    assert stream.position_ids_T.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]
    assert stream.segment_ids_T.tolist() == [0] * 9 + [1, 1]
    assert stream.layout.lengths == (4, 2, 5)
    assert stream.layout.cu_seqlens_S1.tolist() == [0, 4, 6, 11]
    assert stream.layout.sequence_ranges == ((0, 2), (0, 0), (2, 3))
    assert stream.layout.token_ranges == ((0, 6), (0, 0), (6, 11))
    assert stream.labels["a"].tolist() == [0, 4]
    assert stream.labels["c"].dtype == torch.float32


@pytest.mark.parametrize("budget", [4, 5, 20, 21, 100])
def test_a_budget_is_filled_exactly_and_fillers_belong_to_no_task(budget: int) -> None:
    stream = packer().pack([Part("b", [(ids(1, 2),)])], token_budget=budget)
    assert len(stream.token_ids_T) == budget == sum(stream.layout.lengths)
    assert stream.layout.sequence_ranges == ((0, 0), (0, 1), (0, 0))
    assert stream.layout.token_ranges[1] == (0, 4)
    assert max(stream.layout.lengths) <= FILLER_LENGTH
    assert stream.segment_ids_T.sum() == 0


def test_a_stream_larger_than_its_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds its token budget by 1 tokens"):
        packer().pack([Part("b", [(ids(1, 2),)])], token_budget=3)
    assert filler_lengths(0) == []


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    """Its ids 5 to 24 are the words a to t."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return BertTokenizerFast.from_pretrained(folder)


@settings(max_examples=300)
@given(st.integers(0, 20), st.integers(0, 20), st.integers(4, 44))
@example(9, 9, 12)  # room for 9: a tie, the second text keeps the odd token
@example(10, 9, 12)  # the first text is longer and keeps it
@example(9, 10, 12)
@example(5, 4, 12)  # both fit
@example(5, 5, 12)
@example(20, 0, 12)
@example(0, 20, 12)
@example(0, 0, 4)
@pytest.mark.parametrize("truncate", ["end", "start"])
def test_pairs_are_cut_as_hugging_face_cuts_them(
    hugging_face: BertTokenizerFast, truncate: Truncate, a: int, b: int, max_length: int
) -> None:
    hugging_face.truncation_side = "left" if truncate == "start" else "right"
    texts = " ".join(WORDS[:a]), " ".join(reversed(WORDS[20 - b :]))
    # Lists, because a single empty string as the second text counts as no second text there.
    theirs = hugging_face([texts[0]], [texts[1]], truncation="longest_first", max_length=max_length)
    packer = Packer(("t",), 2, 3, max_length, truncate=truncate)
    example = np.arange(5, 5 + a), np.arange(24, 24 - b, -1)
    stream = packer.pack([Part("t", [example])])
    ((pieces, _),) = packer.sequences(example, "joined")
    assert np.concatenate(pieces).tolist() == stream.token_ids_T.tolist()
    assert stream.token_ids_T.tolist() == theirs["input_ids"][0]
    assert stream.segment_ids_T.tolist() == theirs["token_type_ids"][0]


@given(st.lists(st.integers(0, 30), min_size=2, max_size=5), st.integers(6, 60))
def test_the_longest_text_is_cut_first(lengths: list[int], max_length: int) -> None:
    """One token of the longest text after another; of equally long ones, that which was shorter, or else the first."""
    kept = list(lengths)
    while sum(kept) > max_length - 1 - len(lengths):
        kept[min(range(len(kept)), key=lambda i: (-kept[i], lengths[i], i))] -= 1
    texts = tuple(np.full(length, 7 + i) for i, length in enumerate(lengths))
    ((pieces, second),) = packer(max_length).sequences(texts, "joined")
    expected = [CLS, *(token for i, length in enumerate(kept) for token in [*[7 + i] * length, SEP])]
    assert np.concatenate(pieces).tolist() == expected
    assert second == kept[0] + 2


def test_texts_and_options_of_other_tokenizers() -> None:
    roberta = Packer(("t",), CLS, SEP, 32, pair=PairForm(2, second_segment=False))
    texts = ids(1, 2), ids(3), ids(4, 5)
    three = roberta.pack([Part("t", [texts])])
    assert three.token_ids_T.tolist() == [CLS, 1, 2, SEP, SEP, 3, SEP, SEP, 4, 5, SEP]
    assert three.segment_ids_T.sum() == 0
    assert roberta.full_lengths(np.array([[2, 1, 2]]), "joined").tolist() == [11]
    options = roberta.pack([Part("t", [texts, (ids(6), ids(7), ids())], "options")])
    assert options.token_ids_T.tolist() == [
        *(CLS, 1, 2, SEP, SEP, 3, SEP),
        *(CLS, 1, 2, SEP, SEP, 4, 5, SEP),
        *(CLS, 6, SEP, SEP, 7, SEP),
        *(CLS, SEP),
    ]
    assert options.layout.options == (2,)
    assert roberta.full_lengths(np.array([[2, 1, 2], [1, 1, 0]]), "options").tolist() == [8, 6]


def test_the_options_of_a_stream_are_in_its_layout() -> None:
    choice = Part("b", [(ids(1), ids(2), ids(3), ids()), (ids(4), ids(5), ids(), ids())], "options")
    stream = packer().pack([Part("a", [(ids(9),)]), choice])
    assert stream.layout.options == (1, 3, 1)
    assert stream.layout.sequence_ranges == ((0, 1), (1, 7), (0, 0))
    encoded = Encoded(torch.zeros(len(stream.token_ids_T), 2), stream.layout, 1, torch.tanh)
    assert encoded.given_options().tolist() == [[True, True, False], [True, False, False]]
    assert packer().pack([Part("a", [(ids(9),)])]).layout.options == ()
    static = packer().pack([choice], static_shape=True)
    assert Encoded(torch.zeros(9, 2), static.layout, 1, torch.tanh).given_options().sum() == 3


@given(lengths_and_reading(), st.integers(5, 30))
def test_the_start_is_cut_in_every_reading(read: tuple[list[int], Reading], max_length: int) -> None:
    """A text that is cut at its start is the reversed text, cut at its end and reversed."""
    lengths, reading = read
    texts = tuple(np.arange(1, length + 1) for length in lengths)
    turned = tuple(text[::-1] for text in texts)
    start, end = (Packer(("t",), CLS, SEP, max_length, truncate=truncate) for truncate in ("start", "end"))
    found = [piece.tolist() for pieces, _ in start.sequences(texts, reading) for piece in pieces]
    assert found == [piece.tolist()[::-1] for pieces, _ in end.sequences(turned, reading) for piece in pieces]
    stream = start.pack([Part("t", [texts, texts], reading)])
    assert stream.token_ids_T.tolist() == [token for piece in found for token in piece] * 2


@given(lengths_and_reading(), st.integers(5, 30))
def test_an_example_is_truncated_if_its_full_length_is_too_long(
    read: tuple[list[int], Reading], max_length: int
) -> None:
    lengths, reading = read
    texts = tuple(np.ones(length, dtype=np.int64) for length in lengths)
    whole = [sum(map(len, pieces)) for pieces, _ in packer(10**6).sequences(texts, reading)]
    kept = [sum(map(len, pieces)) for pieces, _ in packer(max_length).sequences(texts, reading)]
    (length,) = packer(max_length).full_lengths(np.array([lengths]), reading).tolist()
    assert length == max(whole)
    assert (length > max_length) == (kept != whole)


def test_a_masked_text_is_cut_at_its_start() -> None:
    masker = Masker(4, 50, (0, 1, 2, 3, 4))
    cut = Packer(("t",), 2, 3, 7, masker, truncate="start")
    text, rng = np.arange(10, 30), np.random.default_rng
    one = cut.mask(text, 0.4, rng(0))
    many = cut.part("t", [(text,)], InputFormat(mask_share=0.4), rngs=[rng(0)])
    assert np.where(one.labels == -100, one.ids, one.labels).tolist() == [25, 26, 27, 28, 29]
    assert isinstance(many.texts, Texts)
    assert many.texts.ids.tolist() == one.ids.tolist()


def test_a_second_text_without_tokens_is_an_empty_second_segment(hugging_face: BertTokenizerFast) -> None:
    for theirs in (hugging_face("a b", "\u200b"), hugging_face._tokenizer.encode("a b", "")):
        ids, segments = (
            (theirs["input_ids"], theirs["token_type_ids"])
            if isinstance(theirs, Mapping)
            else (theirs.ids, theirs.type_ids)
        )
        stream = Packer(("t",), 2, 3, 8).pack([Part("t", [(np.array([5, 6]), np.array([], int))])])
        assert stream.token_ids_T.tolist() == ids == [2, 5, 6, 3, 3]
        assert stream.segment_ids_T.tolist() == segments == [0, 0, 0, 0, 1]


@given(lengths_and_reading(), st.integers(5, 30))
def test_length_is_what_packing_takes(read: tuple[list[int], Reading], max_length: int) -> None:
    lengths, reading = read
    texts = tuple(np.ones(length, dtype=np.int64) for length in lengths)
    sequences = [np.concatenate(sequence) for sequence, _ in packer(max_length).sequences(texts, reading)]
    assert [sum(map(len, sequences))] == packer(max_length).lengths(np.array([lengths]), InputFormat(reading)).tolist()
    assert all(len(sequence) <= max_length for sequence in sequences)


@given(
    st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[st.integers(0, 30)] * width), min_size=1, max_size=8)),
    st.sampled_from(READINGS),
    st.integers(5, 40),
)
def test_many_examples_are_packed_as_each_of_them(
    lengths: list[tuple[int, ...]], reading: Reading, max_length: int
) -> None:
    """Truncation included."""
    assume(reading != "options" or len(lengths[0]) > 1)
    rng = np.random.default_rng(0)
    texts = [tuple(rng.integers(5, 99, n).astype(np.uint16) for n in example) for example in lengths]
    stream = packer(max_length).pack([Part("b", texts, reading)])
    each = [sequence for example in texts for sequence in packer(max_length).sequences(example, reading)]
    assert stream.token_ids_T.tolist() == [token for pieces, _ in each for piece in pieces for token in piece.tolist()]
    assert stream.layout.lengths == tuple(sum(map(len, pieces)) for pieces, _ in each)
    segments = [int(place >= second) for pieces, second in each for place in range(sum(map(len, pieces)))]
    assert stream.segment_ids_T.tolist() == segments
    per_example = np.reshape(stream.layout.lengths, (len(texts), -1)).sum(1)
    assert packer(max_length).lengths(np.array(lengths), InputFormat(reading)).tolist() == per_example.tolist()


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 100))
def test_batches_hold_every_example_once_inside_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(batches_by_length(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[i] for i in batch) <= budget
        assert [lengths[i] for i in batch] == sorted((lengths[i] for i in batch), reverse=True)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(0, 60))
def test_static_streams_of_one_size_class_have_the_same_shapes(lengths: list[int], other: int) -> None:
    """For any texts, if each task has as many and their tokens are in the same size class."""

    def static(lengths: list[int]) -> Stream:
        parts = [Part("a", [(np.ones(n, dtype=np.uint16),) for n in lengths]), Part("c", [(ids(1), ids(2, 3))])]
        return packer(64).pack(parts, static_shape=True)

    one, two = static(lengths), static([other, *lengths[1:]])
    real = sum(n + 2 for n in lengths)
    first, last = one.layout.token_ranges[0]
    assert (first, last) == (0, size_class(real, tasks=2))
    assert real <= last <= max(64, real * 1.25 + 1)
    assert sum(one.layout.lengths) == len(one.token_ids_T) == int(one.layout.cu_seqlens_S1[-1])
    assert one.layout.sequence_ranges[0] == (0, len(lengths))
    assert one.layout.real_tokens == real + 6
    if one.layout.token_ranges == two.layout.token_ranges:
        assert one.layout.cu_seqlens_S1.shape == two.layout.cu_seqlens_S1.shape
        assert one.layout.sequence_ranges == two.layout.sequence_ranges
        assert one.layout.max_length == two.layout.max_length
    start = one.layout.token_ranges[2][0]
    assert one.token_ids_T[start : start + 6].tolist() == [CLS, 1, SEP, 2, 3, SEP]
    assert one.position_ids_T[start : start + 6].tolist() == list(range(6))
    assert max(one.layout.lengths[len(lengths) : one.layout.sequence_ranges[2][0]], default=0) <= FILLER_LENGTH


@given(st.lists(st.tuples(*[st.integers(0, 60)] * 2), min_size=1, max_size=12), st.integers(0, 60))
def test_static_streams_of_three_sequences_per_pair(lengths: list[tuple[int, int]], other: int) -> None:
    def static(lengths: list[tuple[int, int]]) -> Stream:
        texts = [tuple(np.ones(n, dtype=np.uint16) for n in pair) for pair in lengths]
        return packer(64).pack([Part("a", texts, "both"), Part("c", [(ids(1),)])], static_shape=True)

    one, two = static(lengths), static([(other, lengths[0][1]), *lengths[1:]])
    assert one.layout.sequence_ranges[0] == (0, 3 * len(lengths))
    assert one.layout.real_tokens == packer(64).lengths(np.array(lengths), InputFormat("both")).sum() + 3
    assert one.layout.token_ranges[0] == (0, size_class(one.layout.real_tokens - 3, tasks=2))
    if one.layout.token_ranges == two.layout.token_ranges:
        assert one.token_ids_T.shape == two.token_ids_T.shape
        assert one.layout.cu_seqlens_S1.shape == two.layout.cu_seqlens_S1.shape
        assert one.layout.sequence_ranges == two.layout.sequence_ranges


@pytest.mark.parametrize(("tasks", "wasted"), [(1, 1 / 8), (2, 1 / 4), (3, 1 / 2), (9, 1 / 8)])
def test_size_classes_are_few_and_waste_little(tasks: int, wasted: float) -> None:
    rooms = {n: static_rooms([n] * tasks)[0] for n in range(1, 5000)}
    fillers = {n: room.filler_lengths(n) for n, room in rooms.items()}
    assert all(n + sum(fillers[n]) == room.tokens for n, room in rooms.items())
    assert all(sum(filler) <= max(64, wasted * n) for n, filler in fillers.items())
    assert all(len(filler) == rooms[n].fillers for n, filler in fillers.items())
    assert len(set(rooms.values())) == len({room.tokens for room in rooms.values()}) <= 7 / wasted + 2


def test_large_steps_waste_less_and_have_few_sizes() -> None:
    for tokens, wasted in ((5_000, 1 / 16), (10_000, 1 / 32), (16_400, 1 / 32), (100_000, 1 / 32)):
        # As many tokens as texts of 29 on average, deviation 24, come to in one step out of twenty or fewer.
        spread = int(2 * 24 * (tokens / 29) ** 0.5)
        sizes = {n: size_class(n) for n in range(tokens - spread, tokens + spread)}
        assert all(n <= size <= n * (1 + wasted) for n, size in sizes.items())
        assert len(set(sizes.values())) <= 10


def test_many_tasks_have_as_many_tokens_each() -> None:
    tasks = tuple("abcde")
    texts = {task: [(ids(*range(9 * at + 1)),)] for at, task in enumerate(tasks)}
    layout = (
        Packer(tasks, CLS, SEP, 64).pack([Part(t, x) for t, x in texts.items() if t != "b"], static_shape=True).layout
    )
    assert layout.equal_tasks == (0, 2, 3, 4)
    assert [last - first for first, last in layout.token_ranges] == [64, 0, 64, 64, 64]
    assert len(layout.lengths) == 4 + 4 * 4


def test_parts_of_a_step_have_one_shape_whatever_their_texts() -> None:
    shape = StaticShape.of({"a": 90, "c": 40}, longest=30)

    def packed(texts: list[tuple[npt.NDArray[np.int64], ...]]) -> Stream:
        return packer(64).pack([Part("a", texts), Part("c", [(ids(1),)])], static_shape=shape)

    one, other = packed([(ids(*range(1, 29)),)] * 3), packed([(ids(1),), (ids(2),), (ids(3),)])
    assert shape_of(one) == shape_of(other)
    assert one.layout.length_bound == shape.length_bound
    assert one.layout.real_tokens == 3 * 30 + 3
    assert other.layout.real_tokens == 4 * 3
    assert [*other.layout.lengths[:3]] == [3, 3, 3]
    assert sum(other.layout.lengths) == len(other.token_ids_T)
