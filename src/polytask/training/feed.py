"""The order of the training examples, and the streams made of them. Knows indices and ids; knows no model.

Each task goes through its examples in an order drawn anew for every pass from (seed, task, pass), so the whole state is
the number of examples each task has given.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from polytask import seeds
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.types import Draw, TokenizedExamples


class Feed:
    """Gives the stream for a step's draws."""

    def __init__(
        self,
        examples: Mapping[str, TokenizedExamples],
        apart: Mapping[str, bool],
        packer: Packer,
        seed: int,
        taught: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.examples = examples
        self.apart = apart
        self.packer = packer
        self.seed = seed
        self.taught = taught or {}
        """What each task's teacher says of its examples, in their order."""
        self.given = dict.fromkeys(examples, 0)
        self._orders: dict[str, tuple[int, npt.NDArray[np.integer]]] = {}

    def next_stream(self, draws: Sequence[Draw]) -> Stream:
        parts, taught = [], {}
        for draw in draws:
            examples = self.examples[draw.task]
            indices = self.next_indices(draw)
            texts = [examples.tokens(i) for i in indices]
            parts.append(Part(draw.task, texts, self.apart[draw.task], examples.labels[indices]))
            if draw.task in self.taught:
                taught[draw.task] = self.taught[draw.task][indices]
        return replace(self.packer.pack(parts), taught=taught)

    def next_indices(self, draw: Draw) -> list[int]:
        """The task's next examples; a new pass starts where the last one ends, inside a batch too."""
        size = len(self.examples[draw.task])
        first = self.given[draw.task]
        self.given[draw.task] += draw.count
        return [int(self._order(draw.task, n // size)[n % size]) for n in range(first, first + draw.count)]

    def _order(self, task: str, number: int) -> npt.NDArray[np.integer]:
        held = self._orders.get(task)
        if held is None or held[0] != number:
            held = (number, seeds.generator(self.seed, "order", task, number).permutation(len(self.examples[task])))
            self._orders[task] = held
        return held[1]

    def state_dict(self) -> dict[str, int]:
        return dict(self.given)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.given = {task: int(state[task]) for task in self.given}
