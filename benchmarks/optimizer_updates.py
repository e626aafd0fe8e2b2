"""Microseconds of every optimizer's one-pass update on CUDA, for the parameters of BERT-base or MiniLM.

    PYTHONPATH=src python benchmarks/optimizer_updates.py --out updates.jsonl [--shape bert-base] [--rounds 15] [--cuts]

Linear maps have gradients and copies in bf16, everything else has float32 gradients, as in a step in bf16. Each update
is a CUDA graph of its own: rates, step counts, clipping divisor and found_inf are read on the device. Measured in turn
with it are `fused_adamw`'s update and torch's fused AdamW, which has float32 gradients and writes no copies. Every
result is appended to --out as soon as it exists: medians, ratios, the time that its bytes alone would take, and how far
the weights are from those of the optimizer's own `step` after three steps. --cuts also tries other sizes of pieces.
"""

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from graph_times import Run, captured, microseconds
from torch import nn

from polytask.encoders.bert import Bert, BertShape
from polytask.kernels.half_weights import HalfWeights
from polytask.kernels.updates import Learned, Table, Update, one_pass, update_for
from polytask.optim import OPTIMIZERS

SHAPES = {"bert-base": BertShape(), "minilm": BertShape(layers=6, hidden=384, heads=12, ffn=1536)}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OPTIMIZERS),
    ("adamw", {"correction": "efficient"}),
    ("qhadam", {"nus": (0.7, 0.9)}),
]
BANDWIDTH = 4.3e12  # bytes per second of a copy on an H200
CUTS = [(1024, 4), (1024, 8), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16)]


class Case:
    """A model's weights with copies, gradients and an optimizer."""

    def __init__(self, shape: BertShape, make: Callable[..., torch.optim.Optimizer], **options: Any) -> None:
        torch.manual_seed(0)
        model = Bert(shape).to("cuda")
        self.half = HalfWeights(model)
        self.weights = list(model.parameters())
        matrices, vectors = [p for p in self.weights if p.ndim > 1], [p for p in self.weights if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = make(groups, lr=1e-5, **options)
        self.rates = torch.tensor([1e-5, 1e-5], device="cuda")
        self.found_inf, self.divisor = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
        self.learned = [Learned(p, self.gradient(p), self.half.copies.get(p)) for p in self.weights]
        self.table: Table | None = None

    def gradient(self, weight: nn.Parameter) -> torch.Tensor:
        return (torch.randn_like(weight) / 1e6).to(torch.bfloat16 if weight in self.half.copies else torch.float32)

    def make_update(self) -> Update:
        update = update_for(self.optimizer)
        assert update is not None, "the one-pass update needs CUDA and Triton"
        return update

    def graph(self) -> Run:
        """The update as a graph; it keeps what the graph reads."""
        update = self.make_update()
        table = update.table()
        self.table = None

        def ready() -> None:
            self.table = table

        run = captured(lambda: update.step(self.learned, self.rates, self.found_inf, self.divisor, self.table), ready)
        table.send()
        torch.cuda.synchronize()

        def replay(keeping: tuple[Update, Table] = (update, table)) -> None:
            run()

        return replay

    def own_step(self) -> None:
        """The optimizer's own step, with float32 gradients."""
        for one in self.learned:
            one.weight.grad = one.gradient.float()
        self.optimizer.step()

    def bytes_moved(self) -> int:
        elements = sum(p.numel() for p in self.weights)
        halves = sum(p.numel() for p in self.half.copies)
        states = len(self.make_update().state_names)
        gradients = 2 * halves + 4 * (elements - halves)
        again = 12 * elements if type(self.optimizer).__name__ == "Lamb" else 0
        return gradients + 2 * halves + 8 * (1 + states) * elements + again


def torchs_graph(shape: BertShape) -> Run:
    case = Case(shape, torch.optim.AdamW, fused=True, capturable=True)
    for group, rate in zip(case.optimizer.param_groups, case.rates, strict=True):
        group["lr"] = rate
    for one in case.learned:
        one.weight.grad = one.gradient.float()
    return captured(case.optimizer.step)


def difference(shape: BertShape, name: str, options: dict[str, Any]) -> float:
    """The largest difference of a weight after three steps, in units of the learning rate."""
    ours, definition = (Case(shape, OPTIMIZERS[name], **options) for _ in range(2))
    update = ours.make_update()
    for _ in range(3):
        update.step(ours.learned, ours.rates, ours.found_inf, ours.divisor)
        definition.own_step()
    pairs = zip(ours.weights, definition.weights, strict=True)
    return max(float((one - two).detach().abs().max()) for one, two in pairs) / 1e-5


def measure(shape: BertShape, rounds: int, write: Callable[[dict[str, Any]], None]) -> None:
    reference, torchs = Case(shape, OPTIMIZERS["fused_adamw"]).graph(), torchs_graph(shape)
    for name, options in CASES:
        case = Case(shape, OPTIMIZERS[name], **options)
        runs = {"update": case.graph(), "fused_adamw": reference, "torch": torchs}
        times = microseconds(runs, rounds)
        own = times["update"]
        write(
            {
                "optimizer": name,
                "options": options,
                "us": round(own, 1),
                "ratio_to_fused_adamw": round(own / times["fused_adamw"], 3),
                "ratio_to_torch_fused_adamw": round(own / times["torch"], 3),
                "bytes_us": round(case.bytes_moved() / BANDWIDTH * 1e6, 1),
                "difference_in_lr": difference(shape, name, options),
            }
        )


def try_cuts(shape: BertShape, rounds: int, write: Callable[[dict[str, Any]], None]) -> None:
    own = one_pass.PIECE, one_pass.WARPS
    for name in OPTIMIZERS:
        case = Case(shape, OPTIMIZERS[name])
        for cut in CUTS:
            one_pass.PIECE, one_pass.WARPS = cut
            taken = microseconds({"update": case.graph()}, rounds)["update"]
            write({"optimizer": name, "piece": cut[0], "warps": cut[1], "us": round(taken, 1), "default": cut == own})
        one_pass.PIECE, one_pass.WARPS = own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cuts", action="store_true")
    args = parser.parse_args()
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": version("triton")}

    def write(result: dict[str, Any]) -> None:
        line = json.dumps({"shape": args.shape, **result, **machine})
        print(line, flush=True)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    measure(SHAPES[args.shape], args.rounds, write)
    if args.cuts:
        try_cuts(SHAPES[args.shape], args.rounds, write)


if __name__ == "__main__":
    main()
