"""A trained model that answers: texts in, predictions out, any number of them. Knows no training and no network."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from torch import Tensor

from polytask.bundle import Bundle, load_bundle, no_model
from polytask.environment import pick_device
from polytask.types import Prediction, TaskSpec, UserError
from polytask.values import unknown

WINDOW = 4096  # examples tokenized and sorted by length together, whatever the size of the input


class Predictor:
    """All tasks of one run, ready to be asked."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    @classmethod
    def load(cls, run: str | Path, device: str = "auto") -> "Predictor":
        """From a run's folder, or from the model folder inside it."""
        folder = Path(run)
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such run")
        if (folder / "model").is_dir():
            folder = folder / "model"
        elif not (folder / "tasks.json").is_file():
            raise no_model(folder)
        bundle = load_bundle(folder)
        bundle.model.to(pick_device(device))
        return cls(bundle)

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bundle.specs)

    def predict(
        self, task: str, text: str | Sequence[str] | Sequence[tuple[str, str]], text2: str | None = None
    ) -> list[Prediction]:
        """Predictions for one text, a list of texts, one pair (`text`, `text2`), or a list of pairs."""
        if isinstance(text, str):
            examples: list[tuple[str, ...]] = [(text,) if text2 is None else (text, text2)]
        else:
            examples = [(item,) if isinstance(item, str) else tuple(item) for item in text]
        return list(self.stream(task, examples))

    def stream(self, task: str, examples: Iterable[tuple[str, ...]]) -> Iterator[Prediction]:
        """Predictions one by one, in order, for any number of examples in flat memory."""
        head = self.bundle.model.head(self.spec(task).name)
        for outputs in self.outputs(task, examples):
            yield from head.decode(outputs)

    def outputs(self, task: str, examples: Iterable[tuple[str, ...]]) -> Iterator[Tensor]:
        """The head's outputs for one window of examples after another."""
        if self.spec(task).kind == "text":
            raise UserError(f"predict: task {task} is plain text: it has no labels, so there is nothing to predict")
        wanted = len(self.spec(task).text)
        iterator = iter(examples)
        while window := list(islice(iterator, WINDOW)):
            for texts in window:
                if len(texts) != wanted:
                    raise UserError(
                        f"task {task} takes {wanted} text(s) for each example, found {len(texts)}: {texts!r:.80}"
                    )
            columns = [self.bundle.tokenizer.encode(column) for column in zip(*window, strict=True)]
            yield self.bundle.model.answer(task, list(zip(*columns, strict=True)), self.bundle.packer)

    def spec(self, task: str) -> TaskSpec:
        """What a task is, or an error that lists the tasks there are."""
        if task not in self.bundle.specs:
            raise UserError(unknown("predict", task, self.tasks, "task"))
        return self.bundle.specs[task]
