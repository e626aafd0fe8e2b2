"""The multi-task model: one encoder, one adapter, a head for each task. Knows interfaces, no concrete method."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polytask import seeds
from polytask.adapters.base import Adapter, LayerAdapter
from polytask.encoders.bert import Bert
from polytask.heads.base import Head
from polytask.seeds import RandomState
from polytask.stream import Encoded, Stream
from polytask.text.packing import Ids, Packer, Part, batches_by_length


@dataclass(frozen=True)
class Pass:
    """One forward pass over a stream, with what a second one beside it needs."""

    stream: Stream
    words_TD: Tensor
    """The word vectors that went in."""
    states: tuple[Tensor, ...]
    """The embeddings' output and that of each layer."""
    outputs: Mapping[str, Tensor]
    """Of each task in the stream."""
    random: RandomState
    """What the pass drew its dropout from."""


class MultiTaskModel(nn.Module):
    """One pass of the encoder over a stream answers every task in it."""

    def __init__(self, encoder: Bert, adapter: Adapter, heads: Mapping[str, Head]) -> None:
        super().__init__()
        self.encoder = encoder
        self.adapter = adapter
        self.heads = nn.ModuleDict(heads)
        self.tasks = tuple(heads)
        for head in heads.values():
            head.set_norm_eps(encoder.shape.norm_eps)

    def head(self, task: str) -> Head:
        head = self.heads[task]
        assert isinstance(head, Head)
        return head

    @property
    def device(self) -> torch.device:
        return self.encoder.words.weight.device

    def forward(self, stream: Stream, words_TD: Tensor | None = None) -> dict[str, Tensor]:
        """Each task's outputs. `words_TD` stands in for the word vectors."""
        return self.outputs(self.encoder.encode(stream, self.adapter, words_TD), stream)

    def run(self, stream: Stream, words_TD: Tensor | None = None) -> Pass:
        """The same, keeping what lies between."""
        random = RandomState(self.device)
        words_TD = self.encoder.words(stream.token_ids_T) if words_TD is None else words_TD
        embedded_TD = self.encoder.embed(stream, self.adapter, words_TD)
        states = (embedded_TD, *self.encoder.states(embedded_TD, stream.layout, self.adapter))
        return Pass(stream, words_TD, states, self.outputs(states[-1], stream), random)

    def again(self, done: Pass, words_TD: Tensor | None = None) -> Pass:
        """A second pass over the same stream with the same dropout, so that only `words_TD` makes a difference."""
        with done.random.again():
            return self.run(done.stream, words_TD)

    def outputs(self, hidden_TD: Tensor, stream: Stream) -> dict[str, Tensor]:
        """Each task's outputs, given the encoder's last hidden states."""
        layout = stream.layout
        return {
            task: self.head(task)(
                Encoded(hidden_TD, layout, k, self.encoder.pool, self.encoder.words.weight, stream.labels.get(task))
            )
            for k, task in enumerate(self.tasks)
            if layout.sequence_ranges[k][0] < layout.sequence_ranges[k][1]
        }

    def answer(
        self, task: str, texts: Sequence[tuple[Ids, ...]], packer: Packer, token_budget: int = 8192, bf16: bool = False
    ) -> Tensor:
        """One task's outputs for many tokenized examples, in their order, whatever order they were computed in.

        Where the head wants tokens hidden, the same text in the same place always loses the same ones.
        """
        return self.answers([task], texts, packer, token_budget, bf16)[task]

    @torch.inference_mode()
    def answers(
        self,
        tasks: Sequence[str],
        texts: Sequence[tuple[Ids, ...]],
        packer: Packer,
        token_budget: int = 8192,
        bf16: bool = False,
    ) -> dict[str, Tensor]:
        """The outputs of tasks that one pass of the encoder can answer (`passes`), for the same examples."""
        was_training = self.training
        self.eval()
        head = self.head(tasks[0])
        assert len(self.passes(tasks)) == 1
        texts = [ids * head.copies for ids in texts]
        lengths = [packer.length(tuple(map(len, ids)), head.apart) for ids in texts]
        pieces: dict[str, list[Tensor]] = {task: [] for task in tasks}
        order: list[int] = []
        for batch in batches_by_length(lengths, token_budget):
            if head.masked is None:
                part = Part(tasks[0], [texts[i] for i in batch], head.apart)
            else:
                hide = [packer.masked(texts[i][0], head.masked, seeds.generator(0, "mask", i)) for i in batch]
                part = Part.masked(tasks[0], hide)
            stream = packer.pack([part]).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
                hidden_TD = self.encoder.encode(stream, self.adapter)
                for task in tasks:
                    pieces[task].append(self._output(task, tasks[0], hidden_TD, stream).float().cpu())
            order += batch
        self.train(was_training)
        places = torch.from_numpy(np.argsort(order))
        return {task: torch.cat(found)[places] for task, found in pieces.items()}

    def _output(self, task: str, packed_as: str, hidden_TD: Tensor, stream: Stream) -> Tensor:
        """A task's outputs for what stands in the stream as another's."""
        k, labels = self.tasks.index(packed_as), stream.labels.get(packed_as)
        encoded = Encoded(hidden_TD, stream.layout, k, self.encoder.pool, self.encoder.words.weight, labels)
        output: Tensor = self.head(task)(encoded)
        return output

    def passes(self, tasks: Sequence[str]) -> list[tuple[str, ...]]:
        """The tasks in groups: one pass of the encoder over the same texts answers all tasks of a group.

        They read a pair the same way, and nothing inside the encoder is a task's own.
        """
        groups: dict[tuple[object, ...], list[str]] = {}
        for task in tasks:
            head = self.head(task)
            alone = head.masked is not None or self.adapter.task_parameters(task)
            groups.setdefault((head.apart, head.copies, task if alone else None), []).append(task)
        return [tuple(group) for group in groups.values()]

    @property
    def is_plain(self) -> bool:
        """Whether the adapter leaves every slot as it is, so that the encoder alone does all the work."""
        return all(type(part) is LayerAdapter for part in (self.adapter.embedding, *self.adapter.layers))

    def parts(self) -> Iterator[tuple[str, int, nn.Module]]:
        """The model's parts as (name, height, module): 0 the embeddings, 1 the first layer ... the heads on top.

        This is what layer-wise learning rates and the parameter budget go by.
        """
        encoder = self.encoder
        for name in ("words", "positions", "segments", "norm"):
            yield f"encoder.{name}", 0, getattr(encoder, name)
        for index, layer in enumerate(encoder.layers):
            yield f"encoder.layers.{index}", index + 1, layer
        yield "encoder.pooler", len(encoder.layers), encoder.pooler
        yield "adapter", len(encoder.layers) + 1, self.adapter
        yield "heads", len(encoder.layers) + 1, self.heads

    def budget(self) -> dict[str, Any]:
        """How many parameters are shared, how many each task has for itself, and how many learn."""
        per_task = {
            task: _count(self.head(task).parameters()) + _count(self.adapter.task_parameters(task))
            for task in self.tasks
        }
        adapter = _count(self.adapter.parameters())
        own = sum(_count(self.adapter.task_parameters(task)) for task in self.tasks)
        return {
            "encoder": _count(self.encoder.parameters()),
            "adapter_shared": adapter - own,
            "per_task": per_task,
            "total": _count(self.parameters()),
            "trainable": _count(p for p in self.parameters() if p.requires_grad),
        }


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)
