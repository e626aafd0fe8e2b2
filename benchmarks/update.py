"""Measures the weight update on CUDA: one pass over all weights, and torch's fused AdamW with the casts around it.

    PYTHONPATH=src python benchmarks/update.py [ROUNDS]

The parameters of BERT-base and MiniLM, with gradients in bf16 for linear maps that have bf16 copies, and in float32
elsewhere. torch: gradients cast to float32, their norm, fused AdamW, weights cast to bf16. Ours: the norm, and one
pass. Each is captured as a CUDA graph; the two take turns. Prints medians, ratios, and the time that moving the bytes
would take. Then compares other block sizes, and measures the host time of a call without a graph. Needs only torch,
Triton and numpy.
"""

import sys
import time
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import graph_times
import torch
from graph_times import Run, microseconds
from torch import Tensor, nn

# The package without its __init__, which imports every module and their dependencies.
package = types.ModuleType("polytask")
package.__path__ = [str(Path(__file__).resolve().parent.parent / "src" / "polytask")]
sys.modules.setdefault("polytask", package)

from polytask.encoders.bert import Bert, BertShape  # noqa: E402
from polytask.kernels.half_weights import HalfWeights  # noqa: E402
from polytask.kernels.updates import Learned, Table, norm_of  # noqa: E402
from polytask.kernels.updates import one_pass as update  # noqa: E402
from polytask.kernels.updates.adamw import AdamWUpdate as Update  # noqa: E402

SHAPES = {"BERT-base": BertShape(), "MiniLM": BertShape(layers=6, hidden=384, heads=12, ffn=1536)}
BANDWIDTH = 4.3e12  # bytes per second, measured with a copy on an H200
BLOCK_SIZES = [(1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 4), (4096, 8), (4096, 16), (8192, 16)]


