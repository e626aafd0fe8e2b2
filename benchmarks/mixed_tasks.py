"""Measures what more tasks in one stream cost: a training pass with 64 tasks and one with 3, on the same tokens.

    python benchmarks/mixed_tasks.py [ROUNDS]

MiniLM's shape (untrained), 128 sequences of 24 tokens, forward and backward: float32 on the CPU, or bf16 captured as a
CUDA graph, as training steps are. The two take turns. Prints the ratio of their times, for every adapter, with its
spread.
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch

from polytask.build import make_adapter
from polytask.encoders.bert import Bert, BertShape
from polytask.kernels.half_weights import HalfWeights
from polytask.machine import environment, pick_device
from polytask.methods import TABLES
from polytask.settings import MethodChoice
from polytask.text.packing import Packer, Part

SHAPE = BertShape(layers=6, hidden=384, heads=12, ffn=1536, dropout=0.0, attention_dropout=0.0)
SEQUENCES, LENGTH = 128, 24


def one_pass(adapter_name: str, num_tasks: int, device: torch.device) -> Callable[[], None]:
    tasks = tuple(f"task{i}" for i in range(num_tasks))
    encoder = Bert(SHAPE).to(device)
    adapter = make_adapter(MethodChoice(adapter_name), tasks, SHAPE).to(device)
    share = np.array_split(np.arange(SEQUENCES), num_tasks)
    ids = np.random.default_rng(0).integers(1000, 20000, (SEQUENCES, LENGTH - 2))
    parts = [Part(task, [(ids[i],) for i in rows]) for task, rows in zip(tasks, share, strict=True)]
    on_gpu = device.type == "cuda"
    stream = Packer(tasks, 101, 102, LENGTH).pack(parts, static_shape=on_gpu).to(device)
    half = HalfWeights(torch.nn.ModuleList([encoder, adapter])) if on_gpu else None

    def run() -> None:
        encoder.zero_grad(set_to_none=True)
        adapter.zero_grad(set_to_none=True)
        with half.swapped_in() if half else nullcontext():
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                loss = encoder.encode(stream, adapter).float().square().mean()
            loss.backward()
        if half:
            half.move_gradients()

    return captured(run) if on_gpu else run


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """Capture `run` as a CUDA graph; the replay keeps `run` alive, because a graph holds only addresses."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(keeping: Callable[[], None] = run) -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def main(rounds: int) -> None:
    device = pick_device("auto")
    machine = environment(device)
    print(f"{machine['cpu']}, {machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    for name in TABLES["adapter"]:
        passes = {count: one_pass(name, count, device) for count in (3, 64)}
        seconds: dict[int, list[float]] = {count: [] for count in passes}
        for number in range(rounds + 1):
            for count, run in passes.items():
                started = time.perf_counter()
                run()
                if number:  # the first is a warm-up
                    seconds[count].append(time.perf_counter() - started)
        ratios = sorted(b / a for a, b in zip(seconds[3], seconds[64], strict=True))
        print(
            f"{name:18} 3 tasks {statistics.median(seconds[3]) * 1000:7.1f} ms   64 tasks / 3 tasks: "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
