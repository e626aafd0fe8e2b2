"""Predicts texts with a trained model, in constant memory for any number of texts."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt
from torch import Tensor

from polytask.kinds.tokens import located
from polytask.machine import multiplies_bf16, pick_device
from polytask.runs.bundle import Bundle, load_run
from polytask.serving.examples import (
    Column,
    Example,
    Text,
    Texts,
    check_options,
    chunks,
    examples_from,
    has_text,
    num_characters,
    option_examples,
    plain_texts,
)
from polytask.serving.explanation import Explanation, Method, choose_word, explain, explain_option, explain_word
from polytask.serving.forward import Forward
from polytask.serving.gradients import explain_by_gradients
from polytask.settings import TaskSpec
from polytask.tasks.rows import row_words
from polytask.types import Prediction, UserError, unknown

log = logging.getLogger(__name__)

PRECISIONS = ("float32", "bf16")
MOST_SHOWN = 20  # examples that an error names

Table = TypeVar("Table")
"""A pandas or Polars frame, a Hugging Face data set, a pyarrow table or a list of dicts."""


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
        self.abstain_below = abstain_below
        self.forward = Forward(bundle, precision == "bf16", few)

    @classmethod
    def load(
        cls,
        run: str | Path,
        device: str = "auto",
        precision: str = "float32",
        *,
        few: bool = False,
        abstain_below: float | None = None,
        trust_plugins: bool = False,
    ) -> "Predictor":
        """Loads the model of a run's folder, or of the model folder inside it.

        `few` is for a handful of texts: the first prediction is faster, because the encoder is not optimized first.
        `abstain_below` replaces that of the model's tasks: a prediction whose highest probability is lower has the
        label None.
        `trust_plugins` remembers that the folder's plug-ins, which are Python programs, may run.
        """
        bundle = load_run(Path(run), trust_plugins)
        bundle.model.to(pick_device(device))
        return cls(bundle, precision, few, abstain_below)

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bundle.specs)

    @overload
    def predict(
        self, task: str, text: Texts, text2: Text | Sequence[Text] | Column = None, *, strict: bool = False
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self, text: str | Sequence[str] | Column, /, *, task: str, strict: bool = False
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self,
        table: Table,
        /,
        *,
        task: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        probabilities: str = "top",
        strict: bool = False,
    ) -> Table: ...

    def predict(
        self,
        *data: Any,
        task: Any = None,
        text: Any = ...,
        text2: Any = None,
        columns: Sequence[str] | None = None,
        probabilities: str = "top",
        strict: bool = False,
    ) -> Any:
        """Predicts texts, with one prediction per example, or the rows of a table.

            predict("mood", "a text")                              one text
            predict("mood", ["a text", "another"])                 a list of texts; also predict(texts, task="mood")
            predict("same", "first", "second")                     one pair
            predict("same", ["a", "b"], ["c", "d"])                the pairs (a, c) and (b, d)
            predict("same", [("a", "c"), ("b", "d")])              the same pairs; also for three or more texts
            predict("reply", "a text", ["an option", "another"])   one text with its options, for kind choice
            predict("reply", ["a", "b"], [["c", "d"], ["e", "f"]]) two texts with their options
            predict(frame, task="mood")                            the frame with more columns
            predict(frame)                                         all tasks whose text columns the frame has

        The label is None for an example with a text that is None, NaN, empty or only whitespace; with `strict` such an
        example is a UserError. In a single pair, a missing second text must be "", since None means that there is none.

        A table is a pandas or Polars frame, a Hugging Face data set, a pyarrow table or a list of dicts. The result is
        a copy of the same kind, in the same order and with the same index. Its new columns are those of `predict_file`:
        predicted_TASK, probability_TASK, with `probabilities="all"` probability_TASK_CLASS, tokens_TASK and
        truncated_TASK. `columns` are the text columns, by default those of the training data; for kind choice, they are
        followed by the columns with options.
        """
        if len(data) == 1 and not isinstance(data[0], str):
            from polytask.serving.tables import is_table, predict_table  # imports pyarrow  # noqa: PLC0415

            data = (list(data[0]),) if isinstance(data[0], Iterator) else data
            if is_table(data[0]):
                return predict_table(self, data[0], task, columns, probabilities, strict)
        positional = list(data)
        task = positional.pop(0) if task is None and positional else task
        text = positional.pop(0) if text is ... and positional else text
        text2 = positional.pop(0) if text2 is None and positional else text2
        if positional or not isinstance(task, str) or text is ...:
            raise UserError(
                f"predict: expected a task and texts, as in predict({self.tasks[0]!r}, ['a text']), or a table; found "
                f"task={task!r:.40} and {'too many' if positional else 'no'} texts"
            )
        options = self.spec(task).has_options
        examples = option_examples(text, text2, strict) if options else examples_from(text, text2, strict)
        return list(self.stream(task, examples))

    def predict_tasks(
        self,
        text: Texts,
        text2: Text | Sequence[Text] | Column = None,
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
        for chunk in chunks(examples, num_characters):
            for task, more in self.answer(chosen, chunk, first=first).items():
                predictions[task] += more
            first += len(chunk)
        return predictions

    def stream(self, task: str, examples: Iterable[Example]) -> Iterator[Prediction]:
        """Yields the predictions for any number of examples, in order and in constant memory."""
        self.check((task,))
        first = 0
        for chunk in chunks(examples, num_characters):
            yield from self.answer((task,), chunk, first=first)[task]
            first += len(chunk)

    def outputs(self, task: str, examples: Iterable[tuple[str, ...]]) -> Iterator[Tensor]:
        """Yields the head's outputs, one chunk of examples at a time."""
        self.check((task,))
        for chunk in chunks(examples, num_characters):
            self.check((task,), chunk)
            texts, _ = self.forward.encode((task,), chunk)
            yield self.forward.outputs((task,), texts)[task]

    def answer(
        self, tasks: Sequence[str], window: Sequence[Example], tags: Sequence[Example] | None = None, first: int = 0
    ) -> dict[str, list[Prediction]]:
        """Each task's predictions for some examples.

        `tags` has the tags of the words of each text, for models that were trained with columns of tags. `first` is the
        number of the first example, for error messages.
        """
        self.check(tasks, window)
        predictions = {task: [Prediction(task, None)] * len(window) for task in tasks}
        indices = [index for index, example in enumerate(window) if has_text(example)]
        if indices:
            numbers = [first + index for index in indices]
            examples = [window[index] for index in indices]
            given = None if tags is None else [tuple(str(value or "") for value in tags[index]) for index in indices]
            for group in self._same_tokens(tasks):
                for task, own in self._predict(group, examples, given, numbers).items():
                    for index, prediction in zip(indices, own, strict=True):
                        predictions[task][index] = prediction
        return predictions

    def _same_tokens(self, tasks: Sequence[str]) -> Iterator[list[str]]:
        """Yields the tasks that predict texts, and those that predict words, which need the tokens of whole texts."""
        for per_word in (False, True):
            if group := [task for task in tasks if self.forward.is_per_word(task) == per_word]:
                yield group

    def _predict(
        self,
        tasks: Sequence[str],
        examples: Sequence[Example],
        tags: Sequence[tuple[str, ...]] | None,
        numbers: Sequence[int],
    ) -> dict[str, list[Prediction]]:
        """The predictions of tasks that all predict texts, or all predict words, for examples with text."""
        texts, lengths_NW = self.forward.encode(tasks, examples, tags)
        self._check_lengths(tasks, lengths_NW, numbers)
        outputs = self.forward.outputs(tasks, texts)
        return {task: self.decode(task, outputs[task], lengths_NW, examples) for task in tasks}

    def decode(
        self, task: str, outputs: Tensor, lengths_NW: npt.NDArray[np.int64], examples: Sequence[Example]
    ) -> list[Prediction]:
        """A task's predictions from its head's outputs for examples with text, whose texts have these lengths."""
        own = self.bundle.predictions(task, outputs, lengths_NW, self.abstain_below)
        if (scheme := self.bundle.labels[task].scheme) is not None:
            words = (row_words(example[0]) for example in examples)
            own = [located(one, *text, scheme) for one, text in zip(own, words, strict=True)]
        if self.spec(task).has_options:
            options = (plain_texts(example)[1:] for example in examples)
            own = [one.with_options(texts) for one, texts in zip(own, options, strict=True)]
        return own

    def too_long(self, tasks: Sequence[str], examples: Sequence[Example]) -> list[tuple[int, int]]:
        """The index and the number of tokens of each example that is longer than `max_length`."""
        texts = [plain_texts(example) for example in examples]
        tokenized = self.bundle.tokenize(texts, options=any(self.spec(task).has_options for task in tasks))
        return self.forward.too_long(tasks, self.bundle.text_lengths(texts, tokenized))

    def _check_lengths(self, tasks: Sequence[str], lengths_NW: npt.NDArray[np.int64], numbers: Sequence[int]) -> None:
        """Refuses examples that are too long, with `truncate: error`."""
        packer = self.bundle.packer
        long = self.forward.too_long(tasks, lengths_NW) if packer.truncate == "error" else []
        if long:
            shown = ", ".join(f"{numbers[i]} ({tokens:,} tokens)" for i, tokens in long[:MOST_SHOWN])
            more = f" and {len(long) - MOST_SHOWN:,} more" if len(long) > MOST_SHOWN else ""
            raise UserError(
                f"predict: longer than max_length ({packer.max_length} tokens), which is an error because the model "
                f"was trained with `truncate: error`: example {shown}{more} (counted from 0); shorten the texts"
            )

    def embed(
        self, texts: str | Sequence[Text] | Column, normalize: bool = True, *, task: str | None = None
    ) -> npt.NDArray[np.float32]:
        """Returns a vector for each text, [N, D]: the mean over the tokens of the encoder's last hidden states.

        For an encoder such as minilm these are the embeddings of sentence-transformers, as training has changed them.
        With `normalize` every vector has length 1, so that the product of two vectors is their cosine. By default the
        encoder is used without the tasks' adapters; with `task`, as this task uses it, with its windows: for a task of
        kind match, the product of two vectors is then its prediction. A text that is missing or empty has a vector of
        NaN.
        """
        if task is not None:
            self.spec(task)
        examples = examples_from(texts, None, strict=False)
        width = self.bundle.model.encoder.shape.hidden
        vectors = np.full((len(examples), width), np.nan, np.float32)
        filled = [index for index, example in enumerate(examples) if has_text(example)]
        start = 0
        for chunk in chunks([examples[index] for index in filled], num_characters):
            more = self.forward.vectors(self.bundle.tokenize([plain_texts(example) for example in chunk]), task)
            vectors[filled[start : start + len(chunk)]] = more.numpy()
            start += len(chunk)
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def explain(
        self,
        text: str | Sequence[str],
        text2: str | Sequence[str] | None = None,
        *,
        task: str | None = None,
        label: str | None = None,
        word: str | int | None = None,
        method: Method = "occlusion",
    ) -> Explanation:
        """Measures which words a prediction depends on. `task` can be left out if the model has only one.

        With `occlusion`, a word's value is by how much the probability of the predicted class (or of `label`), or the
        score, falls without it. Words that say the same thing twice can both have no effect. Each word takes one more
        prediction. `integrated_gradients` divides the probability or score among the words, in a time that depends
        little on their number: see serving/gradients.py.

        A pair is given as two texts, or as a list; three or more texts as a list.
        For kind choice, `text2` is the list of options; the words are those of the text and of the chosen option (or of
        the option `label`).

        If the task has a tag for each word, the tag of `word` is explained: a word of the text, or its number from 0.
        """
        if method not in get_args(Method):
            raise UserError(unknown("explain: method", method, get_args(Method), "method"))
        task = self._only_task() if task is None else task
        has_options = self.spec(task).has_options
        if has_options and (not isinstance(text, str) or isinstance(text2, str | None)):
            found = f"found {text!r:.80} and {text2!r:.80}"
            raise UserError(f"explain: kind choice takes a text and a list of options; {found}")
        more = () if text2 is None else (text2,) if isinstance(text2, str) else tuple(text2)
        texts = ((text,) if isinstance(text, str) else tuple(text)) + more
        self.check((task,), [texts])
        if not has_text(texts):
            raise UserError(f"explain: the text is empty: {texts!r:.80}")
        if self.forward.is_per_word(task):
            return self._explain_word(task, texts[0], word, label, method)
        if word is not None:
            raise UserError(f"explain: word: task {task} has one label for the text, not for each word; leave word out")
        if method == "occlusion":
            explain_label = explain_option if has_options else explain
            return explain_label(task, texts, partial(self._predict_labels, task), label)
        (whole,) = self._predict_labels(task, [texts])
        whole = whole.with_options(texts[1:]) if has_options else whole
        return explain_by_gradients(self.bundle, texts, self.forward.encode((task,), [texts])[0], whole, label)

    def _only_task(self) -> str:
        """The task that has predictions; a UserError if there are several."""
        tasks = [task for task in self.tasks if self.bundle.model.head(task).kind.has_predictions]
        if len(tasks) != 1:
            raise UserError(f"explain: `task` must be given: one of {', '.join(tasks) or 'no tasks with predictions'}")
        return tasks[0]

    def _explain_word(
        self, task: str, text: str, word: str | int | None, label: str | None, method: Method
    ) -> Explanation:
        places = row_words(text).words
        index = choose_word(word, [text[start:end] for start, end in places], task)
        if method == "occlusion":
            return explain_word(task, text, places[index], partial(self.forward.predict_words, task), label)
        (whole,) = self.forward.predict_words(task, [(text, places[index][0])])
        tokens, _ = self.forward.encode((task,), [(text,)])
        return explain_by_gradients(self.bundle, (text,), tokens, whole, label, index)

    def _predict_labels(self, task: str, examples: Sequence[tuple[str, ...]]) -> list[Prediction]:
        """Predictions that have a label also where the model abstains, and indices instead of options."""
        found: list[Prediction] = []
        for chunk in chunks(examples, num_characters):
            tokenized, lengths_NW = self.forward.encode((task,), chunk)
            outputs = self.forward.outputs((task,), tokenized)[task]
            found += self.bundle.predictions(task, outputs, lengths_NW, keep_labels=True)
        return found

    def taking(self, texts: int) -> tuple[str, ...]:
        """The tasks with labels that take this number of texts."""
        tasks = tuple(
            name
            for name, spec in self.bundle.specs.items()
            if len(spec.text) == texts and not spec.has_options and self.bundle.model.head(name).kind.has_predictions
        )
        if not tasks:
            specs = self.bundle.specs.items()
            takes = (f"{name} {len(s.text)}{' and options (--option)' if s.has_options else ''}" for name, s in specs)
            raise UserError(f"predict: found {texts} text(s), but the tasks take: {', '.join(takes)}")
        return tasks

    def spec(self, task: str) -> TaskSpec:
        """The task's description; raises a UserError that lists all tasks if there is no such task."""
        if task not in self.bundle.specs:
            raise UserError(unknown("predict", task, self.tasks, "task"))
        return self.bundle.specs[task]

    def check(self, tasks: Iterable[str], window: Sequence[Example] = ()) -> None:
        """Raises a UserError if a task is unknown, has no labels, or takes another number of texts."""
        for task in tasks:
            spec = self.spec(task)
            if not self.bundle.model.head(task).kind.has_predictions:
                raise UserError(f"predict: task {task} is of kind text: it has no labels to predict")
            words = next((text for example in window for text in example if isinstance(text, tuple)), None)
            if words is not None and not self.forward.is_per_word(task):
                raise UserError(f"predict: task {task}: {list(words)!r:.80}: a list or table; expected text")
            if spec.has_options:
                check_options(task, window)
                continue
            wrong = next((example for example in window if len(example) != len(spec.text)), None)
            if wrong is not None:
                raise UserError(
                    f"predict: task {task} takes {len(spec.text)} text(s) per example, found {len(wrong)}: "
                    f"{wrong!r:.80}"
                )


load = Predictor.load
