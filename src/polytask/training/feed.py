"""The order of the training examples, and the streams made of them. Knows indices and ids; knows no model.

Each task goes through its examples in an order drawn anew for every pass from (seed, task, pass), so the whole state is
the number of examples each task has given, and what is remembered of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from polytask import seeds
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.training.memory import Memory
from polytask.types import Draw, TokenizedExamples


@dataclass(frozen=True)
class Batch:
    """What one forward pass of a step, or the passes of its tasks one by one, are made of."""

    together: Stream
    """All tasks of the step, and remembered examples that are learned from."""
    by_task: tuple[Stream, ...] = ()
    """The same without what is remembered, each task by itself; empty where gradients are not told apart."""
    remembered: tuple[Stream, ...] = ()
    """Examples that only judge the step's gradient, a stream for each gradient they make."""


class Feed:
    """Gives what a step's draws are."""

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
        memory: Memory | None = None,
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
        self.memory = memory
        self.given = dict.fromkeys(examples, 0)
        self._orders: dict[str, tuple[int, npt.NDArray[np.integer]]] = {}

    def next_batch(self, draws: Sequence[Draw], tell_apart: bool = False, static_shape: bool = False) -> Batch:
        """The next examples of the tasks drawn; with `tell_apart`, each task in a stream of its own too."""
        number = sum(self.given.values())  # differs for every batch of a run, so what is drawn of memories does too
        own = []
        for draw in draws:
            first = self.given[draw.task]
            own.append((draw.task, self.next_indices(draw), first))
        remembered = self._remembered([task for task, _, _ in own], sum(draw.count for draw in draws), number)
        plan = self.memory.plan if self.memory is not None else None
        if self.memory is not None:
            for task, indices, _ in own:
                self.memory.observe(task, indices)
        together = self._stream([*own, *remembered] if plan is not None and plan.trained else own, static_shape)
        if not tell_apart:
            return Batch(together)
        groups = [remembered] if plan is not None and plan.one_gradient else [[one] for one in remembered]
        return Batch(
            together,
            tuple(self._stream([one]) for one in own),
            tuple(self._stream(group) for group in groups if group),
        )

    def _remembered(self, tasks: Sequence[str], count: int, number: int) -> list[tuple[str, list[int], int]]:
        """Some examples of the memory of every task that is not in the step."""
        if self.memory is None:
            return []
        each = self.memory.plan.batch or count
        return [(task, self.memory.draw(task, each, number), number) for task in self.memory.others(tasks)]

    def _stream(self, chosen: Sequence[tuple[str, Sequence[int], int]], static_shape: bool = False) -> Stream:
        parts = [self._part(task, indices, first) for task, indices, first in chosen]
        taught = {task: self.taught[task][list(indices)] for task, indices, _ in chosen if task in self.taught}
        return replace(self.packer.pack(parts, static_shape=static_shape), taught=taught)

    def _part(self, task: str, indices: Sequence[int], first: int) -> Part:
        """These examples of a task; `first` is the number of those it gave before."""
        examples = self.examples[task]
        texts = [examples.tokens(i) * self.copies.get(task, 1) for i in indices]
        if task not in self.masked:
            return Part(task, texts, self.apart[task], examples.labels[list(indices)])
        # Each example in each pass has a number of its own, so that no pass hides what the last one did.
        rngs = [seeds.generator(self.seed, "mask", task, first + n) for n in range(len(texts))]
        share = self.masked[task]
        return Part.masked(task, [self.packer.masked(text[0], share, r) for text, r in zip(texts, rngs, strict=True)])

    def drawn(self, task: str, count: int, *names: str | int) -> Stream:
        """Some of a task's examples, each once at most, by (seed, names, task); what is given next stays the same."""
        size = len(self.examples[task])
        rng = seeds.generator(self.seed, *names, task)
        indices = rng.choice(size, min(count, size), replace=False).tolist()
        return self._stream([(task, indices, self.given[task])])

    def sample(self, task: str, count: int) -> Iterator[Stream]:
        """Some of a task's examples, each alone: drawn from (seed, task), and not counted among those given."""
        order = seeds.generator(self.seed, "sample", task).permutation(len(self.examples[task]))
        for number, index in enumerate(order[:count].tolist()):
            yield self._stream([(task, [index], number)])

    def next_indices(self, draw: Draw) -> list[int]:
        """The task's next examples; a new pass starts where the last one ends, inside a batch too."""
        size = len(self.examples[draw.task])
        first = self.given[draw.task]
        self.given[draw.task] += draw.count
        passes, places = np.divmod(np.arange(first, first + draw.count), size)
        chosen = [self._order(draw.task, number)[places[passes == number]] for number in np.unique(passes).tolist()]
        indices: list[int] = np.concatenate(chosen).tolist() if chosen else []
        return indices

    def _order(self, task: str, number: int) -> npt.NDArray[np.integer]:
        held = self._orders.get(task)
        if held is None or held[0] != number:
            held = (number, seeds.generator(self.seed, "order", task, number).permutation(len(self.examples[task])))
            self._orders[task] = held
        return held[1]

    def state_dict(self) -> dict[str, Any]:
        return {"given": dict(self.given), "memory": None if self.memory is None else self.memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.given = {task: int(state["given"][task]) for task in self.given}
        if self.memory is not None:
            self.memory.load_state_dict(state["memory"])
