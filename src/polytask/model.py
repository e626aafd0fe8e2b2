"""The multi-task model: one encoder, one adapter, and one head per task. Knows interfaces, no concrete method."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polytask import seeds
from polytask.adapters.base import Adapter, LayerAdapter
from polytask.encoders.base import Encoder
from polytask.heads.base import Head
from polytask.modes import eval_mode
from polytask.seeds import RandomState
from polytask.stream import Encoded, Pooling, Stream
from polytask.text.packing import Ids, InputFormat, PackedBatch, Packer, batches_by_length
from polytask.text.texts import Texts
from polytask.text.windows import cut_windows, join_windows, with_words

TOKENS = 8192
"""The tokens of a batch of `answers`, except on a GPU with memory for more."""
MAX_TOKENS = 65536
"""The most tokens of such a batch. A GPU then computes for longer than the CPU needs to launch its kernels."""
BATCHES_PER_COPY = 64


@dataclass(frozen=True)
class Pass:
    """A forward pass over a stream, with everything that a second pass needs to be compared with it."""

    stream: Stream
    words_TD: Tensor
    """The word embeddings that went in, together with those of the words' tags."""
    states: tuple[Tensor, ...]
    """The output of the embeddings and of each layer."""
    outputs: Mapping[str, Tensor]
    """The outputs of each task in the stream."""
    random: RandomState
    """The random state before the pass, from which dropout was drawn."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of examples of each task of the step. If processes divide it, this pass has some of them."""
        share = self.stream.share
        return {task: len(own) for task, own in self.outputs.items()} if share is None else share.counts

    def of_whole_step(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn means over the examples of each task in this pass into this pass's part of those of the whole step."""
        share = self.stream.share
        return dict(means) if share is None else {task: share.examples[task] * mean for task, mean in means.items()}


class TagEmbedding(nn.Embedding):
    """An embedding of part-of-speech tags that starts at zero, so that the model starts as the one without tags.

    Tag 0, of special tokens and of words without a tag, is always zero.
    """

    def __init__(self, tags: int, size: int) -> None:
        super().__init__(tags + 1, size, padding_idx=0, _weight=torch.zeros(tags + 1, size))


class MultiTaskModel(nn.Module):
    """Computes the outputs of every task in a stream with one pass of the encoder."""

    def __init__(
        self, encoder: Encoder, adapter: Adapter, heads: Mapping[str, Head], word_tags: TagEmbedding | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.adapter = adapter
        self.word_tags = word_tags
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
        """Return each task's outputs. `words_TD` replaces the word embeddings."""
        return self.outputs(self.encode(stream, words_TD), stream)

    def encode(self, stream: Stream, words_TD: Tensor | None = None, adapter: Adapter | None = None) -> Tensor:
        """Return the encoder's last hidden states, by default with the model's own word embeddings and adapter."""
        if words_TD is None and self.word_tags is not None:
            words_TD = self.embed_words(stream)
        return self.encoder.encode(stream, adapter or self.adapter, words_TD)

    def embed_words(self, stream: Stream) -> Tensor:
        """Return the word embedding of each token, plus the embedding of its word's tag if the model has tags."""
        words_TD: Tensor = self.encoder.words(stream.token_ids_T)
        if self.word_tags is None:
            return words_TD
        assert stream.tag_ids_T is not None, "the packer of a model with word tags must be tagged"
        tagged_TD: Tensor = words_TD + self.word_tags(stream.tag_ids_T)
        return tagged_TD

    def run(self, stream: Stream, words_TD: Tensor | None = None) -> Pass:
        """Like `forward`, but also return the states of all layers and the random state."""
        random = RandomState(self.device)
        words_TD = self.embed_words(stream) if words_TD is None else words_TD
        states = self.states(stream, words_TD)
        return Pass(stream, words_TD, states, self.outputs(states[-1], stream), random)

    def states(self, stream: Stream, words_TD: Tensor) -> tuple[Tensor, ...]:
        """Return the output of the embeddings and of each layer, given the word embeddings."""
        embedded_TD = self.encoder.embed(stream, self.adapter, words_TD)
        return embedded_TD, *self.encoder.states(embedded_TD, stream.layout, self.adapter)

    def rerun(self, forward: Pass, words_TD: Tensor | None = None) -> Pass:
        """Run a second pass over the same stream with the same dropout, so that only `words_TD` differs."""
        with forward.random.replay():
            return self.run(forward.stream, words_TD)

    def outputs(self, hidden_TD: Tensor, stream: Stream) -> dict[str, Tensor]:
        """Return each task's outputs, given the encoder's last hidden states."""
        tasks = (self.tasks[k] for k in stream.layout.tasks)
        return {task: self.head(task)(self.encoded(task, task, hidden_TD, stream)) for task in tasks}

    def encoded(self, task: str, packed_as: str, hidden_TD: Tensor, stream: Stream) -> Encoded:
        """Return the input of a task's head: the sequences that the stream holds for the task `packed_as`."""
        windows = self.head(task).windows
        return Encoded(
            hidden_TD,
            stream.layout,
            self.tasks.index(packed_as),
            self.encoder.pool,
            self.encoder.words.weight,
            stream.labels.get(packed_as),
            stream.words.get(packed_as),
            None if windows is None else stream.windows.get(packed_as),
            "mean" if windows is None else windows.pool,
        )

    def input_format(self, task: str) -> InputFormat:
        """How the task's head needs its examples to be packed."""
        head = self.head(task)
        return InputFormat(head.reading, head.copies, head.mask_share, head.stride, head.windows)

    def answer(
        self,
        task: str,
        texts: Sequence[tuple[Ids, ...]] | Texts,
        packer: Packer,
        token_budget: int | None = None,
        bf16: bool = False,
    ) -> Tensor:
        """Return one task's outputs for many tokenized examples, in their order and on the CPU.

        If the head needs masked tokens, the same text at the same index always has the same tokens masked.
        """
        return self.answers([task], texts, packer, token_budget, bf16)[task]

    def answers(
        self,
        tasks: Sequence[str],
        texts: Sequence[tuple[Ids, ...]] | Texts,
        packer: Packer,
        token_budget: int | None = None,
        bf16: bool = False,
    ) -> dict[str, Tensor]:
        """Return the outputs of tasks that share one pass of the encoder (see `passes`), for the same examples."""
        assert len(self.passes(tasks)) == 1
        batches = self.batches(tasks[0], texts, packer, token_budget=token_budget)
        return self.answer_batches(tasks, batches, bf16)

    def batches(
        self,
        task: str,
        texts: Sequence[tuple[Ids, ...]] | Texts,
        packer: Packer,
        form: InputFormat | None = None,
        token_budget: int | None = None,
    ) -> Iterator[PackedBatch]:
        """Pack a task's examples into batches on the model's device, the longest examples first.

        By default in the format that the task's head needs, with the task's `token_budget`. On a GPU, a batch is packed
        while the batches before it are computed.
        """
        device, form, texts = self.device, form or self.input_format(task), Texts.of(texts)
        rows_N = None
        if form.stride is not None:
            size = packer.max_length - 2
            texts, rows_N = cut_windows(texts, size, form.window_stride(size))
        lengths_N = packer.lengths(texts.lengths_NW, form)
        for indices in batches_by_length(lengths_N, token_budget or self.token_budget(task)):
            rngs = (seeds.generator(0, "mask", i) for i in indices.tolist())
            stream = packer.pack([packer.part(task, texts.take(indices), form, rngs=rngs)])
            # There is no filler and no other task, so whatever is fast for a single task may be used.
            layout = replace(stream.layout, length_bound=stream.layout.max_length)
            stream = replace(stream, layout=layout)
            stream = stream.pin_memory().to(device) if device.type == "cuda" else stream
            yield PackedBatch(indices, stream, None if rows_N is None else rows_N[indices])

    def token_budget(self, task: str) -> int:
        """Return the tokens of a batch of `answers`: as many as a sixteenth of a GPU's memory certainly holds.

        It depends on the kind of GPU only, so that the same batches are computed in every evaluation.
        """
        if self.device.type != "cuda":
            return TOKENS
        logits = (self.head(task).mask_share or 0.0) * self.encoder.shape.vocabulary
        bytes_per_token = 80 * self.encoder.shape.hidden + 16 * logits
        memory = torch.cuda.get_device_properties(self.device).total_memory
        return min(max(TOKENS, int(memory / 16 / bytes_per_token)), MAX_TOKENS)

    @torch.inference_mode()
    def answer_batches(
        self, tasks: Sequence[str], batches: Iterable[PackedBatch], bf16: bool = False
    ) -> dict[str, Tensor]:
        """Return the outputs of `answers` for batches of the first task.

        Outputs are copied to the CPU after many batches: each copy waits until the GPU has finished.
        """
        waiting: dict[str, list[Tensor]] = {task: [] for task in tasks}
        copied: dict[str, list[Tensor]] = {task: [] for task in tasks}
        order: list[int] = []
        rows: list[int] = []
        with eval_mode(self), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            for number, batch in enumerate(batches, start=1):
                for task, outputs in self.batch_outputs(tasks, batch.stream).items():
                    waiting[task].append(outputs)
                order += batch.indices.tolist()
                rows += [] if batch.rows is None else batch.rows.tolist()
                if number % BATCHES_PER_COPY == 0:
                    _copy_to_cpu(waiting, copied)
        if not order:
            return {task: self.head(task).squeeze(torch.zeros(0, self.head(task).num_outputs)) for task in tasks}
        _copy_to_cpu(waiting, copied)
        inverse = torch.from_numpy(np.argsort(order))
        all_outputs = {task: concatenated(outputs)[inverse] for task, outputs in copied.items()}
        if not rows:
            return all_outputs
        return {task: join_windows(outputs, sorted(rows)) for task, outputs in all_outputs.items()}

    def batch_outputs(self, tasks: Sequence[str], stream: Stream) -> dict[str, Tensor]:
        """Return the outputs of tasks that share one pass of the encoder, for a stream of the first of them."""
        hidden_TD = self.encode(stream)
        return {task: self.output(task, tasks[0], hidden_TD, stream) for task in tasks}

    @torch.inference_mode()
    def embed(
        self, texts: Sequence[tuple[Ids, ...]] | Texts, packer: Packer, task: str | None = None, bf16: bool = False
    ) -> Tensor:
        """Return the mean of each text's last hidden states, in order and on the CPU.

        Without a task the encoder is used without the adapter, else as this task uses it, with its windows; of a task
        of kind match also with its pooling.
        """
        plain = Adapter(LayerAdapter(), (LayerAdapter() for _ in self.encoder.layers), self.tasks)
        adapter, packed_as = (plain, self.tasks[0]) if task is None else (self.adapter, task)
        pooling = self.embedding_pooling(task)
        vectors, order = [], list[int]()
        with eval_mode(self), torch.autocast(self.device.type, torch.bfloat16, enabled=bf16):
            form = InputFormat(windows=None if task is None else self.head(task).windows)
            for batch in self.batches(packed_as, texts, packer, form):
                hidden_TD = self.encode(batch.stream, adapter=adapter)
                encoded = self.encoded(packed_as, packed_as, hidden_TD, batch.stream)
                vectors.append(encoded.pool(pooling).float().cpu())
                order += batch.indices.tolist()
        return torch.cat(vectors)[torch.from_numpy(np.argsort(order))]

    def embedding_pooling(self, task: str | None) -> Pooling:
        """Return the pooling of `embed`: the mean, or that of a task of kind match."""
        own = self.head(task).pooling if task is not None and self.head(task).labels.kind == "match" else None
        return own or "mean"

    def output(self, task: str, packed_as: str, hidden_TD: Tensor, stream: Stream) -> Tensor:
        """Return a task's outputs for the sequences that the stream holds for the task `packed_as`."""
        output: Tensor = self.head(task)(self.encoded(task, packed_as, hidden_TD, stream))
        return output

    def passes(self, tasks: Sequence[str]) -> list[tuple[str, ...]]:
        """Group the tasks so that the tasks of a group can share one pass of the encoder over the same texts.

        Tasks share a pass if they have the same input format, no masking, and no adapter parameters of their own.
        """
        groups: dict[tuple[object, ...], list[str]] = {}
        for task in tasks:
            head = self.head(task)
            needs_own_pass = head.mask_share is not None or self.adapter.task_parameters(task)
            key = (head.reading, head.copies, head.stride, head.windows, task if needs_own_pass else None)
            groups.setdefault(key, []).append(task)
        return [tuple(group) for group in groups.values()]

    @property
    def has_dropout(self) -> bool:
        """Whether a part of the model drops numbers in training, so that a step depends on random draws."""
        rates = (getattr(m, name, 0) for m in self.modules() for name in ("p", "dropout", "attention_dropout"))
        return any(isinstance(rate, float) and rate > 0 for rate in rates)

    @property
    def is_plain(self) -> bool:
        """Whether there is no adapter and no embedding of tags: the model is the plain encoder and the heads."""
        return self.word_tags is None and all(
            type(part) is LayerAdapter for part in (self.adapter.embedding, *self.adapter.layers)
        )

    def parts(self) -> Iterator[tuple[str, int, nn.Module]]:
        """Yield the model's parts as (name, height, module): height 0 is the embeddings, 1 the first layer, and so on.

        Layer-wise learning rates are based on the heights.
        """
        encoder = self.encoder
        for name, module in encoder.embedding_modules().items():
            yield f"encoder.{name}", 0, module
        for index, layer in enumerate(encoder.layers):
            yield f"encoder.layers.{index}", index + 1, layer
        yield "encoder.pooler", len(encoder.layers), encoder.pooler
        if self.word_tags is not None:  # starts untrained, like the adapter
            yield "word_tags", len(encoder.layers) + 1, self.word_tags
        yield "adapter", len(encoder.layers) + 1, self.adapter
        yield "heads", len(encoder.layers) + 1, self.heads

    def budget(self) -> dict[str, Any]:
        """Count the parameters: shared, per task, total and trainable. Word tags count as the encoder's."""
        per_task = {
            task: _count(self.head(task).parameters()) + _count(self.adapter.task_parameters(task))
            for task in self.tasks
        }
        tags = 0 if self.word_tags is None else self.word_tags.weight.numel()
        return {
            "encoder": _count(self.encoder.parameters()) + tags,
            "adapter_shared": _count(self.adapter.shared_state().values()),
            "per_task": per_task,
            "total": _count(self.parameters()),
            "trainable": _count(p for p in self.parameters() if p.requires_grad),
        }


def _copy_to_cpu(waiting: Mapping[str, list[Tensor]], copied: Mapping[str, list[Tensor]]) -> None:
    """Move each task's outputs, which are on the model's device, to the end of those on the CPU."""
    for task, outputs in waiting.items():
        if outputs:
            copied[task].append(concatenated(outputs).float().cpu())
            outputs.clear()


def concatenated(outputs: Sequence[Tensor]) -> Tensor:
    """Concatenate the outputs of batches. Those for words are padded to the largest number of words."""
    if outputs[0].ndim < 3:
        return torch.cat(list(outputs))
    width = max(own.shape[1] for own in outputs)
    return torch.cat([with_words(own, width) for own in outputs])


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)
