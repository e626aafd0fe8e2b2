"""Every head that can read long texts in windows: the same bits for short texts, and each text as if it were alone."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from polytask.contracts.heads import SPACES, Subject, one_task
from polytask.heads import HEADS
from polytask.heads.base import Head
from polytask.model import MultiTaskModel
from polytask.settings import Windows
from polytask.stream import pool_windows
from polytask.text.packing import InputFormat, Packer
from polytask.text.texts import Texts

PACKER = Packer(("t",), 2, 3, 10)  # windows of 8 tokens
WINDOWS = [
    Windows(),
    Windows(stride=8),
    Windows(stride=3, pool="max"),
    Windows(stride=1, pool="mean", most=3),
    Windows(pool="first"),
]


def has_windows(method: type[Head]) -> bool:
    """Whether the head encodes each text by itself, and reads one vector of it."""
    head = method("t", SPACES[method.kinds[0]], 32)  # type: ignore[arg-type, call-arg]
    alone = method.reading == "separate" or (method.reading == "joined" and 1 in method.texts)
    return alone and head.pooling is not None and head.copies == 1 and head.mask_share is None


CASES = [(name, kind) for name, method in HEADS.items() if has_windows(method) for kind in method.kinds]


def model_of(name: str, kind: str, windows: Windows | None) -> MultiTaskModel:
    model, _ = one_task(Subject(HEADS[name], SPACES[kind]))  # type: ignore[arg-type]
    model.head("t").windows = windows
    return model.eval()


def examples(longest: int, texts: int, count: int = 14) -> Texts:
    rng = np.random.default_rng(longest)
    return Texts.of(
        [tuple(rng.integers(5, 100, rng.integers(0, longest + 1)) for _ in range(texts)) for _ in range(count)]
    )


def number_of_texts(name: str) -> int:
    return 2 if HEADS[name].reading == "separate" else 1


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("windows", WINDOWS[2:], ids=str)
def test_texts_that_fit_have_the_same_bits(name: str, kind: str, windows: Windows) -> None:
    texts = examples(8, number_of_texts(name))
    with_windows, without = (model_of(name, kind, chosen) for chosen in (windows, None))
    found, expected = ([*model.batches("t", texts, PACKER)] for model in (with_windows, without))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.stream.token_ids_T, other.stream.token_ids_T)
        assert one.stream.layout.lengths == other.stream.layout.lengths
        assert not one.stream.windows
    assert torch.equal(with_windows.answer("t", texts, PACKER), without.answer("t", texts, PACKER))


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("windows", WINDOWS[1:4], ids=str)
def test_a_batch_of_texts_equals_each_text_alone(name: str, kind: str, windows: Windows) -> None:
    texts, model = examples(60, number_of_texts(name)), model_of(name, kind, windows)
    alone = torch.cat([model.answer("t", texts.take(np.array([i])), PACKER) for i in range(len(texts))])
    for budget in (10, 200, 10**6):
        torch.testing.assert_close(model.answer("t", texts, PACKER, budget), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_short_texts_keep_their_outputs_among_long_ones(name: str, kind: str) -> None:
    model, plain = model_of(name, kind, Windows(stride=4)), model_of(name, kind, None)
    short, long = examples(8, number_of_texts(name)), examples(60, number_of_texts(name))
    mixed = model.answer("t", [*long, *short], PACKER)
    torch.testing.assert_close(mixed[len(long) :], plain.answer("t", short, PACKER), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("cut_start", [False, True])
def test_windows_are_counted_as_they_are_cut(windows: Windows, cut_start: bool) -> None:
    packer, form = replace(PACKER, truncate="start" if cut_start else "end"), InputFormat("separate", windows=windows)
    texts = examples(60, 2, count=30)
    counts_NW = packer.window_counts(texts.lengths_NW, form)
    parts, windows_M = packer.cut(texts, form)
    assert windows_M.tolist() == counts_NW.ravel().tolist()
    assert counts_NW.max() <= windows.most
    stream = packer.pack([packer.part("t", texts, form)])
    assert len(stream.token_ids_T) == packer.lengths(texts.lengths_NW, form).sum()
    flat = [text for example in texts for text in example]
    room, ends = packer.longest(form) - 2, windows_M.cumsum()
    for text, first, last in zip(flat, ends - windows_M, ends, strict=True):
        own = [
            parts.ids[start : start + n].tolist()
            for ((start,), (n,)) in zip(parts.starts_NW, parts.lengths_NW, strict=True)
        ][first:last]
        kept = text[max(len(text) - room, 0) :] if cut_start else text[:room]
        assert own[0] == kept[:8].tolist()
        assert own[-1] == kept[max(len(kept) - 8, 0) :].tolist()
        stride = windows.starts_after(8)
        assert own[:-1] == [kept[at : at + 8].tolist() for at in range(0, stride * (len(own) - 1), stride)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_of_windows(dtype: torch.dtype) -> None:
    x_SD = torch.randn(6, 4).to(dtype)
    starts = torch.tensor([0, 1, 4, 6])
    mean, largest = (pool_windows(x_SD, starts, pool) for pool in ("mean", "max"))  # type: ignore[arg-type]
    assert torch.equal(mean[0], x_SD[0])
    assert torch.equal(largest[0], x_SD[0])
    torch.testing.assert_close(mean[1], x_SD[1:4].float().mean(0).to(dtype))
    assert torch.equal(largest[2], x_SD[4:].amax(0))
    assert mean.dtype == largest.dtype == dtype


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_every_window_gets_a_gradient(pool: str) -> None:
    model = model_of("linear", "classes", Windows(stride=5, pool=pool))  # type: ignore[arg-type]
    texts = examples(60, 1, count=4)
    stream = PACKER.pack([PACKER.part("t", texts, model.input_format("t"))])
    assert stream.windows["t"].tolist()[-1] == len(stream.layout.lengths)
    words_TD = model.embed_words(stream).detach().requires_grad_()
    model(stream, words_TD)["t"].square().sum().backward()
    assert words_TD.grad is not None
    borders = stream.layout.cu_seqlens_S1.tolist()
    assert all(words_TD.grad[a:b].abs().sum() > 0 for a, b in pairwise(borders))
