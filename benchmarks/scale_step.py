"""Simulates a training step of N workers that hold the whole model and sum their gradients: arithmetic only.

A step takes as long as its longest part. Gradients are sent in messages, each as soon as the backward pass has computed
it and the message before it has arrived; what is still under way when the backward pass ends is waited for. Then every
worker makes the same update.

    T(N) = max(floor, fixed + per_token * longest part) + copy * bytes + waiting(N) + 3 all_reduce(N, small)
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polytask.training.division import equal_parts

SMALL, SMALL_SUMS = 64, 3
"""Bytes of a sum of losses, or of counts (some float64 numbers per task), and how many of them a step has."""
BACKWARD = 2 / 3
"""The share of the backward pass in a step without its update: it has two matmuls for each one of the forward pass."""
Reduce = Callable[[int, float], float]
"""The number of workers and the bytes of a tensor -> the seconds of its all-reduce."""
Messages = Sequence[tuple[float, float]]
"""The share of the backward pass after which each message can be sent, and its bytes; in the order of sending."""


@dataclass(frozen=True)
class Worker:
    """How fast one worker is."""

    fixed: float
    """Seconds of a step that do not depend on its tokens: the update, and what every pass needs."""
    per_token: float
    """Seconds of the forward and backward pass, per token."""
    floor: float = 0.0
    """Seconds that launching the kernels of a step takes; a step cannot be faster."""
    copy: float = 0.0
    """Seconds per byte of copying gradients into the tensors that are sent."""
    update: float = 0.0
    """Seconds of the update, which is a part of the fixed ones."""
    sends_meanwhile: bool = True
    """Whether messages travel during the backward pass. Not on a CPU, whose cores would have to do both."""

    def compute(self, tokens: float) -> float:
        return max(self.floor, self.fixed + self.per_token * tokens)


@dataclass(frozen=True)
class Link:
    """A link between two workers: seconds per message, and bytes per second in each direction."""

    latency: float
    bandwidth: float


def ring(link: Link) -> Reduce:
    """Each worker sends 2 (N - 1) messages of 1 / N of the bytes to its neighbour."""
    return lambda count, size: 2 * (count - 1) * (link.latency + size / count / link.bandwidth)


def tree(link: Link) -> Reduce:
    """The tensor goes up a binary tree and down again in small pieces, each of which is passed on at once.

    That is the limit of NCCL's double binary trees: twice the bytes, and two messages per level.
    """
    return lambda count, size: 2 * math.ceil(math.log2(count)) * link.latency + 2 * (count > 1) * size / link.bandwidth


def quickest(link: Link) -> Reduce:
    """Ring or tree, whichever is faster, as NCCL chooses too; gloo always uses the ring."""
    return lambda count, size: min(ring(link)(count, size), tree(link)(count, size))


def in_groups(inside: Link, between: Link, group: int = 8) -> Reduce:
    """Machines of `group` workers: summed inside each, then between machines, where a machine has one link."""

    def seconds(count: int, size: float) -> float:
        machines = math.ceil(count / group)
        return quickest(inside)(min(count, group), size) + quickest(between)(machines, size)

    return seconds


@dataclass(frozen=True)
class Step:
    """The seconds of a simulated step."""

    compute: float
    copy: float
    waiting: float
    """For gradients, after the backward pass."""
    small: float

    @property
    def total(self) -> float:
        return self.compute + self.copy + self.waiting + self.small


def longest_part(lengths: Sequence[int], count: int) -> int:
    """The tokens of the largest part, given the tokens of each example of the step."""
    ends = equal_parts(lengths, count)
    return max(sum(lengths[first:end]) for first, end in itertools.pairwise(ends))


def step_of(worker: Worker, reduce: Reduce, count: int, longest: float, messages: Messages) -> Step:
    """A step of `count` workers, of whom the slowest has `longest` tokens."""
    compute = worker.compute(longest)
    if count == 1:
        return Step(compute, 0.0, 0.0, 0.0)
    backward = BACKWARD * (compute - worker.update) if worker.sends_meanwhile else 0.0
    arrived = 0.0
    for share, size in messages:
        arrived = max(arrived, share * backward) + reduce(count, size)
    copy = worker.copy * sum(size for _, size in messages)
    return Step(compute, copy, max(arrived - backward, 0.0), SMALL_SUMS * reduce(count, SMALL))
