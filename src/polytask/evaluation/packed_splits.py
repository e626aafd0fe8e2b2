"""Packed batches of the splits that a run evaluates again and again. Knows models and splits, no files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from polytask.model import MultiTaskModel
from polytask.text.packing import InputFormat, PackedBatch, Packer
from polytask.text.texts import texts_of
from polytask.types import SharedExamples, TokenizedExamples

MAX_TOKENS = 2**22
"""Tokens that are kept, of all tasks together: about 100 MB."""


@dataclass(frozen=True)
class _Packed:
    """A packed split, and everything that its batches depend on."""

    examples: TokenizedExamples | SharedExamples
    form: InputFormat
    packer: Packer
    device: torch.device
    token_budget: int
    batches: tuple[PackedBatch, ...]

    @property
    def tokens(self) -> int:
        return sum(len(batch.stream.token_ids_T) for batch in self.batches)

    def is_for(
        self,
        model: MultiTaskModel,
        task: str,
        examples: TokenizedExamples | SharedExamples,
        packer: Packer,
        token_budget: int,
    ) -> bool:
        """Whether these are the batches of the same examples. Examples never change, so the same object suffices."""
        same = self.examples is examples and self.form == model.input_format(task)
        same = same and self.token_budget == token_budget
        return same and self.packer == packer and self.device == model.device


@dataclass
class PackedSplits:
    """Keeps the packed batches of the split of each task that was evaluated last, on the model's device."""

    max_tokens: int = MAX_TOKENS
    """Larger splits are packed again in every evaluation, batch by batch."""
    _kept: dict[str, _Packed] = field(default_factory=dict)

    def batches(
        self,
        model: MultiTaskModel,
        task: str,
        examples: TokenizedExamples | SharedExamples,
        packer: Packer,
        token_budget: int | None = None,
    ) -> Iterable[PackedBatch]:
        """The batches of all examples in the format of the task's head; by default with the task's `token_budget`."""
        budget = token_budget or model.token_budget(task)
        kept = self._kept.get(task)
        if kept is not None and kept.is_for(model, task, examples, packer, budget):
            return kept.batches
        self._kept.pop(task, None)
        texts = texts_of(examples, np.arange(len(examples)))
        tokens = int(packer.lengths(texts.lengths_NW, model.input_format(task)).sum())
        batches = model.batches(task, texts, packer, token_budget=budget)
        if tokens + sum(packed.tokens for packed in self._kept.values()) > self.max_tokens:
            return batches
        return self._keep(batches, model, task, examples, packer, budget)

    def _keep(
        self,
        batches: Iterable[PackedBatch],
        model: MultiTaskModel,
        task: str,
        examples: TokenizedExamples | SharedExamples,
        packer: Packer,
        token_budget: int,
    ) -> Iterator[PackedBatch]:
        """Yields each batch as soon as it is packed, so that a GPU starts at once; keeps them after the last one."""
        yielded = []
        for batch in batches:
            yielded.append(batch)
            yield batch
        form = model.input_format(task)
        self._kept[task] = _Packed(examples, form, packer, model.device, token_budget, tuple(yielded))
