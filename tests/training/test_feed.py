"""The order of training examples: every example once a pass, resumable at any point, the same for the same seed."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from polytask.text.packing import Packer
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
    return Feed({"a": Few(7), "b": Few(5)}, {"a": False, "b": False}, Packer(("a", "b"), 2, 3, 8), seed)


def test_each_example_once_a_pass_also_when_batches_cross_its_end() -> None:
    under_test = feed()
    indices = [i for _ in range(7) for i in under_test.next_indices(Draw("a", 3))]
    passes = [indices[0:7], indices[7:14], indices[14:21]]
    assert all(sorted(one) == list(range(7)) for one in passes)
    assert len({tuple(one) for one in passes}) > 1
    assert Counter(indices) == dict.fromkeys(range(7), 3)


def test_a_batch_larger_than_the_task() -> None:
    assert Counter(feed().next_indices(Draw("b", 10))) == dict.fromkeys(range(5), 2)


def test_state_is_enough_to_go_on() -> None:
    straight, stopped = feed(), feed()
    for under_test in (straight, stopped):
        under_test.next_indices(Draw("a", 4))
        under_test.next_indices(Draw("b", 2))
    resumed = feed()
    resumed.load_state_dict(stopped.state_dict())
    for task in ("a", "b", "a"):
        assert resumed.next_indices(Draw(task, 6)) == straight.next_indices(Draw(task, 6))


def test_labels_stay_with_their_texts_and_tasks_are_sorted() -> None:
    stream = feed().next_stream([Draw("b", 3), Draw("a", 4)])
    assert stream.layout.sequence_ranges == ((0, 4), (4, 7))
    words = stream.token_ids_T[stream.token_ids_T >= 10] - 10
    assert words.tolist() == [*stream.labels["a"].tolist(), *stream.labels["b"].tolist()]


def test_seed_changes_the_order() -> None:
    assert feed(0).next_indices(Draw("a", 7)) != feed(1).next_indices(Draw("a", 7))
