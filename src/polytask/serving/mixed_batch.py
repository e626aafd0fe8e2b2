"""Computes the items of a batch, whatever their tasks: those that need the stream in one stream. Knows no queue."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from polytask.modes import eval_mode
from polytask.serving.items import Answer, Embedded, Group, Item
from polytask.serving.plain import Pooled
from polytask.serving.predictor import Predictor
from polytask.stream import Pooling, Stream
from polytask.text.packing import Ids, Part
from polytask.text.texts import Texts
from polytask.text.windows import cut_windows, join_windows
from polytask.types import Prediction


class MixedBatch:
    """Items of one model that are computed together, all cut at the same end, as the predictor's packer cuts."""

    def __init__(self, predictor: Predictor, items: Sequence[Item]) -> None:
        self.predictor, self.items = predictor, items
        self.model, self.packer = predictor.bundle.model, predictor.bundle.packer
        self.vectors: dict[int, Tensor] = {}
        self.predictions: list[dict[str, Prediction]] = [{} for _ in items]

    def answers(self) -> list[Answer]:
        """Return the answer to each item."""
        pooled = [i for i, item in enumerate(self.items) if self.predictor.plain is not None and self._pools(item)]
        if pooled:
            self._compute_plain(pooled)
        rest = sorted(set(range(len(self.items))).difference(pooled))
        if predicted := [i for i in rest if self.items[i].group]:
            self._compute_stream(predicted)
        self._embed([i for i in rest if not self.items[i].group])
        return [self._answer(i) for i in range(len(self.items))]

    def _answer(self, index: int) -> Answer:
        item = self.items[index]
        if item.group:
            return self.predictions[index]
        return Embedded(self.vectors[index].float().numpy(), item.full_length, item.truncated)

    def _pools(self, item: Item) -> bool:
        """Return whether the item needs pooled vectors only, and not the states of all tokens."""
        return not item.group or all(self.model.head(task).pooling is not None for task in item.tasks)

    def _texts(self, indices: Sequence[int]) -> Texts:
        return Texts.joined([self.items[i].texts for i in indices])

    # --- without adapters, on the CPU ---------------------------------------------------------------------------------
    def _compute_plain(self, indices: Sequence[int]) -> None:
        """Compute items with the faster encoder, which computes equal sequences once, whatever their tasks."""
        assert self.predictor.plain is not None
        sequences: list[tuple[list[Ids], int]] = []
        places: dict[int, list[int]] = {}
        for i in indices:
            item = self.items[i]
            (texts,) = item.texts
            own = list(self.packer.sequences(texts, self.model.head(item.group[0]).reading if item.group else "joined"))
            places[i] = list(range(len(sequences), len(sequences) + len(own)))
            sequences += own
        poolings = {pooling for i in indices for pooling in self._poolings(self.items[i])}
        pooled = self.predictor.plain.vectors(sequences, poolings)

        def rows(chosen: Sequence[int]) -> Pooled:
            index_S = torch.tensor([place for i in chosen for place in places[i]])
            return Pooled({name: vectors_SD[index_S] for name, vectors_SD in pooled.vectors.items()})

        for i in indices:
            if not self.items[i].group:
                pooling = self.model.embedding_pooling(self.items[i].embedding_task)
                self.vectors[i] = pooled.vectors[pooling][places[i][0]]
        for task in self.model.tasks:
            if own_items := [i for i in indices if self.items[i].group and task in self.items[i].tasks]:
                self._decode(task, own_items, self.model.head(task)(rows(own_items)))

    def _poolings(self, item: Item) -> list[Pooling]:
        if not item.group:
            return [self.model.embedding_pooling(item.embedding_task)]
        return [pooling for task in item.tasks if (pooling := self.model.head(task).pooling) is not None]

    # --- with adapters, heads of all tokens, or a GPU -----------------------------------------------------------------
    def _compute_stream(self, indices: Sequence[int]) -> None:
        """Compute items of all tasks in one pass over one stream, in which each adapter sees its own part."""
        parts: list[Part] = []
        rows_of: dict[Group, list[int]] = {}
        items_of = {group: [i for i in indices if self.items[i].group == group] for group in self._groups(indices)}
        for group, own in items_of.items():
            texts, form = self._texts(own), self.model.input_format(group[0])
            if form.stride is not None:
                size = self.packer.max_length - 2
                texts, rows_M = cut_windows(texts, size, form.window_stride(size))
                rows_of[group] = rows_M.tolist()
            parts.append(self.packer.part(group[0], texts, form))
        wanted = {task for i in indices for task in self.items[i].tasks}
        stream, bf16 = self._stream(parts), self.predictor.bf16
        with eval_mode(self.model), torch.autocast(self.model.device.type, torch.bfloat16, enabled=bf16):
            hidden_TD = self.model.encode(stream)
            outputs = {
                task: self.model.output(task, group[0], hidden_TD, stream).float().cpu()
                for group in items_of
                for task in group
                if task in wanted
            }
        for group, own in items_of.items():
            for task in (task for task in group if task in wanted):
                joined = join_windows(outputs[task], rows_of[group]) if group in rows_of else outputs[task]
                places = [place for place, i in enumerate(own) if task in self.items[i].tasks]
                self._decode(task, [own[place] for place in places], joined[places])

    def _groups(self, indices: Sequence[int]) -> list[Group]:
        return list(dict.fromkeys(self.items[i].group for i in indices))

    def _stream(self, parts: Sequence[Part]) -> Stream:
        stream = self.packer.pack(parts)
        if len(parts) == 1:  # whatever is fast for a single task may be used
            stream = replace(stream, layout=replace(stream.layout, length_bound=stream.layout.max_length))
        return stream.to(self.model.device)

    def _embed(self, indices: Sequence[int]) -> None:
        """Compute embeddings: one pass for each task whose embedding is wanted."""
        passes: dict[tuple[str | None, int], list[int]] = {}
        for i in indices:
            passes.setdefault((self.items[i].embedding_task, len(self.items[i].example)), []).append(i)
        for (task, _), own in passes.items():
            self.vectors |= dict(zip(own, self.predictor.vectors(self._texts(own), task), strict=True))

    def _decode(self, task: str, indices: Sequence[int], outputs: Tensor) -> None:
        lengths_NW = np.concatenate([self.items[i].lengths_1W for i in indices])
        examples = [self.items[i].example for i in indices]
        for i, prediction in zip(indices, self.predictor.decode(task, outputs, lengths_NW, examples), strict=True):
            self.predictions[i][task] = prediction
