"""A trained model that answers: texts in, predictions out, any number of them. Knows no training and no network."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from polytask.machine import pick_device
from polytask.runs.bundle import Bundle, load_bundle, no_model
from polytask.serving.examples import Example, Text, Texts, examples_from, has_text
from polytask.serving.plain import PlainEncoder
from polytask.types import Prediction, TaskSpec, UserError, unknown

WINDOW = 4096  # examples tokenized and sorted by length together, whatever the size of the input
WINDOW_CHARACTERS = 16_000_000  # long documents fill a window earlier, so that memory stays flat
PRECISIONS = ("fp32", "bf16")

T = TypeVar("T")


class Predictor:
    """All tasks of one run, ready to be asked. The model's weights are taken to stay as they are."""

    def __init__(self, bundle: Bundle, precision: str = "fp32", few: bool = False) -> None:
        if precision not in PRECISIONS:
            raise UserError(unknown("predict", precision, PRECISIONS, "precision"))
        if precision == "bf16" and bundle.model.device.type == "cpu" and not cpu_has_bf16():
            raise UserError("predict: this processor has no bf16 units, and would be slower with bf16; use fp32")
        self.bundle = bundle
        self.bf16 = precision == "bf16"
        self.few = few

    @classmethod
    def load(cls, run: str | Path, device: str = "auto", precision: str = "fp32", *, few: bool = False) -> "Predictor":
        """From a run's folder, or from the model folder inside it.

        few: for a handful of texts. The first answer comes sooner, because the encoder is not prepared for speed.
        """
        folder = Path(run)
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such run")
        if (folder / "model").is_dir():
            folder = folder / "model"
        elif not (folder / "tasks.json").is_file():
            raise no_model(folder)
        bundle = load_bundle(folder)
        bundle.model.to(pick_device(device))
        return cls(bundle, precision, few)

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bundle.specs)

    def predict(
        self, task: str, text: Texts, text2: Text | Sequence[Text] = None, *, strict: bool = False
    ) -> list[Prediction]:
        """One prediction for each example, in order.

            predict("mood", "a text")                              one text
            predict("mood", ["a text", "another"])                 a list of texts
            predict("same", "first", "second")                     one pair
            predict("same", ["a", "b"], ["c", "d"])                the pairs (a, c) and (b, d)
            predict("same", [("a", "c"), ("b", "d")])              the same pairs

        An example with a text that is None, NaN, empty or only white space gets a Prediction whose label is None;
        with `strict` it is a UserError. In a single pair pass "" for a missing second text, since None means no pair.
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
        """The predictions of several tasks for the same texts, given as for `predict`.

        By default every task that takes this number of texts. Tasks that share the whole encoder share one pass of it.
        """
        examples = examples_from(text, text2, strict)
        asked = self.taking(len(examples[0])) if tasks is None and examples else tuple(tasks or ())
        found: dict[str, list[Prediction]] = {task: [] for task in asked}
        for window in windows(examples, _characters):
            for task, predictions in self.answer(asked, window).items():
                found[task] += predictions
        return found

    def stream(self, task: str, examples: Iterable[Example]) -> Iterator[Prediction]:
        """Predictions one by one, in order, for any number of examples in flat memory."""
        self.check((task,))
        for window in windows(examples, _characters):
            yield from self.answer((task,), window)[task]

    def outputs(self, task: str, examples: Iterable[tuple[str, ...]]) -> Iterator[Tensor]:
        """The head's outputs for one window of examples after another."""
        self.check((task,))
        for window in windows(examples, _characters):
            self.check((task,), window)
            yield self._outputs((task,), window)[task]

    def answer(self, tasks: Sequence[str], window: Sequence[Example]) -> dict[str, list[Prediction]]:
        """Each task's predictions for the same examples, which are held and sorted together."""
        self.check(tasks, window)
        found = {task: [Prediction(task, None)] * len(window) for task in tasks}
        places = [place for place, example in enumerate(window) if has_text(example)]
        if places:
            texts = [tuple(text for text in window[place] if text is not None) for place in places]
            for task, outputs in self._outputs(tasks, texts).items():
                for place, prediction in zip(places, self.bundle.model.head(task).decode(outputs), strict=True):
                    found[task][place] = prediction
        return found

    def taking(self, texts: int) -> tuple[str, ...]:
        """The tasks that take so many texts and have something to predict."""
        found = tuple(
            name for name, spec in self.bundle.specs.items() if len(spec.text) == texts and spec.kind != "text"
        )
        if not found:
            raise UserError(f"predict: no task of {', '.join(self.tasks)} takes {texts} text(s)")
        return found

    def spec(self, task: str) -> TaskSpec:
        """What a task is, or an error that lists the tasks there are."""
        if task not in self.bundle.specs:
            raise UserError(unknown("predict", task, self.tasks, "task"))
        return self.bundle.specs[task]

    def _outputs(self, tasks: Sequence[str], window: Sequence[tuple[str, ...]]) -> dict[str, Tensor]:
        model, packer = self.bundle.model, self.bundle.packer
        columns = [self.bundle.tokenizer.encode(column) for column in zip(*window, strict=True)]
        texts = list(zip(*columns, strict=True))
        found: dict[str, Tensor] = {}
        for group in model.passes(tasks):
            heads = [model.head(task) for task in group]
            poolings = [head.pooling for head in heads if head.pooling is not None]
            if self._plain is None or len(poolings) < len(heads):  # a head that does not pool sees all tokens
                with only_one_thread() if self.few and model.device.type == "cpu" else nullcontext():
                    found |= model.answers(group, texts, packer, bf16=self.bf16)
            else:
                sequences = [
                    sequence for example in texts for sequence in packer.sequences(example, heads[0].separate_texts)
                ]
                pooled = self._plain.vectors(sequences, set(poolings))
                with torch.inference_mode():
                    found |= {head.task: head(pooled) for head in heads}
        return {task: found[task] for task in tasks}

    @cached_property
    def _plain(self) -> PlainEncoder | None:
        """The faster encoder, where it can stand in for the model's own."""
        model = self.bundle.model
        fits = model.is_plain and model.device.type == "cpu" and not self.few
        return PlainEncoder(model.encoder, self.bf16) if fits else None

    def check(self, tasks: Iterable[str], window: Sequence[Example] = ()) -> None:
        """Raises an error for a task that is unknown or cannot predict, or takes another number of texts."""
        for task in tasks:
            spec = self.spec(task)
            if spec.kind == "text":
                raise UserError(f"predict: task {task} is plain text: it has no labels, so there is nothing to predict")
            wrong = next((example for example in window if len(example) != len(spec.text)), None)
            if wrong is not None:
                raise UserError(
                    f"task {task} takes {len(spec.text)} text(s) for each example, found {len(wrong)}: {wrong!r:.80}"
                )


def windows(items: Iterable[T], characters: Callable[[T], int]) -> Iterator[list[T]]:
    """The items, some at a time: as many as are held together."""
    window: list[T] = []
    held = 0
    for item in items:
        window.append(item)
        held += characters(item)
        if len(window) >= WINDOW or held > WINDOW_CHARACTERS:
            yield window
            window, held = [], 0
    if window:
        yield window


@contextmanager
def only_one_thread() -> Iterator[None]:
    """A few texts are too little work to share: threads would wait for each other, and for other programs' threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_has_bf16() -> bool:
    """Whether the processor multiplies matrices in bf16 by itself."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _characters(example: Example) -> int:
    return sum(len(text or "") for text in example)


load = Predictor.load