class Case:
    """A model's weights, their copies and gradients, and an optimizer."""

    def __init__(self, shape: BertShape, seed: int = 0) -> None:
        torch.manual_seed(seed)
        model = Bert(shape).to("cuda")
        self.half = HalfWeights(model)
        self.weights = list(model.parameters())
        self.gradients = {
            # Their norm is below 1, because torch would clip float32 gradients with a larger norm in place.
            p: (torch.randn_like(p) / 1e6).to(torch.bfloat16 if p in self.half.copies else torch.float32)
            for p in self.weights
        }
        self.optimizer = optimizer_of(self.weights)
        self.rates = torch.tensor([1e-5, 1e-5], device="cuda")
        self.found_inf = torch.zeros((), device="cuda")
        self.pass_over = Update(self.optimizer)
        self.learned = [Learned(p, self.gradients[p], self.half.copies.get(p)) for p in self.weights]
        self.full: dict[nn.Parameter, Tensor] = {}
        self.table: Table | None = None
        """The table of the graph that is being captured."""

    def cast_gradients(self) -> None:
        """Cast as `HalfWeights.move_gradients` does, into separate memory for each graph."""
        cast = [p for p in self.weights if p in self.half.copies]
        full = [torch.empty_like(p) for p in cast]
        torch._foreach_copy_(full, [self.gradients[p] for p in cast])
        self.full = {**self.gradients, **dict(zip(cast, full, strict=True))}

    def torch_norm(self) -> Tensor:
        norm: Tensor = torch.nn.utils.get_total_norm([*self.full.values()], foreach=True)
        return norm

    def torch_step(self, norm: Tensor) -> None:
        optimizer: Any = self.optimizer
        optimizer.found_inf, optimizer.grad_scale = self.found_inf, norm.clamp(min=1.0)
        for p in self.weights:
            p.grad = self.full[p]
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        optimizer.step()

    def cast_weights(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_([*self.half.copies.values()], tuple(self.half.copies))

    def torch_update(self) -> None:
        self.cast_gradients()
        self.torch_step(self.torch_norm())
        self.cast_weights()

    def our_norm(self) -> Tensor:
        return norm_of([one.gradient for one in self.learned])

    def our_step(self, norm: Tensor) -> None:
        self.pass_over.step(self.learned, self.rates, self.found_inf, norm.clamp(min=1.0), self.table)

    def our_update(self) -> None:
        self.our_step(self.our_norm())


def optimizer_of(weights: list[nn.Parameter]) -> torch.optim.AdamW:
    matrices, vectors = [p for p in weights if p.ndim > 1], [p for p in weights if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-5, fused=True, capturable=True)


def captured(case: Case, run: Run) -> Run:
    """Capture `run` as a CUDA graph; the replay keeps alive what it reads: its table, and the update's tensors."""
    table = case.pass_over.table()

    def ready() -> None:
        case.table = table

    graph = graph_times.captured(run, ready)
    case.table = None
    table.send()
    torch.cuda.synchronize()

    def replay(keeping: tuple[Table, Update] = (table, case.pass_over)) -> None:
        graph()

    return replay


def check(shape: BertShape) -> None:
    """Print the difference between the two after ten steps: a wrong implementation shows."""
    one, two = Case(shape), Case(shape)
    for _ in range(10):
        one.torch_update()
        two.our_update()
    difference = max(float((a - b).detach().abs().max()) for a, b in zip(one.weights, two.weights, strict=True))
    moments = [
        max(
            float((a - b).norm() / a.norm())
            for p, q in zip(one.weights, two.weights, strict=True)
            for a, b in [(one.optimizer.state[p][name], two.optimizer.state[q][name])]
        )
        for name in ("exp_avg", "exp_avg_sq")
    ]
    copies = all(torch.equal(copy, p.detach().bfloat16()) for p, copy in two.half.copies.items())
    errors = (
        f"largest difference {difference:.1e}, relative difference of moments {moments[0]:.1e} and {moments[1]:.1e}"
    )
    print(f"  {errors}; copies are right: {copies}")


def compare(shape: BertShape, rounds: int) -> None:
    case = Case(shape)
    case.torch_update()  # creates the gradients and the norm that its parts need
    norm = case.our_norm()
    runs: dict[str, Run] = {
        "torch: all": case.torch_update,
        "ours: all": case.our_update,
        "torch: gradients cast": case.cast_gradients,
        "torch: norm": case.torch_norm,
        "torch: fused AdamW": lambda: case.torch_step(norm),
        "torch: weights cast": case.cast_weights,
        "ours: norm": case.our_norm,
        "ours: one pass": lambda: case.our_step(norm),
    }
    times = microseconds({name: captured(case, run) for name, run in runs.items()}, rounds)
    for name, taken in times.items():
        print(f"  {name:22} {taken:8.1f} us  {taken / times['ours: all']:5.2f} x ours")
    elements = sum(p.numel() for p in case.weights)
    halves = sum(p.numel() for p in case.half.copies)
    moved = 24 * elements + 4 * halves + 4 * (elements - halves)
    print(f"  {'bytes of one pass':22} {moved / BANDWIDTH * 1e6:8.1f} us  ({elements / 1e6:.1f}M weights)", flush=True)


def tune(shape: BertShape, rounds: int) -> None:
    """Time other block sizes: the elements of a program, and its warps."""
    own = update.PIECE, update.WARPS
    case = Case(shape)
    norm = case.our_norm()
    graphs = {}
    for sizes in BLOCK_SIZES:
        update.PIECE, update.WARPS = sizes
        case.pass_over = Update(case.optimizer)
        graphs[f"{sizes}{'  <- current' if sizes == own else ''}"] = captured(case, lambda: case.our_step(norm))
    update.PIECE, update.WARPS = own
    for name, taken in sorted(microseconds(graphs, rounds).items(), key=lambda item: item[1]):
        print(f"  {taken:8.1f} us  one pass, (elements, warps) {name}", flush=True)


def host(shape: BertShape) -> None:
    """Print the host time of a step without a graph, and of the check whether weights were changed from outside."""
    case = Case(shape)
    runs: dict[str, Run] = {"torch": case.torch_update, "ours": case.our_update, "check": case.half.refresh}
    for name, run in runs.items():
        for _ in range(5):
            run()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            run()
        print(f"  {name:8} {(time.perf_counter() - started) / 20 * 1e6:8.1f} us of host time")
        torch.cuda.synchronize()


def main(rounds: int) -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {version('triton')}")
    print(f"{update.PIECE} elements and {update.WARPS} warps per program")
    for name, shape in SHAPES.items():
        print(name)
        check(shape)
        compare(shape, rounds)
        tune(shape, rounds)
        host(shape)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
