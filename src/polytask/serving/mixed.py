"""Predicts examples of any tasks of a model together: one stream, one pass of the encoder. Knows no queue and no HTTP.

Examples are tokenized first, into one item for each pass of the encoder that they need: tasks without adapter
parameters of their own share a pass. Items of any examples and tasks are then computed together.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from polytask.serving.examples import Example, has_text, plain_texts
from polytask.serving.failures import Failure
from polytask.serving.items import Answer, Group, Item, Truncation
from polytask.serving.limits import ServingLimits
from polytask.serving.mixed_batch import MixedBatch
from polytask.serving.predictor import Predictor
from polytask.settings import Truncate
from polytask.text.packing import InputFormat
from polytask.text.texts import Texts
from polytask.text.windows import cut_windows


class MixedPredictor:
    """Predicts with all tasks of a predictor's model at once."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.is_plain = predictor.plain is not None
        """Whether the faster encoder computes what is pooled. It is built here, once."""
        model = predictor.bundle.model
        self.groups: tuple[Group, ...] = tuple(
            group for texts in (1, 2) for group in model.passes(self.tasks_taking(texts))
        )
        """All passes that predictions may need. The first task of each is its only part of a stream."""

    def tasks_taking(self, texts: int) -> tuple[str, ...]:
        """The tasks with predictions that take this number of texts."""
        bundle = self.predictor.bundle
        return tuple(
            task
            for task, spec in bundle.specs.items()
            if len(spec.text) == texts and bundle.model.head(task).kind.has_predictions
        )

    @property
    def longest_sequence(self) -> int:
        """The most tokens of one item: those of a text, or of a pair, or of one window of a text that is not cut."""
        return max([self.predictor.bundle.packer.max_length, *map(self._longest, self.groups)])

    def longest_input(self, max_batch_tokens: int) -> int:
        """The most tokens of all items of one example. Texts that are not cut have up to `max_batch_tokens`."""
        sizes = {group: self._longest(group) for group in self.groups}
        sizes |= {group: max_batch_tokens for group in self.groups if self.predictor.is_per_word(group[0])}
        totals = [sum(size for group, size in sizes.items() if self._texts(group) == texts) for texts in (1, 2)]
        return max([self.predictor.bundle.packer.max_length, *totals])

    def _longest(self, group: Group) -> int:
        packer, form = self.predictor.bundle.packer, self.predictor.bundle.model.input_format(group[0])
        return int(packer.lengths(np.full((1, self._texts(group)), packer.max_length), form)[0])

    def _texts(self, group: Group) -> int:
        return len(self.predictor.spec(group[0]).text)

    def check_limits(self, limits: ServingLimits) -> ServingLimits:
        """The limits for this model; a UserError if they contradict each other."""
        return limits.checked(self.longest_sequence, self.longest_input(limits.max_batch_tokens))

    # --- tokenizing ---------------------------------------------------------------------------------------------------
    def tokenize(
        self, tasks: Sequence[str], examples: Sequence[Example], truncation: Truncation = "model"
    ) -> list[list[Item] | Failure]:
        """The items of each example for these tasks, which take the same number of texts; or why it has none."""
        return self._each_with_text(examples, lambda some: self._items(tasks, some, truncation))

    def tokenize_for_embedding(
        self, task: str | None, examples: Sequence[Example], truncation: Truncation = "model"
    ) -> list[list[Item] | Failure]:
        """The item of each example whose embedding is wanted, as the task uses the encoder, or without adapters."""
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
            if filled:
                for i, own in zip(filled, tokenize([examples[i] for i in filled]), strict=True):
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
        model, packer = self.predictor.bundle.model, self.predictor.bundle.packer
        cut = packer.truncate if truncation == "model" else truncation
        predictor = self._cutting(cut)
        if group:
            texts, lengths_NW = predictor.encode(group, examples)
            form, per_word = model.input_format(group[0]), predictor.is_per_word(group[0])
        else:
            plain = [plain_texts(example) for example in examples]
            texts = predictor.bundle.tokenize(plain)
            lengths_NW, form, per_word = predictor.bundle.text_lengths(plain, texts), InputFormat(), False
        tokens_N = packer.lengths(texts.lengths_NW, form) if not per_word else self._window_tokens(texts, form)
        full_N = packer.full_lengths(lengths_NW, form.reading)
        items: list[Item | Failure] = []
        for i, example in enumerate(examples):
            truncated = bool(full_N[i] > packer.max_length) and not per_word
            if truncated and cut == "error":
                found = f"the text has {full_N[i]:,} tokens, and the model reads at most {packer.max_length:,}"
                items.append(Failure("too_many_tokens", f"{found}; shorten it, or choose truncate: end"))
                continue
            cut_start = cut == "start" if truncated else packer.cut_start
            one = texts.take(np.array([i]))
            lengths_1W = lengths_NW[i : i + 1]
            sizes = int(full_N[i]), int(tokens_N[i])
            items.append(Item(self, group, tasks, example, one, lengths_1W, *sizes, cut_start, truncated))
        return items

    def _window_tokens(self, texts: Texts, form: InputFormat) -> npt.NDArray[np.int64]:
        """The number of tokens in the windows of each text."""
        size = self.predictor.bundle.packer.max_length - 2
        windows, rows_M = cut_windows(texts, size, form.window_stride(size))
        return np.bincount(rows_M, windows.lengths_NW[:, 0] + 2, len(texts)).astype(np.int64)

    def _cutting(self, truncate: Truncate) -> Predictor:
        """The predictor that tokenizes long texts so."""
        return self._starts_cut if truncate == "start" else self._ends_cut

    @cached_property
    def _ends_cut(self) -> Predictor:
        return self._with_truncate("end")

    @cached_property
    def _starts_cut(self) -> Predictor:
        return self._with_truncate("start")

    def _with_truncate(self, truncate: Truncate) -> Predictor:
        predictor, bundle = self.predictor, self.predictor.bundle
        if bundle.packer.cut_start == (truncate == "start"):
            return predictor
        other = copy.copy(predictor)  # with the same weights
        packer = replace(bundle.packer, truncate=truncate)
        other.bundle = replace(bundle, tokenizer=bundle.tokenizer.cutting(truncate), packer=packer)
        return other

    # --- computing ----------------------------------------------------------------------------------------------------
    @torch.inference_mode()
    def compute(self, items: Sequence[Item]) -> list[Answer]:
        """The answers to items of any tasks. Items that are cut at another end than the rest take another pass."""
        answers: dict[int, Answer] = {}
        for cut_start in sorted({item.cut_start for item in items}):
            chosen = [i for i, item in enumerate(items) if item.cut_start == cut_start]
            batch = MixedBatch(self._starts_cut if cut_start else self._ends_cut, [items[i] for i in chosen])
            answers |= dict(zip(chosen, batch.answers(), strict=True))
        return [answers[i] for i in range(len(items))]
