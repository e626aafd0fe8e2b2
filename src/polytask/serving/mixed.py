"""Predicts examples of any tasks of a model together: one stream, one pass of the encoder. Knows no queue and no HTTP.

Examples are tokenized first, into one item for each pass of the encoder that they need: tasks without adapter
parameters of their own share a pass. Items of any examples and tasks are then computed together.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from polytask.serving.examples import Example, has_text, plain_texts
from polytask.serving.failures import Failure
from polytask.serving.forward import Forward
from polytask.serving.items import Answer, Group, Item, Shape, Truncation
from polytask.serving.limits import CheckedLimits, ServingLimits
from polytask.serving.mixed_batch import MixedBatch
from polytask.serving.predictor import Predictor
from polytask.settings import MOST_TEXTS, Truncate
from polytask.text.packing import InputFormat
from polytask.text.texts import Texts
from polytask.text.windows import cut_windows
from polytask.types import UserError

SHAPES: tuple[Shape, ...] = (*range(1, MOST_TEXTS + 1), "options")


class MixedPredictor:
    """Predicts with all tasks of a predictor's model at once."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.forward = predictor, predictor.forward
        self.is_plain = self.forward.plain is not None
        """Whether the faster encoder computes what is pooled. It is built here, once."""
        bundle = predictor.bundle
        self.tasks = tuple(task for task in bundle.specs if bundle.model.head(task).kind.has_predictions)
        """The tasks with predictions."""
        self.groups: tuple[Group, ...] = tuple(
            group for shape in SHAPES for group in bundle.model.passes(self.tasks_taking(shape))
        )
        """All passes that predictions may need. The first task of each is its only part of a stream."""

    def shape(self, task: str) -> Shape:
        """What the task's examples consist of."""
        spec = self.predictor.spec(task)
        return "options" if spec.has_options else len(spec.text)

    def tasks_taking(self, shape: Shape) -> tuple[str, ...]:
        """The tasks with predictions whose examples have this shape."""
        return tuple(task for task in self.tasks if self.shape(task) == shape)

    # --- sizes --------------------------------------------------------------------------------------------------------
    def longest_sequence(self, max_options: int) -> int:
        """The most tokens of one item: of all sequences of an example, but only one window of a text that is tagged."""
        packer = self.predictor.bundle.packer
        embeddings = [self._longest(self.forward.embedding_format(task), 1) for task in self.predictor.tasks]
        return max(packer.max_length, *embeddings, *(self._longest_item(group, max_options) for group in self.groups))

    def longest_input(self, max_options: int, max_batch_tokens: int) -> int:
        """The most tokens of all items of one example. Texts that are tagged have up to `max_batch_tokens`."""
        totals: dict[Shape, int] = {}
        for group in self.groups:
            is_tagged = self.forward.is_per_word(group[0])
            size = max_batch_tokens if is_tagged else self._longest_item(group, max_options)
            shape = self.shape(group[0])
            totals[shape] = totals.get(shape, 0) + size
        return max([self.longest_sequence(max_options), *totals.values()])

    def _longest_item(self, group: Group, max_options: int) -> int:
        shape = self.shape(group[0])
        width = 1 + places_for(max_options) if shape == "options" else shape
        return self._longest(self.predictor.bundle.model.input_format(group[0]), width)

    def _longest(self, form: InputFormat, width: int) -> int:
        """The most tokens of an example with this number of texts."""
        packer = self.predictor.bundle.packer
        return int(packer.lengths(np.full((1, width), form.room(packer.max_length - 2)), form)[0])

    def check_limits(self, limits: ServingLimits) -> CheckedLimits:
        """The limits for this model; a UserError if they contradict each other."""
        longest = self.longest_sequence(limits.max_options)
        return limits.checked(longest, self.longest_input(limits.max_options, limits.batch_tokens(longest)))

    # --- tokenizing ---------------------------------------------------------------------------------------------------
    def tokenize(
        self, tasks: Sequence[str], examples: Sequence[Example], truncation: Truncation = "model"
    ) -> list[list[Item] | Failure]:
        """The items of each example for these tasks, which take examples of this shape; or why it has none."""
        return self._each_with_text(examples, lambda some: self._items(tasks, some, truncation))

    def tokenize_for_embedding(
        self, task: str | None, examples: Sequence[Example], truncation: Truncation = "model"
    ) -> list[list[Item] | Failure]:
        """The item of each text whose embedding is wanted, as the task uses the encoder, or without adapters."""
        tasks = () if task is None else (task,)
        return self._each_with_text(
            examples, lambda some: [[one] for one in self._pass_items((), tasks, some, truncation)]
        )

    def _each_with_text(
        self, examples: Sequence[Example], tokenize: Callable[[list[Example]], list[list[Item | Failure]]]
    ) -> list[list[Item] | Failure]:
        found: list[list[Item] | Failure] = [Failure("empty_text", "the text is empty") for _ in examples]
        for width in {len(example) for example in examples}:
            filled = [i for i, example in enumerate(examples) if len(example) == width and has_text(example)]
            for i, own in zip(filled, _tokenized([examples[i] for i in filled], tokenize), strict=True):
                failed = next((one for one in own if isinstance(one, Failure)), None)
                found[i] = failed or [one for one in own if isinstance(one, Item)]
        return found

    def _items(
        self, tasks: Sequence[str], examples: Sequence[Example], truncation: Truncation
    ) -> list[list[Item | Failure]]:
        wanted = [(group, tuple(task for task in group if task in tasks)) for group in self.groups]
        passes = [self._pass_items(group, own, examples, truncation) for group, own in wanted if own]
        return [list(items) for items in zip(*passes, strict=True)]

    def _pass_items(
        self, group: Group, tasks: tuple[str, ...], examples: Sequence[Example], truncation: Truncation
    ) -> list[Item | Failure]:
        """The items of examples with the same number of texts."""
        packer = self.predictor.bundle.packer
        cut = packer.truncate if truncation == "model" else truncation
        form, texts, lengths_NW = self._encode(self.cutting(cut == "start"), group, tasks, examples)
        tokens_N = packer.lengths(texts.lengths_NW, form) if form.stride is None else self._window_tokens(texts, form)
        full_N, longest = packer.full_lengths(lengths_NW, form.reading), packer.longest(form)
        items: list[Item | Failure] = []
        for i, example in enumerate(examples):
            truncated = bool(full_N[i] > longest)
            if truncated and cut == "error":
                found = f"the text has {full_N[i]:,} tokens, and the model reads at most {longest:,}"
                items.append(Failure("too_many_tokens", f"{found}; shorten it, or choose truncate: end"))
                continue
            cut_start = cut == "start" if truncated else packer.cut_start
            parts = texts.take(np.array([i])), form, lengths_NW[i : i + 1]
            items.append(
                Item(self, group, tasks, example, *parts, int(full_N[i]), int(tokens_N[i]), cut_start, truncated)
            )
        return items

    def _encode(
        self, forward: Forward, group: Group, tasks: tuple[str, ...], examples: Sequence[Example]
    ) -> tuple[InputFormat, Texts, npt.NDArray[np.int64]]:
        """How examples are read, their tokens, and the number of tokens of each text before truncation."""
        if not group:
            plain = [plain_texts(example) for example in examples]
            texts = forward.bundle.tokenize(plain)
            form = forward.embedding_format(tasks[0] if tasks else None)
            return form, texts, forward.bundle.text_lengths(plain, texts)
        form = forward.bundle.model.input_format(group[0])
        texts, lengths_NW = forward.encode(group, examples)
        if form.reading == "options":
            width = 1 + places_for(len(examples[0]) - 1)
            missing = width - len(examples[0])
            texts, lengths_NW = texts.widened(width), np.pad(lengths_NW, ((0, 0), (0, missing)))
        return form, texts, lengths_NW

    def _window_tokens(self, texts: Texts, form: InputFormat) -> npt.NDArray[np.int64]:
        """The number of tokens in the windows of each text."""
        size = self.predictor.bundle.packer.max_length - 2
        windows, rows_M = cut_windows(texts, size, form.window_stride(size))
        return np.bincount(rows_M, windows.lengths_NW[:, 0] + 2, len(texts)).astype(np.int64)

    def cutting(self, start: bool) -> Forward:
        """What reads long texts without their start, or without their end."""
        return self._starts_cut if start else self._ends_cut

    @cached_property
    def _ends_cut(self) -> Forward:
        return self._with_truncate("end")

    @cached_property
    def _starts_cut(self) -> Forward:
        return self._with_truncate("start")

    def _with_truncate(self, truncate: Truncate) -> Forward:
        bundle = self.predictor.bundle
        if bundle.packer.cut_start == (truncate == "start"):
            return self.forward
        other = copy(self.forward)  # with the same weights
        packer = replace(bundle.packer, truncate=truncate)
        other.bundle = replace(bundle, tokenizer=bundle.tokenizer.with_truncate(truncate), packer=packer)
        return other

    # --- computing ----------------------------------------------------------------------------------------------------
    @torch.inference_mode()
    def compute(self, items: Sequence[Item]) -> list[Answer]:
        """The answers to items of any tasks. Items that are cut at another end than the rest take another pass."""
        answers: dict[int, Answer] = {}
        for cut_start in sorted({item.cut_start for item in items}):
            chosen = [i for i, item in enumerate(items) if item.cut_start == cut_start]
            batch = MixedBatch(self.predictor, self.cutting(cut_start), [items[i] for i in chosen])
            answers |= dict(zip(chosen, batch.answers(), strict=True))
        return [answers[i] for i in range(len(items))]


def places_for(options: int) -> int:
    """The number of places that a text with so many options takes: a power of two.

    Examples with the same number of places are computed together. Less than half of the places are empty.
    """
    return 1 << (options - 1).bit_length()


def _tokenized(
    examples: list[Example], tokenize: Callable[[list[Example]], list[list[Item | Failure]]]
) -> list[list[Item | Failure]]:
    """The items of each example. A text on which the tokenizer fails does not fail the others."""
    if not examples:
        return []
    try:
        return tokenize(examples)
    except UserError as error:
        if len(examples) == 1:
            return [[Failure("invalid_input", str(error))]]
        return [items for example in examples for items in _tokenized([example], tokenize)]
