"""The order of training examples: every example once per epoch, resumable at any point, determined by the seed."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch

from polytask.stream import Stream
from polytask.text.masking import Masker
from polytask.text.packing import InputFormat, Packer
from polytask.text.texts import Texts
from polytask.training.feed import Feed
from polytask.types import Draw


class Few:
    """Examples whose only token is their own number."""

    def __init__(self, count: int) -> None:
        self.labels = np.arange(count, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return (np.array([10 + index]),)


def feed(seed: int = 0) -> Feed:
    return Feed({"a": Few(7), "b": Few(5)}, Packer(("a", "b"), 2, 3, 8), seed)


def test_each_example_once_per_epoch_also_when_batches_cross_its_end() -> None:
    under_test = feed()
    indices = [i for _ in range(7) for i in under_test.next_indices(Draw("a", 3))]
    passes = [indices[0:7], indices[7:14], indices[14:21]]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) > 1
    assert Counter(indices) == dict.fromkeys(range(7), 3)


def test_a_batch_larger_than_the_task() -> None:
    assert Counter(feed().next_indices(Draw("b", 10))) == dict.fromkeys(range(5), 2)


def test_the_state_is_enough_to_resume() -> None:
    straight, stopped = feed(), feed()
    for under_test in (straight, stopped):
        under_test.next_indices(Draw("a", 4))
        under_test.next_indices(Draw("b", 2))
    resumed = feed()
    resumed.load_state_dict(stopped.state_dict())
    for task in ("a", "b", "a"):
        assert resumed.next_indices(Draw(task, 6)) == straight.next_indices(Draw(task, 6))


def test_labels_stay_with_their_texts_and_tasks_are_sorted() -> None:
    stream = feed().next_batch([Draw("b", 3), Draw("a", 4)]).together
    assert stream.layout.sequence_ranges == ((0, 4), (4, 7))
    words = stream.token_ids_T[stream.token_ids_T >= 10] - 10
    assert words.tolist() == [*stream.labels["a"].tolist(), *stream.labels["b"].tolist()]


def test_seed_changes_the_order() -> None:
    assert feed(0).next_indices(Draw("a", 7)) != feed(1).next_indices(Draw("a", 7))


class Long(Few):
    """Examples of fifty tokens, all the example's own number."""

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return (np.full(50, 10 + index),)


def masked_feed(seed: int = 0) -> Feed:
    packer = Packer(("a", "b"), 2, 3, 64, Masker(4, 60, (0, 1, 2, 3, 4)))
    formats = {"a": InputFormat(mask_share=0.15), "b": InputFormat("separate", copies=2)}
    return Feed({"a": Long(7), "b": Long(5)}, packer, seed, formats=formats)


def masked_positions(stream: Stream) -> list[list[int]]:
    """The positions of masked tokens, for each text of the masked task."""
    places = stream.labels["a"][0]
    texts = int(stream.layout.sequence_ranges[0][1] - stream.layout.sequence_ranges[0][0])
    return [(places[places // 52 == n] % 52).tolist() for n in range(texts)]


def test_masked_tokens_are_the_labels_of_a_masked_task() -> None:
    stream = masked_feed().next_batch([Draw("b", 2), Draw("a", 3)]).together
    first, last = stream.layout.token_ranges[0]
    (places, ids), seen = stream.labels["a"], stream.token_ids_T[first:last]
    assert len(places) == 3 * round(0.15 * 50)
    assert (seen[places] == 4).sum() > 12  # 80 % of 24 are [MASK]
    assert (seen == 4).sum() == (seen[places] == 4).sum()
    numbers = seen.view(3, 52)[:, 1:-1].mode().values
    assert torch.equal(ids, numbers[places // 52])


def test_masked_tokens_change_from_epoch_to_epoch_but_not_with_the_batches() -> None:
    one, three = masked_feed(), masked_feed()
    whole = masked_positions(one.next_batch([Draw("a", 21)]).together)
    pieces = [place for _ in range(7) for place in masked_positions(three.next_batch([Draw("a", 3)]).together)]
    assert whole == pieces
    assert len({tuple(place) for place in whole}) == 21  # every example in every epoch
    resumed = masked_feed()
    resumed.load_state_dict({"given": {"a": 14, "b": 0}, "memory": None})
    assert masked_positions(resumed.next_batch([Draw("a", 7)]).together) == whole[14:]
    assert masked_positions(masked_feed(1).next_batch([Draw("a", 21)]).together) != whole


def test_copies_are_sequences_side_by_side() -> None:
    stream = masked_feed().next_batch([Draw("b", 3)]).together
    rows = stream.token_ids_T.view(-1, 52)
    assert len(rows) == 6
    assert torch.equal(rows[0::2], rows[1::2])
    assert len(stream.labels["b"]) == 3


class Pairs(Long):
    """Pairs of texts of different lengths."""

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return np.full(index % 5, 10 + index), np.full(1 + index % 3, 20 + index)


class Gathered(Pairs):
    """The same, several at once."""

    def gather(self, indices: npt.ArrayLike) -> Texts:
        return Texts.of([self.tokens(i) for i in np.asarray(indices).tolist()])


@pytest.mark.parametrize("ahead", [1, 4, 1000])
@pytest.mark.parametrize("form", [InputFormat(), InputFormat("separate", copies=2), InputFormat("both")])
def test_batches_have_the_examples_of_the_order(monkeypatch: pytest.MonkeyPatch, ahead: int, form: InputFormat) -> None:
    """However many are packed ahead, across the ends of epochs, and after the feed was set back."""
    monkeypatch.setattr("polytask.training.feed.AHEAD", ahead)
    packer, examples = Packer(("a", "b"), 2, 3, 8), {"a": Gathered(11), "b": Pairs(7)}
    under_test, orders = (Feed(examples, packer, 4, formats=dict.fromkeys("ab", form)) for _ in range(2))
    for number in range(40):
        if number == 25:
            for one in (under_test, orders):
                one.load_state_dict({"given": {"a": 13, "b": 2}, "memory": None})
        draws = [Draw("a", 3), Draw("b", 1 + number % 3)][number % 2 :]
        static = number % 3 == 0
        stream = under_test.next_batch(draws, static_shape=static).together
        indices = {draw.task: orders.next_indices(draw) for draw in draws}
        parts = [
            packer.part(task, [examples[task].tokens(i) for i in own], form, examples[task].labels[own])
            for task, own in indices.items()
        ]
        expected = packer.pack(parts, static_shape=static)
        assert stream.token_ids_T.tolist() == expected.token_ids_T.tolist()
        assert stream.position_ids_T.tolist() == expected.position_ids_T.tolist()
        assert stream.segment_ids_T.tolist() == expected.segment_ids_T.tolist()
        assert vars(stream.layout)["lengths"] == expected.layout.lengths
        assert {task: own.tolist() for task, own in stream.labels.items()} == {
            task: own.tolist() for task, own in expected.labels.items()
        }
