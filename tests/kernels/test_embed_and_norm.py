"""The embeddings' kernels against torch: on the CPU under Triton's interpreter, and on CUDA."""

import os
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytask.kernels import embed_and_norm as module
from polytask.kernels import row_norm
from polytask.kernels.embed_and_norm import embed_and_norm
from polytask.kernels.row_norm import Draw

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HERE = "cpu" if INTERPRETED else "cuda"
NEAR = {"atol": 2e-5, "rtol": 2e-5}
ROUGH = {"atol": 0.02, "rtol": 0.02}
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
WORDS, POSITIONS = 20, 9
needs_kernels = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device")


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(HERE, dtype).requires_grad_()


class Batch(NamedTuple):
    token_ids_T: Tensor
    segment_ids_T: Tensor
    position_ids_T: Tensor
    cu_seqlens_S1: Tensor


def batch(lengths: list[int], behind: tuple[int, ...] = (), segments: int = 2) -> Batch:
    """Sequences of these lengths, and tokens with these positions behind them."""
    positions = torch.tensor([p for length in lengths for p in range(length)] + list(behind), dtype=torch.int64)
    generator = torch.Generator().manual_seed(0)
    # Few of the words, so that most are there more than once.
    tokens = torch.randint(WORDS // 2, positions.shape, generator=generator)
    borders = torch.tensor([0, *lengths]).cumsum(0).int()
    own = torch.randint(segments, positions.shape, generator=generator)
    return Batch(*(t.to(HERE) for t in (tokens, own, positions, borders)))


def learned(size: int, segments: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """words, segments, positions, scale, shift"""
    tables = [random(n, size, seed=k, dtype=dtype) for k, n in enumerate((WORDS, segments, POSITIONS))]
    return [*tables, random(size, seed=3), random(size, seed=4)]


def run(
    given: list[Tensor],
    of: Batch,
    half: torch.dtype = torch.float32,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    words, segments, positions, scale, shift = given
    *ids, borders = of
    tables = (words, segments, positions)
    return embed_and_norm(tables, tuple(ids), borders, (scale, shift), 1e-12, half, Draw(dropout, seed))


def written_out(given: list[Tensor], of: Batch, kept: Tensor | float = 1.0) -> Tensor:
    words, segments, positions, scale, shift = (t.double() for t in given)
    total = F.embedding(of.token_ids_T, words) + F.embedding(of.segment_ids_T, segments)
    total = total + F.embedding(of.position_ids_T, positions)
    return F.layer_norm(total, words.shape[1:], scale, shift, 1e-12) * kept


def weights(outs: tuple[Tensor, ...]) -> list[Tensor]:
    """What comes back for each output."""
    return [random(*out.shape, seed=6 + k, dtype=out.dtype).detach() for k, out in enumerate(outs)]


def check_gradients(outs: tuple[Tensor, ...], exact: Tensor, given: list[Tensor], near: dict[str, float]) -> None:
    back = weights(outs)
    ours = torch.autograd.grad([*outs], given, back)
    theirs = torch.autograd.grad(exact, given, torch.stack([w.double() for w in back]).sum(0))
    for one, two in zip(ours, theirs, strict=True):
        assert one.dtype == two.dtype
        torch.testing.assert_close(one, two, **near)


@needs_kernels
def test_words_may_be_given_for_each_token() -> None:
    of = batch([3, 0, 9, 1])
    tables = [random(len(of.token_ids_T), 16, seed=0), *learned(16)[1:]]
    words, segments, positions, scale, shift = tables
    ids = None, of.segment_ids_T, of.position_ids_T
    outs = embed_and_norm((words, segments, positions), ids, of.cu_seqlens_S1, (scale, shift), 1e-12, torch.float32)
    numbered = of._replace(token_ids_T=torch.arange(len(words), device=words.device))
    exact = written_out(tables, numbered)
    torch.testing.assert_close(outs[0].double(), exact, **NEAR)
    check_gradients(outs, exact, tables, NEAR)


LENGTHS = [
    ([1], ()),
    ([3, 0, 9, 1, 0, 0, 4], ()),
    ([0, 5, 2, 0], (0, 0, 3, 8)),
    ([], (2, 2)),
    ([2, 4, 1] * 12 + [7], (1,)),  # more than a program for a position looks at at once
]


@needs_kernels
@pytest.mark.parametrize("half", DTYPES)
@pytest.mark.parametrize(("lengths", "behind"), LENGTHS)
@pytest.mark.parametrize("size", [16, 48])
def test_values_and_gradients(size: int, lengths: list[int], behind: tuple[int, ...], half: torch.dtype) -> None:
    of, given = batch(lengths, behind), learned(size)
    outs, exact = run(given, of, half), written_out(given, of)
    assert [out.dtype for out in outs] == [torch.float32, half]
    torch.testing.assert_close(outs[0].double(), exact, **NEAR)
    assert outs[1].equal(outs[0].to(half))
    check_gradients(outs, exact, given, NEAR)


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_segments_of_any_number_and_sizes_that_are_no_multiple(segments: int, dtype: torch.dtype) -> None:
    of, given = batch([3, 0, 9, 1], segments=segments), learned(17, segments, dtype)
    outs, exact = run(given, of), written_out(given, of)
    torch.testing.assert_close(outs[0].double(), exact, **NEAR)
    check_gradients(outs, exact, given, NEAR if dtype == torch.float32 else ROUGH)


@needs_kernels
def test_rows_wider_than_a_block_of_columns_and_more_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_norm, "PROGRAMS", 2)
    of, given = batch([3, 0, 8, 2]), learned(200)
    check_gradients(run(given, of), written_out(given, of), given, NEAR)


@needs_kernels
def test_the_same_bits_each_time() -> None:
    of, given = batch([9, 0, 7, 5, 9, 3]), learned(32)
    others = given[1:]  # the words' sum is torch's own
    outs = run(given, of)
    first = torch.autograd.grad([*outs], others, weights(outs))
    again = torch.autograd.grad([*run(given, of)], others, weights(outs))
    assert all(map(torch.equal, first, again))


@needs_kernels
def test_dropout() -> None:
    """What is dropped is exactly zero; with that mask, values and gradients are those of torch."""
    of, given = batch([9, 4, 0, 8, 9, 9, 7], (0, 0)), learned(48)
    seed = torch.tensor([77], device=HERE)
    outs = run(given, of, dropout=0.25, seed=seed)
    kept = (outs[0] != 0).double() / 0.75
    assert abs(float((kept == 0).double().mean()) - 0.25) < 0.03
    assert (kept == 0).any(0).all(), "in every column"
    assert (kept == 0).any(1).all(), "in every row"
    exact = written_out(given, of, kept)
    torch.testing.assert_close(outs[0].double(), exact, **NEAR)
    assert outs[1].equal(outs[0])
    check_gradients(outs, exact, given, NEAR)
    assert run(given, of, dropout=0.25, seed=seed.clone())[0].equal(outs[0])
    other = run(given, of, dropout=0.25, seed=seed + 1)[0]
    both = ((other == 0) & (kept == 0)).double().mean()
    assert abs(float(both) - 0.25**2) < 0.02, "as often as chance has it"


@needs_kernels
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (4,), (0, 2), (1, 3, 4)])
def test_only_what_is_asked_for(learning: tuple[int, ...], which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One output's gradient alone; frozen tables or vectors, for which nothing is computed."""
    of, given = batch([3, 0, 5]), learned(16)
    for k, tensor in enumerate(given):
        tensor.requires_grad_(k in learning)
    if 0 not in learning:
        monkeypatch.setattr(module, "_embedding_gradient", None)
    if 2 not in learning:
        monkeypatch.setattr(module, "_position_gradient", None)
    if learning in [(0,), (2,), (0, 2)]:
        monkeypatch.setattr(module, "column_sums", None)
    check_gradients((run(given, of)[which],), written_out(given, of), [given[k] for k in learning], NEAR)


@needs_kernels
def test_frozen_altogether() -> None:
    given = [t.detach() for t in learned(16)]
    assert not any(out.requires_grad for out in run(given, batch([3])))


@pytest.mark.parametrize("size", [384, 768])
def test_they_compile_and_move_rows_in_wide_pieces(ptx: Any, size: int) -> None:
    """No device is needed for that."""
    numbers = {"eps": "fp32", "dropout": "fp32", "rows": "i32", "sequences": "i32"}
    ids = dict.fromkeys(["token_ids", "segment_ids", "position_ids", "seed"], "*i64")
    kinds = {**numbers, **ids, "cu_seqlens": "*i32", "half": "*bf16", "half_grad": "*bf16"}

    pieces = row_norm.LANE // 128  # of four columns, that a thread has
    code = ptx(module._embed_forward, kinds, **row_norm.row_options(size, 0.1))
    assert code.count("ld.global.v4.b32") == 5 * pieces  # of three tables and two vectors
    assert code.count("st.global.v4.b32") == pieces  # in float32
    assert code.count("st.global.v2.b32") == pieces  # the same in bf16
    backward = {"FULL": True, "HALF": True, "WANTED": True, "MATRICES": 4}
    code = ptx(module._embed_backward, kinds, **backward, **row_norm.row_options(size, 0.1))
    assert code.count("ld.global.v4.b32") == 5 * pieces  # the scale, a gradient and three tables
    assert code.count("ld.global.v2.b32") == pieces
    assert code.count("st.global.v4.b32") == 5 * pieces  # the sum's gradient and four sums
    shape = {"SIZE": size, "SEQUENCES": module.SEQUENCES, "COLUMNS": module.COLUMNS, "num_warps": module.WARPS}
    code = ptx(module._embed_positions, kinds, **shape)
    tile = module.SEQUENCES * module.COLUMNS // (module.WARPS * 32)  # of a thread
    assert code.count("ld.global.v4.b32") == 2 * tile // 4  # of sequences, and of what is behind them
