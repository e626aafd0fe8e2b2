"""Measures attention on CUDA: the kernels for short sequences, torch's varlen kernel and padded rows.

    PYTHONPATH=src python benchmarks/attention.py [ROUNDS]

Packed streams of sequences of 29 tokens on average and 128 at most, bf16, 12 heads. Each implementation is captured as
a CUDA graph, once the forward pass and once forward and backward; the implementations take turns. Prints medians, their
ratios, and the time that moving the bytes would take. Then compares other launch plans of the short kernels, and
measures the host time of a call without a graph. Needs only torch, Triton and numpy.
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

# The package without its __init__, which imports every module and their dependencies.
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
BANDWIDTH = 4.3e12  # bytes per second, measured with a copy on an H200
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


def make_variants(layout: Layout, size: int, dropout: float) -> dict[str, tuple[Run, Run]]:
    """Return, by name, a forward pass and a forward pass with its backward pass."""
    shape = (sum(layout.lengths), HEADS, size)
    q, k, v, weights = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
    variants: dict[str, Callable[[], Tensor]] = {
        "short": lambda: attend_short(q, k, v, layout.cu_seqlens_S1, dropout),
        "padded": lambda: attend_padded(q, k, v, layout, dropout),
    }
    if not dropout:
        variants["varlen"] = lambda: attend_varlen(q, k, v, layout)

    def passes(variant: Callable[[], Tensor]) -> tuple[Run, Run]:
        @torch.no_grad()
        def forward() -> Tensor:
            return variant()

        return forward, lambda: torch.autograd.grad(variant(), (q, k, v), weights.detach())

    return {name: passes(variant) for name, variant in variants.items()}


def as_graph(run: Run) -> Run:
    """Capture `run` as a CUDA graph; return it unchanged if that fails."""
    try:
        return captured(run)
    except RuntimeError as error:
        print(f"  not captured: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return run


def check(layout: Layout, size: int) -> None:
    """Print the errors of the short and varlen kernels against padded attention in float32: a wrong kernel shows."""
    shape = (sum(layout.lengths), HEADS, size)
    q, k, v, weights = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
    full = [t.detach().float().requires_grad_() for t in (q, k, v)]
    exact = attend_padded(full[0], full[1], full[2], layout)
    expected = [exact, *torch.autograd.grad(exact, full, weights.detach().float())]
    variants = {"short": attend_short(q, k, v, layout.cu_seqlens_S1), "varlen": attend_varlen(q, k, v, layout)}
    for name, out in variants.items():
        results = [out, *torch.autograd.grad(out, (q, k, v), weights.detach())]
        errors = [
            float((a.detach().float() - b.detach()).norm() / b.detach().norm())
            for a, b in zip(results, expected, strict=True)
        ]
        print(f"  {name}: relative error {', '.join(f'{x:.1e}' for x in errors)} (out, dq, dk, dv)")


def compare(layout: Layout, size: int, dropout: float, rounds: int) -> None:
    variants = make_variants(layout, size, dropout)
    forward = microseconds({name: as_graph(run) for name, (run, _) in variants.items()}, rounds)
    both = microseconds({name: as_graph(run) for name, (_, run) in variants.items()}, rounds)
    piece = sum(layout.lengths) * HEADS * size * 2
    print(f"  dropout {dropout:<5} forward us  / short     forward+backward us  / short")
    for name in variants:
        ratios = [times[name] / times["short"] for times in (forward, both)]
        print(f"  {name:13} {forward[name]:10.1f}  {ratios[0]:10.2f}  {both[name]:19.1f}  {ratios[1]:10.2f}")
    print(f"  {'bytes only':13} {4 * piece / BANDWIDTH * 1e6:10.1f}  {11 * piece / BANDWIDTH * 1e6:31.1f}", flush=True)


def tune(layout: Layout, size: int, rounds: int) -> None:
    """Time other launch plans; a plan is a list of (longest sequence, warps)."""
    forward, both = make_variants(layout, size, 0.0)["short"]
    own = short_attention.FORWARD, short_attention.BACKWARD
    few, short_attention.FEW = short_attention.FEW, 0
    forwards, backwards = {}, {}
    for plan in FORWARDS:
        short_attention.FORWARD = plan
        forwards[f"{plan}{'  <- current' if plan == own[0] else ''}"] = as_graph(forward)
    short_attention.FORWARD = own[0]
    for plan in BACKWARDS:
        short_attention.BACKWARD = plan
        backwards[f"{plan}{'  <- current' if plan == own[1] else ''}"] = as_graph(both)
    short_attention.BACKWARD = own[1]
    short_attention.FEW = few
    for name, graphs in (("forward", forwards), ("forward+backward, backward by", backwards)):
        for plan_name, taken in sorted(microseconds(graphs, rounds).items(), key=lambda item: item[1]):
            print(f"  {taken:8.1f} us  {name} {plan_name}", flush=True)


def host(layout: Layout, size: int) -> None:
    """Print the host time needed to launch a pass without a graph."""
    for name, (forward, both) in make_variants(layout, size, 0.0).items():
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
        print(f"  {name:8} forward {taken[0]:7.1f} us, forward+backward {taken[1]:7.1f} us of host time")


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
