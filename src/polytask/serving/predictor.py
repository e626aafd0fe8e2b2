"""Predicts texts with a trained model, in constant memory for any number of texts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.machine import multiplies_bf16, pick_device, threads
from polytask.runs.bundle import Bundle, load_run
from polytask.serving.examples import Example, Text, Texts, examples_from, has_text
from polytask.serving.plain import PlainEncoder
from polytask.settings import TaskSpec
from polytask.text.texts import Texts as TokenIds
from polytask.types import Prediction, UserError, unknown

log = logging.getLogger(__name__)

WINDOW = 4096  # examples that are tokenized and sorted by length together, whatever the size of the input
WINDOW_CHARACTERS = 16_000_000  # a window of long documents has fewer examples, to limit its memory
PRECISIONS = ("float32", "bf16")
MOST_SHOWN = 20  # examples that an error names

T = TypeVar("T")


class Predictor:
    """Predicts with all tasks of one run. The model's weights must not change afterwards."""

    def __init__(
        self, bundle: Bundle, precision: str = "float32", few: bool = False, abstain_below: float | None = None
    ) -> None:
        if precision not in PRECISIONS:
            raise UserError(unknown("predict", precision, PRECISIONS, "precision"))
        if abstain_below is not None and not 0 <= abstain_below <= 1:
            raise UserError(f"predict: abstain_below: must be in [0, 1], found {abstain_below}")
        device = bundle.model.device
        if precision == "bf16" and device.type == "cpu" and not multiplies_bf16(device):
            raise UserError(
                "predict: this processor does not support bf16 natively, so bf16 would be slower; use float32"
            )
        self.bundle = bundle
        self.bf16 = precision == "bf16"
        self.few = few
        self.abstain_below = abstain_below
        self._warned = False

    @classmethod
    def load(
        cls,
        run: str | Path,
        device: str = "auto",
        precision: str = "float32",
        *,
        few: bool = False,
        abstain_below: float | None = None,
    ) -> "Predictor":
        """Loads the model of a run's folder, or of the model folder inside it.

        `few` is for a handful of texts: the first prediction is faster, because the encoder is not optimized first.
        `abstain_below` replaces that of the model's tasks: a prediction whose highest probability is lower has the
        label None.
        """
        bundle = load_run(Path(run))
        bundle.model.to(pick_device(device))
        return cls(bundle, precision, few, abstain_below)

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bundle.specs)

    def predict(
        self, task: str, text: Texts, text2: Text | Sequence[Text] = None, *, strict: bool = False
    ) -> list[Prediction]:
        """Predicts one task, with one prediction per example.

            predict("mood", "a text")                              one text
            predict("mood", ["a text", "another"])                 a list of texts
            predict("same", "first", "second")                     one pair
            predict("same", ["a", "b"], ["c", "d"])                the pairs (a, c) and (b, d)
            predict("same", [("a", "c"), ("b", "d")])              the same pairs

        The label is None for an example with a text that is None, NaN, empty or only whitespace; with `strict` such an
        example is a UserError. In a single pair, a missing second text must be "", since None means that there is none.
        """
        return list(self.stream(task, examples_from(text, text2, strict)))

    def predict_tasks(
        self,
        text: Texts,
        text2: Text | Sequence[Text] = None,
        tasks: Sequence[str] | None = None,
        *,
        strict: bool = False,
    ) -> dict[str, list[Prediction]]:
        """Predicts several tasks for the same texts, which are given as for `predict`.

        By default all tasks that take this number of texts. Tasks that share the whole encoder share one forward pass.
        """
        examples = examples_from(text, text2, strict)
        chosen = self.taking(len(examples[0])) if tasks is None and examples else tuple(tasks or ())
        predictions: dict[str, list[Prediction]] = {task: [] for task in chosen}
        first = 0
        for window in windows(examples, _characters):
            for task, more in self.answer(chosen, window, first=first).items():
                predictions[task] += more
            first += len(window)
        return predictions

    def stream(self, task: str, examples: Iterable[Example]) -> Iterator[Prediction]:
        """Yields the predictions for any number of examples, in order and in constant memory."""
        self.check((task,))
        first = 0
        for window in windows(examples, _characters):
            yield from self.answer((task,), window, first=first)[task]
            first += len(window)

    def outputs(self, task: str, examples: Iterable[tuple[str, ...]]) -> Iterator[Tensor]:
        """Yields the head's outputs, one window of examples at a time."""
        self.check((task,))
        for window in windows(examples, _characters):
            self.check((task,), window)
            yield self._outputs((task,), self._tokenize((task,), window))[task]

    def answer(
        self, tasks: Sequence[str], window: Sequence[Example], tags: Sequence[Example] | None = None, first: int = 0
    ) -> dict[str, list[Prediction]]:
        """Each task's predictions for one window of examples.

        `tags` has the tags of the words of each text, for models that were trained with columns of tags. `first` is the
        number of the first example, for error messages.
        """
        self.check(tasks, window)
        predictions = {task: [Prediction(task, None)] * len(window) for task in tasks}
        indices = [index for index, example in enumerate(window) if has_text(example)]
        if indices:
            texts = [tuple(text for text in window[index] if text is not None) for index in indices]
            given = None if tags is None else [tuple(value or "" for value in tags[index]) for index in indices]
            tokenized = self._tokenize(tasks, texts, given)
            lengths_NW = self.bundle.text_lengths(texts, tokenized)
            self._check_lengths(tasks, lengths_NW, [first + index for index in indices])
            for task, outputs in self._outputs(tasks, tokenized).items():
                decoded = self.bundle.predictions(task, outputs, lengths_NW, self.abstain_below)
                for index, prediction in zip(indices, decoded, strict=True):
                    predictions[task][index] = prediction
        return predictions

    def too_long(self, tasks: Sequence[str], examples: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
        """The index and the number of tokens of each example that is longer than `max_length`."""
        return self._too_long(tasks, self.bundle.text_lengths(examples, self.bundle.tokenize(examples)))

    def _too_long(self, tasks: Sequence[str], lengths_NW: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        packer, readings = self.bundle.packer, {self.bundle.model.head(task).reading for task in tasks}
        tokens_N = np.max([packer.full_lengths(lengths_NW, reading) for reading in sorted(readings)], axis=0)
        return [(i, int(tokens_N[i])) for i in np.flatnonzero(tokens_N > packer.max_length).tolist()]

    def _check_lengths(self, tasks: Sequence[str], lengths_NW: npt.NDArray[np.int64], numbers: Sequence[int]) -> None:
        """Refuses examples that are too long, with `truncate: error`."""
        packer = self.bundle.packer
        long = self._too_long(tasks, lengths_NW) if packer.truncate == "error" else []
        if long:
            shown = ", ".join(f"{numbers[i]} ({tokens:,} tokens)" for i, tokens in long[:MOST_SHOWN])
            more = f" and {len(long) - MOST_SHOWN:,} more" if len(long) > MOST_SHOWN else ""
            raise UserError(
                f"predict: longer than max_length ({packer.max_length} tokens), which is an error because the model "
                f"was trained with `truncate: error`: example {shown}{more} (counted from 0); shorten the texts"
            )

    def taking(self, texts: int) -> tuple[str, ...]:
        """The tasks with labels that take this number of texts."""
        tasks = tuple(
            name for name, spec in self.bundle.specs.items() if len(spec.text) == texts and spec.kind != "text"
        )
        if not tasks:
            raise UserError(f"predict: none of the tasks {', '.join(self.tasks)} takes {texts} text(s)")
        return tasks

    def spec(self, task: str) -> TaskSpec:
        """The task's description; raises a UserError that lists all tasks if there is no such task."""
        if task not in self.bundle.specs:
            raise UserError(unknown("predict", task, self.tasks, "task"))
        return self.bundle.specs[task]

    def _tokenize(
        self, tasks: Sequence[str], window: Sequence[tuple[str, ...]], tags: Sequence[tuple[str, ...]] | None = None
    ) -> TokenIds:
        if tags is None:
            self._warn_without_tags(tasks)
        return self.bundle.tokenize(window, tags)

    def _outputs(self, tasks: Sequence[str], texts: TokenIds) -> dict[str, Tensor]:
        model, packer = self.bundle.model, self.bundle.packer
        outputs: dict[str, Tensor] = {}
        for group in model.passes(tasks):
            heads = [model.head(task) for task in group]
            poolings = [head.pooling for head in heads if head.pooling is not None]
            if self._plain is None or len(poolings) < len(heads):  # a head that does not pool needs all tokens
                # A few texts are too little work for several threads, which would wait for each other.
                with threads(1) if self.few and model.device.type == "cpu" else nullcontext():
                    outputs |= model.answers(group, texts, packer, bf16=self.bf16)
            else:
                sequences = [sequence for example in texts for sequence in packer.sequences(example, heads[0].reading)]
                pooled = self._plain.vectors(sequences, set(poolings))
                with torch.inference_mode():
                    outputs |= {head.task: head(pooled) for head in heads}
        return {task: outputs[task] for task in tasks}

    @cached_property
    def _plain(self) -> PlainEncoder | None:
        """The faster encoder, if it can replace the model's encoder."""
        model = self.bundle.model
        fits = model.is_plain and model.device.type == "cpu" and not self.few
        return PlainEncoder(model.encoder, self.bf16) if fits else None

    def _warn_without_tags(self, tasks: Sequence[str]) -> None:
        """Warns, once, that a task was trained with the tags of a column and gets none."""
        untagged = [task for task in tasks if self.spec(task).tags]
        if untagged and not self._warned:
            self._warned = True
            log.warning(
                "predict: %s was trained with word tags (column %s), but the texts have none; the words count as "
                "untagged, and predictions may be worse",
                untagged[0],
                ", ".join(self.spec(untagged[0]).tags),
            )

    def check(self, tasks: Iterable[str], window: Sequence[Example] = ()) -> None:
        """Raises a UserError if a task is unknown, has no labels, or takes another number of texts."""
        for task in tasks:
            spec = self.spec(task)
            if spec.kind == "text":
                raise UserError(f"predict: task {task} is of kind text: it has no labels to predict")
            wrong = next((example for example in window if len(example) != len(spec.text)), None)
            if wrong is not None:
                raise UserError(
                    f"predict: task {task} takes {len(spec.text)} text(s) per example, found {len(wrong)}: "
                    f"{wrong!r:.80}"
                )


def windows(items: Iterable[T], characters: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits the items into lists of limited length and size."""
    window: list[T] = []
    size = 0
    for item in items:
        window.append(item)
        size += characters(item)
        if len(window) >= WINDOW or size > WINDOW_CHARACTERS:
            yield window
            window, size = [], 0
    if window:
        yield window


def _characters(example: Example) -> int:
    return sum(len(text or "") for text in example)


load = Predictor.load
