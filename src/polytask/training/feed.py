"""The order of the training examples, and the streams they are packed into. Knows indices and ids; knows no model.

Each task goes through its examples in an order that depends on (seed, task, epoch of the task), so the whole state is
the number of examples drawn per task, and the memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask import seeds
from polytask.samplers.base import ExampleOrder
from polytask.stream import Stream
from polytask.text.packing import InputFormat, Packer, Part
from polytask.text.sequences import Sequences
from polytask.text.texts import texts_of
from polytask.text.windows import WindowedExamples, with_words
from polytask.training.memory import Memory
from polytask.types import Draw, TokenizedExamples, has_label

AHEAD = 1024
"""How many examples of a task are turned into sequences at once."""


class Batch:
    """The streams of one forward pass of a step, or of one pass per task if per-task gradients are needed.

    A stream is packed when it is first used, so that it can be packed while a GPU computes the one before it.
    """

    def __init__(
        self,
        together: Callable[[], Stream],
        by_task: Sequence[Callable[[], Stream]] = (),
        remembered: Sequence[Callable[[], Stream]] = (),
    ) -> None:
        self._together, self._by_task, self._remembered = together, by_task, remembered

    @cached_property
    def together(self) -> Stream:
        """All tasks of the step, and the examples from memory that are trained on."""
        return self._together()

    def by_task(self) -> Iterator[Stream]:
        """Each task of the step in a stream of its own, without memory; empty if one gradient is enough."""
        return (pack() for pack in self._by_task)

    def remembered(self) -> Iterator[Stream]:
        """Examples from memory that only constrain the step's gradient, one stream per gradient."""
        return (pack() for pack in self._remembered)


@dataclass(frozen=True)
class _Chosen:
    """Examples of one task, by index."""

    task: str
    indices: Sequence[int]
    number: int
    """Counts the examples, so that masking differs from epoch to epoch."""
    in_order: bool = False
    """Whether they are the next examples of the task's order, from its `number`-th on."""


@dataclass(frozen=True)
class _Ahead:
    """Examples of one epoch of a task, in its order, whose sequences are made together because that is faster."""

    first: int
    """Number of the first example, counted from the start of the run."""
    sequences: Sequences
    per_example: int
    """Number of sequences of an example."""
    labels: npt.NDArray[Any]
    options: int = 1
    """Number of options of an example."""

    def part(self, task: str, first: int, count: int) -> Part | None:
        """Some of the examples, if they are all here."""
        start, end = first - self.first, first - self.first + count
        if start < 0 or end > len(self.labels):
            return None
        sequences = self.sequences.slice(start * self.per_example, end * self.per_example)
        return Part(task, sequences, labels=self.labels[start:end], sequence_options=self.options)


