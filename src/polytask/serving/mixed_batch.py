"""Computes the items of a batch, whatever their tasks: those that need the stream in one stream. Knows no queue."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.modes import eval_mode
from polytask.serving.forward import Forward
from polytask.serving.items import Answer, Embedded, Group, Item
from polytask.serving.plain import Pooled
from polytask.serving.predictor import Predictor
from polytask.stream import Pooling, Stream
from polytask.text.packing import Ids, Part
from polytask.text.texts import Texts
from polytask.text.windows import cut_windows, join_windows
from polytask.types import Prediction


class MixedBatch:
    """Items of one model that are computed together, all cut at the same end, as `forward` cuts."""

    def __init__(self, predictor: Predictor, forward: Forward, items: Sequence[Item]) -> None:
        self.predictor, self.forward, self.items = predictor, forward, items
        self.model, self.packer = forward.bundle.model, forward.bundle.packer
        self.vectors: dict[int, Tensor] = {}
        self.predictions: list[dict[str, Prediction]] = [{} for _ in items]

    def answers(self) -> list[Answer]:
        """Return the answer to each item."""
        pooled = [i for i, item in enumerate(self.items) if self.forward.plain is not None and self._pools(item)]
        if pooled:
            self._compute_plain(pooled)
        rest = sorted(set(range(len(self.items))).difference(pooled))
        for predicted in self._streams([i for i in rest if self.items[i].group]):
            self._compute_stream(predicted)
        self._embed([i for i in rest if not self.items[i].group])
        return [self._answer(i) for i in range(len(self.items))]

    def _answer(self, index: int) -> Answer:
        item = self.items[index]
        if item.group:
            return self.predictions[index]
        windows = int(self.packer.window_counts(item.lengths_1W, item.form).max())
        return Embedded(self.vectors[index].float().numpy(), item.full_length, item.truncated, windows)

    def _pools(self, item: Item) -> bool:
        """Return whether the item needs pooled vectors only, and not the states of all tokens."""
        return not item.group or all(self.model.head(task).pooling is not None for task in item.tasks)

    def _texts(self, indices: Sequence[int]) -> Texts:
        return Texts.joined([self.items[i].texts for i in indices])

    # --- without adapters, on the CPU ---------------------------------------------------------------------------------
    def _compute_plain(self, indices: Sequence[int]) -> None:
        """Compute items with the faster encoder, which computes equal sequences once, whatever their tasks."""
        assert self.forward.plain is not None
        sequences: list[tuple[list[Ids], int]] = []
        places: dict[int, range] = {}
        windows: dict[int, npt.NDArray[np.int64]] = {}
        for i in indices:
            own, windows_M = self.forward.sequences(self.items[i].texts, self.items[i].form)
            places[i] = range(len(sequences), len(sequences) + len(own))
            sequences += own
            if windows_M is not None:
                windows[i] = windows_M
        poolings = {pooling for i in indices for pooling in self._poolings(self.items[i])}
        pooled = self.forward.plain.vectors(sequences, poolings)

        def rows(chosen: Sequence[int]) -> Pooled:
            """The vectors of items with the same form and number of texts."""
            form, width = self.items[chosen[0]].form, self.items[chosen[0]].width
            index_S = torch.tensor([place for i in chosen for place in places[i]])
            given_BM = pooled.given_BM[index_S].view(-1, width - 1 if form.reading == "options" else 1)
            own = Pooled({name: vectors_SD[index_S] for name, vectors_SD in pooled.vectors.items()}, given_BM)
            if form.windows is None:
                return own
            return own.over_windows(np.concatenate([windows[i] for i in chosen]), form.windows)

        for i in indices:
            if not self.items[i].group:
                self.vectors[i] = rows([i]).pool(self._poolings(self.items[i])[0])[0]
        for task in self.model.tasks:
            for chosen in self._same_width([i for i in indices if self.items[i].group and task in self.items[i].tasks]):
                self._decode(task, chosen, self.model.head(task)(rows(chosen)))

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
            texts, form = self._texts(own), self.items[own[0]].form
            if form.stride is not None:
                size = self.packer.max_length - 2
                texts, rows_M = cut_windows(texts, size, form.window_stride(size))
                rows_of[group] = rows_M.tolist()
            parts.append(self.packer.part(group[0], texts, form))
        wanted = {task for i in indices for task in self.items[i].tasks}
        stream, bf16 = self._stream(parts), self.forward.bf16
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

    def _streams(self, indices: Sequence[int]) -> list[list[int]]:
        """Split items into streams: usually one. All examples of a task in a stream have the same number of texts."""
        streams: list[list[int]] = []
        for group in self._groups(indices):
            for number, own in enumerate(self._same_width([i for i in indices if self.items[i].group == group])):
                streams += [[]] if number == len(streams) else []
                streams[number] += own
        return streams

    def _same_width(self, indices: Sequence[int]) -> Iterator[list[int]]:
        """Yield the items with the same number of texts, which differs only if texts have options."""
        for width in dict.fromkeys(self.items[i].width for i in indices):
            yield [i for i in indices if self.items[i].width == width]

    def _stream(self, parts: Sequence[Part]) -> Stream:
        stream = self.packer.pack(parts)
        if len(parts) == 1:  # whatever is fast for a single task may be used
            stream = replace(stream, layout=replace(stream.layout, length_bound=stream.layout.max_length))
        return stream.to(self.model.device)

    def _embed(self, indices: Sequence[int]) -> None:
        """Compute embeddings: one pass for each task whose embedding is wanted."""
        for task in dict.fromkeys(self.items[i].embedding_task for i in indices):
            own = [i for i in indices if self.items[i].embedding_task == task]
            self.vectors |= dict(zip(own, self.forward.vectors(self._texts(own), task), strict=True))

    def _decode(self, task: str, indices: Sequence[int], outputs: Tensor) -> None:
        lengths_NW = np.concatenate([self.items[i].lengths_1W for i in indices])
        examples = [self.items[i].example for i in indices]
        for i, prediction in zip(indices, self.predictor.decode(task, outputs, lengths_NW, examples), strict=True):
            self.predictions[i][task] = prediction
