"""Windows of long texts: every word has its output once, where it is farthest from a cut."""

import numpy as np
import pytest
import torch

from polytask.text.packing import InputFormat, Packer
from polytask.text.texts import Texts
from polytask.text.windows import WindowedExamples, cut_windows, join_windows
from polytask.types import NO_LABEL


class Rows:
    """Texts of these lengths, in which a word starts at every token, or at every second one."""

    def __init__(self, lengths: list[int], every: int = 1) -> None:
        self.texts = Texts.of([(np.arange(n) + 10 * i,) for i, n in enumerate(lengths)])
        words = np.concatenate([np.arange(n) % every == 0 for n in lengths])
        self.texts = Texts(self.texts.ids, self.texts.starts_NW, self.texts.lengths_NW, None, words)
        counts = [-(-n // every) for n in lengths]
        self.labels = np.full((len(lengths), max(counts)), NO_LABEL)
        for i, count in enumerate(counts):
            self.labels[i, :count] = 100 * i + np.arange(count)

    def __len__(self) -> int:
        return len(self.texts)

    def tokens(self, index: int) -> tuple[np.ndarray, ...]:
        return list(self.texts)[index]

    def gather(self, indices: np.ndarray) -> Texts:
        return self.texts.take(indices)


@pytest.mark.parametrize("size", [4, 7, 10])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_every_token_belongs_to_the_window_in_which_it_is_farthest_from_a_cut(size: int, stride: int) -> None:
    lengths = [1, 3, size, size + 1, 23, 40]
    windows, rows = cut_windows(Rows(lengths).texts, size, stride)
    assert windows.owned_N2 is not None
    assert (windows.lengths_NW <= size).all()
    for row, length in enumerate(lengths):
        own = np.flatnonzero(rows == row)
        start_of_text = windows.starts_NW[own[0], 0]
        starts = windows.starts_NW[own, 0] - start_of_text
        ends = starts + windows.lengths_NW[own, 0]
        assert starts[0] == 0
        assert ends[-1] == length
        owner = np.full(length, -1)
        for window, start, (first, last) in zip(own, starts, windows.owned_N2[own], strict=True):
            assert (owner[start + first : start + last] == -1).all()
            owner[start + first : start + last] = window - own[0]
        assert (owner >= 0).all()
        for token in range(length):
            context = np.minimum(
                np.where(starts == 0, 10**6, token - starts), np.where(ends == length, 10**6, ends - 1 - token)
            )
            context[(token < starts) | (token >= ends)] = -1
            assert context[owner[token]] >= context.max() - 1  # two windows may be equally good


@pytest.mark.parametrize("every", [1, 2, 3])
def test_windows_of_training_examples_have_each_label_once(every: int) -> None:
    rows = Rows([3, 25, 8, 40], every)
    windows = WindowedExamples(rows, 8, 4)
    found = windows.labels[windows.labels != NO_LABEL]
    assert sorted(found.tolist()) == sorted(rows.labels[rows.labels != NO_LABEL].tolist())
    packer = Packer(("t",), 1, 2, 10)
    part = packer.part("t", windows.gather(np.arange(len(windows))), InputFormat(stride=4), windows.labels)
    stream = packer.pack([part])
    places, labels = stream.words["t"], stream.labels["t"]
    assert places.shape == labels.shape
    assert torch.equal(places >= 0, labels != NO_LABEL)
    ids = stream.token_ids_T[places[places >= 0]]
    row, word = labels[labels != NO_LABEL] // 100, labels[labels != NO_LABEL] % 100
    assert torch.equal(ids, 10 * row + every * word)  # the first token of the word


def test_outputs_of_windows_are_joined_in_the_order_of_the_words() -> None:
    rows = Rows([3, 25, 8, 40])
    windows = WindowedExamples(rows, 8, 3)
    labels = torch.from_numpy(windows.labels)
    outputs = torch.stack([labels.float(), (labels != NO_LABEL).float()], -1)
    _, owners = cut_windows(rows.texts, 8, 3)
    joined = join_windows(outputs, owners.tolist())
    assert joined.shape == (4, 40, 2)
    assert torch.equal(joined[..., 1] > 0, torch.from_numpy(rows.labels != NO_LABEL))
    assert joined[..., 0][joined[..., 1] > 0].tolist() == rows.labels[rows.labels != NO_LABEL].tolist()
    again = windows.cut(joined.numpy(), 0)
    assert np.array_equal(again[..., 0][windows.labels != NO_LABEL], windows.labels[windows.labels != NO_LABEL])


def test_texts_that_fit_have_one_window_each() -> None:
    rows = Rows([3, 8, 1])
    windows = WindowedExamples(rows, 8, 4)
    assert len(windows) == 3
    assert windows.labels is rows.labels
    assert [ids.tolist() for ids in windows.tokens(1)] == [list(range(10, 18))]


def test_static_shapes_have_the_same_number_of_words_whatever_the_texts() -> None:
    packer = Packer(("t",), 1, 2, 32)
    shapes = set()
    for lengths in ([3, 9], [4, 7], [2, 2]):
        rows = Rows(lengths)
        part = packer.part("t", rows.texts, InputFormat(stride=0), rows.labels)
        stream = packer.pack([part], static_shape=True)
        shapes.add((stream.words["t"].shape, stream.labels["t"].shape))
    assert len(shapes) == 1