class Feed:
    """Packs the examples of each step into streams."""

    def __init__(
        self,
        examples: Mapping[str, TokenizedExamples],
        packer: Packer,
        seed: int,
        *,
        formats: Mapping[str, InputFormat] | None = None,
        teacher_outputs: Mapping[str, Tensor] | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.packer = packer
        self.seed = seed
        self.formats = formats or {}
        """How each task's examples are turned into sequences (`MultiTaskModel.input_format`)."""
        self.examples = {task: self._windows(task, own) for task, own in examples.items()}
        self.teacher_outputs: dict[str, Tensor] = {}
        """The outputs of each task's teacher for its examples, in their order."""
        self.memory = memory
        self.use_teachers(teacher_outputs or {})
        self.given = dict.fromkeys(examples, 0)
        """The number of examples drawn per task."""
        self.sampled: dict[str, Sequence[int]] = {}
        """By task: the examples that `sample` draws from, if not from all."""
        self.order = ExampleOrder({task: len(own) for task, own in self.examples.items()}, seed)
        self._ahead: dict[str, _Ahead] = {}

    def _windows(self, task: str, examples: TokenizedExamples) -> TokenizedExamples:
        """Return the examples, or the windows of long texts if the task has an output for each word."""
        form = self.formats.get(task, InputFormat())
        size = self.packer.max_length - 2
        return examples if form.stride is None else WindowedExamples(examples, size, form.window_stride(size))

    def use_teachers(self, outputs: Mapping[str, Tensor]) -> None:
        """Set the outputs of the tasks' teachers for the examples that the feed was made with."""
        self.teacher_outputs = dict(outputs)
        for task, examples in self.examples.items():
            if task in outputs and isinstance(examples, WindowedExamples):
                self.teacher_outputs[task] = torch.from_numpy(examples.cut(outputs[task].numpy(), 0))

    def next_batch(self, draws: Sequence[Draw], per_task_gradients: bool = False, static_shape: bool = False) -> Batch:
        """Pack the next examples of these tasks; with `per_task_gradients`, also each task in its own stream."""
        number = sum(self.given.values())  # different for every batch of a run
        own = []
        for draw in draws:
            first = self.given[draw.task]
            own.append(_Chosen(draw.task, self.next_indices(draw), first, in_order=True))
        remembered = self._draw_memory([chosen.task for chosen in own], sum(draw.count for draw in draws), number)
        plan = self.memory.plan if self.memory is not None else None
        if self.memory is not None:
            for chosen in own:
                self.memory.observe(chosen.task, self._labelled(chosen.task, chosen.indices))
        together = [*own, *remembered] if plan is not None and plan.trained else own
        pack = partial(self._stream, static_shape=static_shape)
        if not per_task_gradients:
            return Batch(partial(pack, together))
        groups = [remembered] if plan is not None and plan.one_gradient else [[chosen] for chosen in remembered]
        return Batch(
            partial(pack, together),
            [partial(pack, [chosen]) for chosen in own],
            [partial(pack, group) for group in groups if group],
        )

    def _labelled(self, task: str, indices: Sequence[int]) -> list[int]:
        """Leave out the examples that only a teacher labels."""
        labelled = has_label(self.examples[task].labels[np.asarray(indices, dtype=np.int64)])
        return [i for i, known in zip(indices, labelled, strict=True) if known]

    def _draw_memory(self, tasks: Sequence[str], count: int, number: int) -> list[_Chosen]:
        """Draw examples from the memory of every task that is not in the step."""
        if self.memory is None:
            return []
        each = self.memory.plan.batch or count
        return [_Chosen(task, self.memory.draw(task, each, number), number) for task in self.memory.others(tasks)]

    def _stream(self, chosen: Sequence[_Chosen], static_shape: bool = False) -> Stream:
        stream = self.packer.pack([self._part(one) for one in chosen], static_shape=static_shape)
        if not self.teacher_outputs:
            return stream
        outputs = {
            one.task: self.teacher_outputs[one.task][list(one.indices)]
            for one in chosen
            if one.task in self.teacher_outputs
        }
        outputs |= {task: with_words(outputs[task], len(w[0])) for task, w in stream.words.items() if task in outputs}
        return replace(stream, teacher_outputs=outputs)

    def _part(self, chosen: _Chosen) -> Part:
        task, number, indices = chosen.task, chosen.number, chosen.indices
        form = self.formats.get(task, InputFormat())
        part = None
        if chosen.in_order and form.mask_share is None:
            part = self._part_ahead(task, form, number, len(indices))
        if part is None:
            # The number differs for every example of every epoch, so that every epoch masks other tokens.
            rngs = seeds.generators(self.seed, "mask", task, numbers=range(number, number + len(indices)))
            part = self._new_part(task, form, np.array(indices, dtype=np.int64), rngs)
        return part

    def _part_ahead(self, task: str, form: InputFormat, first: int, count: int) -> Part | None:
        """The examples of a task from its `first`-th on, if they are all of one epoch."""
        ahead = self._ahead.get(task)
        part = None if ahead is None else ahead.part(task, first, count)
        if part is not None:
            return part
        epoch, place = divmod(first, len(self.examples[task]))
        indices = self.order.of_epoch(task, epoch)[place : place + max(AHEAD, 2 * count)]
        all_parts = self._new_part(task, form, indices)
        sequences = self.packer.sequences_of(all_parts)
        assert all_parts.labels is not None
        per_example = len(sequences) // len(indices)
        self._ahead[task] = _Ahead(first, sequences, per_example, all_parts.labels, all_parts.options)
        return self._ahead[task].part(task, first, count)

    def _new_part(
        self,
        task: str,
        form: InputFormat,
        indices: npt.NDArray[np.integer],
        rngs: Iterable[np.random.Generator] = (),
    ) -> Part:
        examples = self.examples[task]
        return self.packer.part(task, texts_of(examples, indices), form, examples.labels[indices], rngs)

    def draw(self, task: str, count: int, *names: str | int) -> Stream:
        """Draw examples of a task by (seed, names, task), without replacement and without advancing its order."""
        size = len(self.examples[task])
        rng = seeds.generator(self.seed, *names, task)
        indices = rng.choice(size, min(count, size), replace=False).tolist()
        return self._stream([_Chosen(task, indices, self.given[task])])

    def sample(self, task: str, count: int) -> Iterator[Stream]:
        """Yield up to `count` labelled examples of a task, each in its own stream, drawn by (seed, task)."""
        order = seeds.generator(self.seed, "sample", task).permutation(len(self.examples[task])).tolist()
        if task in self.sampled:
            allowed = set(self.sampled[task])
            order = [index for index in order if index in allowed]
        for number, index in enumerate(self._labelled(task, order)[:count]):
            yield self._stream([_Chosen(task, [index], number)])

    def next_indices(self, draw: Draw) -> list[int]:
        """Return the task's next examples; a new epoch of the task may start within a batch."""
        first = self.given[draw.task]
        self.given[draw.task] += draw.count
        return self.order.indices(draw.task, first, draw.count)

    def state_dict(self) -> dict[str, Any]:
        return {"given": dict(self.given), "memory": None if self.memory is None else self.memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.given = {task: int(state["given"][task]) for task in self.given}
        if self.memory is not None:
            self.memory.load_state_dict(state["memory"])
