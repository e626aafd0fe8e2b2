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
        *,
        copies: Mapping[str, int] | None = None,
        masked: Mapping[str, float] | None = None,
    ) -> None:
        self.examples = examples
        self.apart = apart
        self.packer = packer
        self.seed = seed
        self.taught = taught or {}
        """What each task's teacher says of its examples, in their order."""
        self.copies = copies or {}
        """How often a task's texts go into the stream, where that is not once."""
        self.masked = masked or {}
        """Of tasks whose tokens are to be guessed, the share that is hidden."""
        self.given = dict.fromkeys(examples, 0)
        self._orders: dict[str, tuple[int, npt.NDArray[np.integer]]] = {}

    def next_stream(self, draws: Sequence[Draw]) -> Stream:
        parts, taught = [], {}
        for draw in draws:
            first = self.given[draw.task]
            indices = self.next_indices(draw)
            parts.append(self._part(draw.task, indices, first))
            if draw.task in self.taught:
                taught[draw.task] = self.taught[draw.task][indices]
        return replace(self.packer.pack(parts), taught=taught)

    def _part(self, task: str, indices: Sequence[int], first: int) -> Part:
        """These examples of a task; `first` is the number of those it gave before."""
        examples = self.examples[task]
        texts = [examples.tokens(i) * self.copies.get(task, 1) for i in indices]
        if task not in self.masked:
            return Part(task, texts, self.apart[task], examples.labels[indices])
        # Each example in each pass has a number of its own, so that no pass hides what the last one did.
        rngs = [seeds.generator(self.seed, "mask", task, first + n) for n in range(len(texts))]
        share = self.masked[task]
        return Part.masked(task, [self.packer.masked(text[0], share, r) for text, r in zip(texts, rngs, strict=True)])

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
