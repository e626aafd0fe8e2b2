"""Times CUDA graphs, for benchmarks of single kernels whose time the launches would hide."""

import statistics
from collections.abc import Callable

import torch

Run = Callable[[], object]


def captured(run: Run, ready: Run = lambda: None) -> Run:
    """Capture `run` as a CUDA graph and return its replay.

    A graph holds only addresses, so the replay keeps `run` alive, and with it the tensors that it reads. `ready` is
    called after the warm-up, before capturing.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    ready()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(keeping: Run = run) -> None:
        graph.replay()

    return replay


def microseconds(runs: dict[str, Run], rounds: int, repeats: int = 20) -> dict[str, float]:
    """Return the median over rounds, in which all take turns; a round is the mean of `repeats` runs."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeats):
                run()
            end.record()
            end.synchronize()
            if number:  # the first is a warm-up
                times[name].append(start.elapsed_time(end) * 1000 / repeats)
    return {name: statistics.median(own) for name, own in times.items()}
