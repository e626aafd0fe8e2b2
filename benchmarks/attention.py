"""What attention takes on CUDA: the kernels for short sequences beside torch's varlen kernel and padded rows.

    PYTHONPATH=src python benchmarks/attention.py [ROUNDS]

Packed streams of sequences of 29 tokens on average and 128 at most, bf16, 12 heads. Each way is captured as a CUDA
graph, forward alone and with its backward pass; the ways take turns, and reported are medians and their ratios, beside
the time the bytes alone would take. Then the same for other launches of the short kernels, and what a call without a
graph takes of the host. Needs torch, Triton and numpy alone.
"""

import sys
import time
import types
from collections.abc import Callable
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from graph_times import Run, captured, microseconds
from torch import Tensor

# The package without its __init__, which imports all of it and what that needs.
package = types.ModuleType("polytask")
package.__path__ = [str(Path(__file__).resolve().parent.parent / "src" / "polytask")]
sys.modules.setdefault("polytask", package)

from polytask.encoders.attention import attend  # noqa: E402
from polytask.fused_forms import definition_of  # noqa: E402
from polytask.kernels import short_attention  # noqa: E402
from polytask.kernels.attention import attend_varlen  # noqa: E402
from polytask.kernels.short_attention import Launches, attend_short  # noqa: E402
from polytask.stream import Layout  # noqa: E402

attend_padded = definition_of(attend)

SHAPES = [(16384, 64), (16384, 32), (928, 64), (928, 32)]
HEADS = 12
BANDWIDTH = 4.3e12  # bytes a second, as a copy on an H200 was seen to move
FORWARDS: list[Launches] = [
    ((128, 4),),
    ((128, 8),),
    ((32, 1), (128, 4)),
    ((32, 1), (128, 8)),
    ((32, 2), (128, 4)),
    ((32, 1), (64, 2), (128, 4)),
    ((32, 1), (64, 4), (128, 4)),
    ((32, 1), (64, 4), (128, 8)),
    ((32, 2), (64, 4), (128, 8)),
    ((16, 1), (32, 1), (64, 4), (128, 8)),
]
BACKWARDS: list[Launches] = [
    ((128, 4),),
    ((128, 8),),
    ((32, 1), (128, 8)),
    ((32, 2), (128, 8)),
    ((64, 4), (128, 8)),
    ((32, 1), (64, 4), (128, 8)),
    ((32, 2), (64, 4), (128, 4)),
    ((32, 2), (64, 4), (128, 8)),
    ((32, 4), (64, 4), (128, 8)),
    ((16, 1), (32, 2), (64, 4), (128, 8)),
]


def make_layout(tokens: int) -> Layout:
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        drawn = int(np.clip(round(rng.gamma(2.0, 14.3)), 3, 128))
        lengths.append(min(drawn, tokens - sum(lengths)))
    cu = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    return Layout(cu, tuple(lengths), ((0, len(lengths)),), ((0, tokens),))


def make_ways(layout: Layout, size: int, dropout: float) -> dict[str, tuple[Run, Run]]:
    """By name: a forward pass, and one with its backward pass."""
    shape = (sum(layout.lengths), HEADS, size)
    q, k, v, weights = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
    ways: dict[str, Callable[[], Tensor]] = {
        "short": lambda: attend_short(q, k, v, layout.cu_seqlens_S1, dropout),
        "padded": lambda: attend_padded(q, k, v, layout, dropout),
    }
    if not dropout:
        ways["varlen"] = lambda: attend_varlen(q, k, v, layout)

    def passes(way: Callable[[], Tensor]) -> tuple[Run, Run]:
        @torch.no_grad()
        def forward() -> Tensor:
            return way()

        return forward, lambda: torch.autograd.grad(way(), (q, k, v), weights.detach())

    return {name: passes(way) for name, way in ways.items()}


