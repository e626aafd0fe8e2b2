"""Runs the encoder and the heads of a trained model over tokenized texts."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.encoders.bert import Bert
from polytask.machine import threads
from polytask.runs.bundle import Bundle
from polytask.serving.examples import Example, chunks, plain_texts
from polytask.serving.plain import PlainEncoder, Pooled
from polytask.stream import Pooling
from polytask.tasks.rows import row_words
from polytask.text.packing import Ids, InputFormat
from polytask.text.texts import Texts
from polytask.types import Prediction

log = logging.getLogger(__name__)


class Forward:
    """The outputs of a model's heads, and vectors of its encoder. The model's weights must not change."""

    def __init__(self, bundle: Bundle, bf16: bool, few: bool) -> None:
        self.bundle, self.bf16, self.few = bundle, bf16, few
        self._warned = False

    def is_per_word(self, task: str) -> bool:
        """Whether the task has a label for each word. Such tasks need the tokens of whole texts."""
        return self.bundle.model.head(task).kind.per_word

    def encode(
        self, tasks: Sequence[str], examples: Sequence[Example], tags: Sequence[tuple[str, ...]] | None = None
    ) -> tuple[Texts, npt.NDArray[np.int64]]:
        """The tokens of examples as these tasks read them, and the number of tokens of each text before truncation."""
        if self.is_per_word(tasks[0]):
            texts = self.bundle.tokenize_words([row_words(example[0]) for example in examples])
            return texts, texts.lengths_NW.astype(np.int64)
        if tags is None:
            self._warn_without_tags(tasks)
        plain = [plain_texts(example) for example in examples]
        # Tasks whose examples are a text and its options are not mixed with others.
        options = any(self.bundle.specs[task].has_options for task in tasks)
        texts = self.bundle.tokenize(plain, tags, options)
        return texts, self.bundle.text_lengths(plain, texts)

    def outputs(self, tasks: Sequence[str], texts: Texts) -> dict[str, Tensor]:
        """The outputs of each task's head for these texts; tasks that can share a pass of the encoder do."""
        model, packer = self.bundle.model, self.bundle.packer
        outputs: dict[str, Tensor] = {}
        for group in model.passes(tasks):
            heads = [model.head(task) for task in group]
            poolings = [head.pooling for head in heads if head.pooling is not None]
            if self.plain is None or len(poolings) < len(heads):  # a head that does not pool needs all tokens
                # A few texts are too little work for several threads, which would wait for each other.
                with threads(1) if self.few and model.device.type == "cpu" else nullcontext():
                    outputs |= model.answers(group, texts, packer, bf16=self.bf16)
            else:
                pooled = self._pooled(texts, model.input_format(group[0]), set(poolings))
                with torch.inference_mode():
                    outputs |= {head.task: head(pooled) for head in heads}
        return {task: outputs[task] for task in tasks}

    def _pooled(self, texts: Texts, form: InputFormat, poolings: set[Pooling]) -> Pooled:
        """The vectors of the faster encoder, with which texts are read in the same windows as by the model."""
        assert self.plain is not None
        sequences, windows_M = self.sequences(texts, form)
        options = texts.lengths_NW.shape[1] - 1 if form.reading == "options" else 1
        pooled = self.plain.vectors(sequences, poolings, options)
        return pooled if form.windows is None or windows_M is None else pooled.over_windows(windows_M, form.windows)

    def sequences(
        self, texts: Texts, form: InputFormat
    ) -> tuple[list[tuple[list[Ids], int]], npt.NDArray[np.int64] | None]:
        """The sequences of examples for the faster encoder, and how many of them are the windows of each text."""
        packer, windows_M = self.bundle.packer, None
        if form.windows is not None:
            texts, windows_M = packer.cut(texts, form)
        return [sequence for example in texts for sequence in packer.sequences(example, form.reading)], windows_M

    @torch.inference_mode()
    def vectors(self, texts: Texts, task: str | None) -> Tensor:
        """The vector of each text, as the task uses the encoder; without a task, without adapters."""
        model, packer = self.bundle.model, self.bundle.packer
        if self.plain is None:
            return model.embed(texts, packer, task, bf16=self.bf16)
        pooling = model.embedding_pooling(task)
        return self._pooled(texts, self.embedding_format(task), {pooling}).pool(pooling).float()

    def embedding_format(self, task: str | None) -> InputFormat:
        """How a text is read whose vector is wanted."""
        return InputFormat(windows=None if task is None else self.bundle.model.head(task).windows)

    @cached_property
    def plain(self) -> PlainEncoder | None:
        """The faster encoder, if it can replace the model's encoder."""
        model, encoder = self.bundle.model, self.bundle.model.encoder
        fits = model.is_plain and model.device.type == "cpu" and not self.few
        if not fits or not isinstance(encoder, Bert) or encoder.shape.plain_definition is not None:
            return None
        return PlainEncoder(encoder, self.bf16)

    def _warn_without_tags(self, tasks: Sequence[str]) -> None:
        """Warns, once, that a task was trained with the tags of a column and gets none."""
        untagged = [task for task in tasks if self.bundle.specs[task].tags]
        if untagged and not self._warned:
            self._warned = True
            log.warning(
                "predict: %s was trained with word tags (column %s), but the texts have none; the words count as "
                "untagged, and predictions may be worse",
                untagged[0],
                ", ".join(self.bundle.specs[untagged[0]].tags),
            )

    def too_long(self, tasks: Sequence[str], lengths_NW: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """The index and the number of tokens of each example that one of the tasks would truncate."""
        packer, forms = self.bundle.packer, [self.bundle.model.input_format(task) for task in tasks]
        tokens_KN = np.stack([packer.full_lengths(lengths_NW, form.reading) for form in forms])
        longest_K1 = np.array([[packer.longest(form)] for form in forms])
        found = np.flatnonzero((tokens_KN > longest_K1).any(0)).tolist()
        return [(i, int(tokens_KN[:, i].max())) for i in found]

    def predict_words(self, task: str, items: Sequence[tuple[str, int]]) -> list[Prediction]:
        """The tag of one word of each text, which is given by its first character, with the tags' probabilities."""
        head, temperature = self.bundle.model.head(task), self.bundle.temperatures.get(task, 1.0)
        found = []
        for chunk in chunks(items, lambda item: len(item[0])):
            texts, _ = self.encode((task,), [(text,) for text, _ in chunk])
            outputs = head.kind.scaled(self.outputs((task,), texts)[task].float(), temperature)
            for (text, first), scores_WC in zip(chunk, outputs, strict=True):
                index = [start for start, _ in row_words(text).words].index(first)
                shares = dict(zip(head.labels.classes, scores_WC[index, :-1].softmax(-1).tolist(), strict=True))
                found.append(Prediction(task, max(shares, key=shares.__getitem__), shares))
        return found
