"""Samplers as batch samplers of a torch DataLoader, for training loops of one's own."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import torch.utils.data

from polytask.samplers.base import ExampleOrder, Sampler, SamplerContext
from polytask.types import UserError


class TaskBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Yields the indices of each batch's examples in a `ConcatDataset` of the tasks' datasets.

        sizes = {task: len(dataset) for task, dataset in datasets.items()}
        batches = TaskBatchSampler(SquareRoot, sizes, batch_size=32, epochs=3)
        loader = DataLoader(ConcatDataset(datasets.values()), batch_sampler=batches)

    `method` is a class of samplers, with `options` for its constructor. Each pass over the loader is the next epoch of
    `steps_per_epoch` batches (by default as many as contain all tasks' examples once). The examples of a batch are
    ordered by task, in the order of `sizes`. Batches depend only on the seed and the step and are those of a polytask
    run with the same seed, sampler and sizes.
    """

    def __init__(
        self,
        method: Callable[..., Sampler],
        sizes: Mapping[str, int],
        batch_size: int,
        *,
        epochs: int = 1,
        steps_per_epoch: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if not callable(method):
            raise UserError(f"method: must be a class of polytask.samplers, such as SquareRoot, found {method!r}")
        if batch_size < 1 or not sizes or min(sizes.values()) < 1:
            raise UserError(f"sizes and batch_size: must be at least 1, found {dict(sizes)} and {batch_size}")
        self.steps_per_epoch = steps_per_epoch or math.ceil(sum(sizes.values()) / batch_size)
        self.context = SamplerContext(sizes, batch_size, seed, self.steps_per_epoch, epochs)
        self.method, self.options = method, options
        self.order = ExampleOrder(sizes, seed)
        self.starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        """The index of each task's first example."""
        self.load_state_dict({"steps": 0})

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of the next epoch, or the rest of an epoch after `load_state_dict`."""
        for _ in range(self.steps_per_epoch - self.steps % self.steps_per_epoch):
            yield self._next_batch()

    def _next_batch(self) -> list[int]:
        self.steps += 1
        indices: list[int] = []
        for task, count in self._draws():
            drawn = self.order.indices(task, self.drawn[task], count)
            indices += [self.starts[task] + index for index in drawn]
            self.drawn[task] += count
        return indices

    def _draws(self) -> list[tuple[str, int]]:
        """The tasks of the next step with their number of examples, in the order of `sizes`."""
        draws = self.sampler.next_step()
        return [(task, sum(draw.count for draw in draws if draw.task == task)) for task in self.starts]

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches drawn so far.

        A loader with worker processes draws ahead: save `{"steps": n}` with your own count of steps instead.
        """
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the first `state["steps"]` batches."""
        self.sampler = self.method(self.context, **self.options)
        self.steps = state["steps"]
        self.drawn = dict.fromkeys(self.starts, 0)
        for _ in range(self.steps):
            for task, count in self._draws():
                self.drawn[task] += count