def as_graph(run: Run) -> Run:
    """Where it cannot be one, it is taken as it is."""
    try:
        return captured(run)
    except RuntimeError as error:
        print(f"  not captured: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return run


def check(layout: Layout, size: int) -> None:
    """How far the short and the varlen kernels are from padded attention in float32, so that no wrong one is timed."""
    shape = (sum(layout.lengths), HEADS, size)
    q, k, v, weights = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
    full = [t.detach().float().requires_grad_() for t in (q, k, v)]
    exact = attend_padded(full[0], full[1], full[2], layout)
    expected = [exact, *torch.autograd.grad(exact, full, weights.detach().float())]
    ways = {"short": attend_short(q, k, v, layout.cu_seqlens_S1), "varlen": attend_varlen(q, k, v, layout)}
    for name, out in ways.items():
        found = [out, *torch.autograd.grad(out, (q, k, v), weights.detach())]
        off = [
            float((a.detach().float() - b.detach()).norm() / b.detach().norm())
            for a, b in zip(found, expected, strict=True)
        ]
        print(f"  {name} is off by {', '.join(f'{x:.1e}' for x in off)} (out, dq, dk, dv)")


def compare(layout: Layout, size: int, dropout: float, rounds: int) -> None:
    ways = make_ways(layout, size, dropout)
    forward = microseconds({name: as_graph(run) for name, (run, _) in ways.items()}, rounds)
    both = microseconds({name: as_graph(run) for name, (_, run) in ways.items()}, rounds)
    piece = sum(layout.lengths) * HEADS * size * 2
    print(f"  dropout {dropout:<5} forward us  over short  forward+backward us  over short")
    for name in ways:
        ratios = [times[name] / times["short"] for times in (forward, both)]
        print(f"  {name:13} {forward[name]:10.1f}  {ratios[0]:10.2f}  {both[name]:19.1f}  {ratios[1]:10.2f}")
    print(f"  {'bytes alone':13} {4 * piece / BANDWIDTH * 1e6:10.1f}  {11 * piece / BANDWIDTH * 1e6:31.1f}", flush=True)


def tune(layout: Layout, size: int, rounds: int) -> None:
    """Other launches: a list of (up to which length, warps)."""
    forward, both = make_ways(layout, size, 0.0)["short"]
    own = short_attention.FORWARD, short_attention.BACKWARD
    few, short_attention.FEW = short_attention.FEW, 0
    forwards, backwards = {}, {}
    for plan in FORWARDS:
        short_attention.FORWARD = plan
        forwards[f"{plan}{'  <- now' if plan == own[0] else ''}"] = as_graph(forward)
    short_attention.FORWARD = own[0]
    for plan in BACKWARDS:
        short_attention.BACKWARD = plan
        backwards[f"{plan}{'  <- now' if plan == own[1] else ''}"] = as_graph(both)
    short_attention.BACKWARD = own[1]
    short_attention.FEW = few
    for name, graphs in (("forward", forwards), ("forward+backward, backward by", backwards)):
        for plan_name, taken in sorted(microseconds(graphs, rounds).items(), key=lambda item: item[1]):
            print(f"  {taken:8.1f} us  {name} {plan_name}", flush=True)


def host(layout: Layout, size: int) -> None:
    """What the host takes to start a pass, graph or none."""
    for name, (forward, both) in make_ways(layout, size, 0.0).items():
        taken = []
        for run in (forward, both):
            for _ in range(5):
                run()
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(50):
                run()
            taken.append((time.perf_counter() - started) / 50 * 1e6)
            torch.cuda.synchronize()
        print(f"  {name:8} forward {taken[0]:7.1f} us, forward+backward {taken[1]:7.1f} us of the host")


def main(rounds: int) -> None:
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {version('triton')}")
    print(f"launches: forward {short_attention.FORWARD}, backward {short_attention.BACKWARD}")
    for tokens, size in SHAPES:
        layout = make_layout(tokens)
        lengths = np.array(layout.lengths)
        shares = [
            int(((lengths > low) & (lengths <= high)).sum()) for low, high in ((0, 16), (16, 32), (32, 64), (64, 128))
        ]
        print(f"{tokens} tokens in {len(lengths)} sequences ({shares} up to 16, 32, 64, 128), {HEADS} heads of {size}")
        check(layout, size)
        for dropout in (0.0, 0.1):
            compare(layout, size, dropout, rounds)
        if size == 64:
            tune(layout, size, rounds)
            host(layout, size)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
