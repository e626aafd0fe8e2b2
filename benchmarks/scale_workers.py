"""The workers and links of simulated steps: measured on this repository's machines, or assumed and named so."""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scale_step import Link, Reduce, Worker, in_groups, quickest, ring

GBIT = 1e9 / 8  # bytes per second
LINKS: dict[str, Reduce] = {
    "1 Gbit/s": quickest(Link(30e-6, GBIT)),
    "10 Gbit/s": quickest(Link(30e-6, 10 * GBIT)),
    "100 Gbit/s": quickest(Link(30e-6, 100 * GBIT)),
    "300 GB/s": quickest(Link(5e-6, 300e9)),
    "machines of 8": in_groups(Link(5e-6, 300e9), Link(30e-6, 100 * GBIT)),
}
"""Latencies are assumed: 30 us per message between machines, 5 us between GPUs of one machine. A machine of 8 has
300 GB/s between its GPUs and one link of 100 Gbit/s to the others."""
CPU_LINKS: dict[str, Reduce] = {f"{speed} Gbit/s": ring(Link(30e-6, speed * GBIT)) for speed in (1, 10, 100)}
H200_TOKENS = 29
H200: dict[str, dict[int, tuple[float, ...]]] = {
    "BERT-base, captured": {32: (9963, 10499), 256: (23112, 23059)},
    "BERT-base, kernel by kernel": {32: (578, 638), 256: (3682, 4241)},
    "BERT-base, lora on a frozen encoder, captured": {32: (13234,), 256: (28111,)},
    "MiniLM, captured": {32: (22613, 21445), 256: (91625, 91668)},
    "MiniLM, kernel by kernel": {32: (935, 916), 256: (6667, 9106)},
}
"""Examples per second of one H200, by examples per step: benchmarks/2026-11-15-gpu-training-2-h200.md."""
H200_UPDATE = {"BERT-base": 0.86e-3, "MiniLM": 0.19e-3}
"""Seconds of the update: benchmarks/2026-11-15-gpu-training-h200.md."""
H200_BYTES = 4.8e12
"""Bytes per second of its memory: benchmarks/2026-11-15-gpu-training-2-h200.md.

A copy zeroes, reads and writes: three times the bytes."""


def h200(name: str) -> Worker:
    """A line through the two measured steps; launched kernel by kernel, at least as long as those two."""
    rates = H200[name]
    (few, short), (many, long) = ((n, n / statistics.fmean(r)) for n, r in rates.items())
    if name.endswith("kernel by kernel"):
        captured = h200(name.replace("kernel by kernel", "captured"))
        return replace(captured, floor=(short + long) / 2)
    slope = (long - short) / (many - few) / H200_TOKENS
    update = H200_UPDATE[name.split(",")[0]]
    return Worker(short - slope * few * H200_TOKENS, slope, copy=3 / H200_BYTES, update=update)


def fitted(measured: Mapping[str, Any], variant: str) -> tuple[float, float]:
    """Fixed seconds and seconds per token: the line through the measured steps of a variant."""
    rounds = [taken for own in measured["steps"].values() for taken in own]
    points = [point for taken in rounds for one in taken[variant] for point in one["steps"]]
    seconds, tokens = np.array(points).T
    slope, start = np.polyfit(tokens, seconds, 1)
    return float(start), float(slope)


def measured_link(measured: Mapping[str, Any]) -> Link:
    """Latency and bandwidth of a ring of two: 2 messages, and as many bytes as the tensor has."""
    medians = {
        int(size): statistics.median(s for part in measured["parts"] for s in part["reduce"][size])
        for size in measured["parts"][0]["reduce"]
    }
    smallest, largest = min(medians), max(medians)
    latency = medians[smallest] / 2
    return Link(latency, largest / (medians[largest] - 2 * latency))


def measured_copy(measured: Mapping[str, Any]) -> float:
    """Seconds per byte of copying all gradients, while the other process does the same."""
    seconds: list[float] = [s for part in measured["parts"] for s in part["both"]["copy"]]
    return statistics.median(seconds) / float(4 * measured["parameters"])


def measured_update(measured: Mapping[str, Any]) -> float:
    """Seconds of clipping and the update, while the other process does the same."""
    seconds: list[float] = [s for part in measured["parts"] for s in part["both"]["update"]]
    return statistics.median(seconds)


def cpu_worker(measured: Mapping[str, Any]) -> Worker:
    """One process with one thread on a machine of its own."""
    one: list[float] = [s for part in measured["parts"] for s in part["one"]["copy"]]
    copy = statistics.median(one) / (4 * measured["parameters"])
    return Worker(*fitted(measured, "1 x 1"), copy=copy, sends_meanwhile=False)
