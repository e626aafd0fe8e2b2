"""Frozen records that several packages share, and the error class for users."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


LabelKind = Literal["classes", "yes_no", "score", "multilabel", "tokens", "match", "choice", "text"]
TagScheme = Literal["bio", "bioes", "plain"]
"""How the tags of words mark spans: see kinds/schemes.py."""
KINDS_WITHOUT_LABEL: tuple[LabelKind, ...] = ("match", "text")
"""The kinds whose files have no labels. (`Kind.has_labels` says the same, but needs torch.)"""
Label = str | float | tuple[str, ...] | None
"""A label as files write it: a class name, yes or no, a score, several class names, or the text of an option; None if
there is none."""


class UserError(ValueError):
    """An error that the user can fix. The command line shows its message without a traceback."""


@contextmanager
def errors_in(file: object) -> Iterator[None]:
    """Inside the block, errors about `recipe:` name the file instead; None: there is no file."""
    try:
        yield
    except UserError as error:
        if file is not None:
            error.args = (re.sub("^recipe: ", lambda _: f"{file}: ", str(error), flags=re.MULTILINE),)
        raise


# --- labels and examples ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LabelSpace:
    """The possible labels of a task: class names, no/yes, scores, the tokens of plain text, or none (match)."""

    kind: LabelKind
    classes: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    vocabulary: int = 0
    """Size of the vocabulary, for plain text."""
    standardized_by: tuple[float, float] | None = None
    """Mean and standard deviation of the training scores; None if heads learn scores without standardizing them."""
    thresholds: tuple[float, ...] = ()
    """For several classes per row: the probability from which each class is predicted; empty: 0.5 for all."""
    separator: str = ""
    """For several classes per row: what separates them in a column of text."""
    bounded: bool = True
    """For scores: whether `low` and `high` are the ends of a range. If not, they are the mean of the training scores
    and the mean plus a standard deviation, so that a scaled score is a standardized one, of any size."""
    scheme: TagScheme | None = None
    """For tags of words: how they mark spans."""
    own_kind: "LabelKind | None" = None
    """The kind of a plug-in (`polytask.register`), whose labels have the form of `kind`; None: `kind` itself."""

    @property
    def kind_name(self) -> "LabelKind":
        """The name of the kind in the table of kinds."""
        return self.own_kind or self.kind

    def scaled(self, score: Any) -> Any:
        """Maps a score from the range to [0, 1] (without a range, to a standardized score): what heads learn.

        Takes arrays of scores too."""
        return (score - self.low) / (self.high - self.low)

    def unscaled(self, value: Any) -> Any:
        """Maps a scaled score, or an array of them, to the scale of the task's files."""
        return self.low + value * (self.high - self.low)

    def from_standardized(self, value: Any) -> Any:
        """Maps a standardized score, or a tensor of them, to the scale from 0 to 1 of `scaled`."""
        assert self.standardized_by is not None
        mean, deviation = self.standardized_by
        return self.scaled(mean) + value * (deviation / (self.high - self.low))


YES_NO = LabelSpace("yes_no", classes=("no", "yes"))
NO_LABEL = -1
"""What heads get as the label of an example that has none, or that only a teacher labels: no class, no answer and no
scaled score (`Score.targets` avoids it)."""


def has_label(labels: Any) -> Any:
    """Returns, for an array or tensor of labels [N] or [N, C], which examples have a label: [N]."""
    return (labels if labels.ndim == 1 else labels[:, 0]) != NO_LABEL


@dataclass(frozen=True)
class Example:
    """One row: its texts, its label as in the file (None if it has none), and its row number."""

    texts: tuple[str, ...]
    """For kind choice: the text, followed by the row's options."""
    label: Label
    row: int
    words: tuple[tuple[int, int], ...] | None = None
    """For tags of words: the first character of each word, and the one after its last."""


class TokenizedExamples(Protocol):
    """The tokenized examples of one split of a task: token ids and labels by index."""

    @property
    def labels(self) -> "npt.NDArray[Any]":
        """Labels as heads learn them: class indices (int64); 0 and 1, or scores in [0, 1] (float32); [N, C] of 0 and 1
        (float32) for several classes per row; [N, 2] numbers of texts (int64) for match, or for options
        the index of the right one and their number; zeros for text. NO_LABEL for an example without a label."""

    def __len__(self) -> int: ...

    def tokens(self, index: int) -> "tuple[npt.NDArray[np.integer], ...]":
        """The token ids of the example's texts, without special tokens."""


class SharedExamples(Protocol):
    """The tokenized examples that several tasks share; some have labels of some of the tasks only."""

    @property
    def tasks(self) -> tuple[str, ...]: ...

    @property
    def labels_of(self) -> "Mapping[str, npt.NDArray[Any]]":
        """By task: the label of each example, as in `TokenizedExamples`; NO_LABEL for an example without one."""

    @property
    def indices(self) -> "Mapping[str, npt.NDArray[np.int64]]":
        """By task: the index of each example among the task's own examples, which are those with its label."""

    def places(self, task: str) -> "npt.NDArray[np.int64]":
        """The index here of each of the task's own examples."""

    def __len__(self) -> int: ...

    def tokens(self, index: int) -> "tuple[npt.NDArray[np.integer], ...]": ...

    def gather(self, indices: "npt.ArrayLike") -> Any:
        """The texts of some examples (`polytask.text.texts.Texts`)."""


@dataclass(frozen=True)
class Span:
    """A part of a text, such as the name of a person."""

    start: int
    """Its first character."""
    end: int
    """The character after its last."""
    label: str
    text: str
    probability: float
    """The product of the probabilities of its words' tags."""


@dataclass(frozen=True)
class Prediction:
    """A task's prediction for one example: a class name, yes or no, a score, a tuple of class names, a cosine, or an
    option.

    For tags of words, the label is a tuple with one tag for each word, and the fields from `words` on are set.
    """

    task: str
    label: Label
    """None if the example has no text (None, "", or only whitespace), or if the model abstained."""
    probabilities: Mapping[str, float] | None = None
    """Probability of each class or option. None for scores, tags of words, and examples without text."""
    tokens: int | None = None
    """Number of tokens of the example before truncation, with special tokens; of the longest sequence if its texts are
    encoded separately. None for an example without text."""
    truncated: bool = False
    """Whether tokens were cut off, because there are more than the model's `max_length` (or than all windows hold)."""
    windows: int = 1
    """Number of windows that the text was read in, of the longer text of a pair; 1 for tasks without windows."""
    abstained: bool = False
    """Whether the label is None because no class has a probability of at least `abstain_below`. For tags of words:
    whether spans with a lower probability were left out."""
    rank: int | None = None
    """For kind match, in files of predictions: the place of the first right candidate among those of the split."""
    words: tuple[tuple[int, int], ...] | None = None
    """For tags of words: the first character of each word, and the one after its last."""
    word_texts: tuple[str, ...] | None = None
    """For tags of words: the words themselves."""
    word_probabilities: tuple[float, ...] | None = None
    """For tags of words: the probability of each word's tag."""
    spans: "tuple[Span, ...] | None" = None
    """For tags of words: the spans that the tags mark, in the order of the text."""
    index: int | None = None
    """For kind choice: the index of the chosen option among those of the row; None where the label is None."""

    def with_options(self, texts: Sequence[str]) -> "Prediction":
        """For kind choice: the same prediction with the texts of the options; before, their indices stand for them."""
        if self.probabilities is None:
            return self
        named = {texts[int(number)]: share for number, share in self.probabilities.items()}
        return replace(self, label=None if self.index is None else texts[self.index], probabilities=named)


# --- reports of a run -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Draw:
    """A number of examples of one task, for one step."""

    task: str
    """The task; for tasks that share rows, the name of their group."""
    count: int


@dataclass(frozen=True)
class Stage:
    """Consecutive steps that train one task, where tasks are trained one after another."""

    task: str
    first: int
    """First step, counted from 1 as in reports."""
    last: int


@dataclass(frozen=True)
class MetricValue:
    """A metric on a whole split, with its 95 % confidence interval over examples."""

    value: float
    low: float
    high: float
    greater_is_better: bool = True

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class TaskScore:
    """One task's metrics and mean loss on one split."""

    loss: float
    metrics: Mapping[str, MetricValue]
    primary: str
    examples: int
    greater_is_better: bool = True
    """For the primary metric; each MetricValue has its own."""

    @property
    def value(self) -> float:
        return self.metrics[self.primary].value

    @property
    def is_text(self) -> bool:
        """Whether the task is of kind text: its perplexity is not comparable with other tasks' metrics."""
        return self.primary == "perplexity"

    def sign(self, metric: str | None = None) -> int:
        """1 if greater values of the metric (default: the primary one) are better, -1 if lower ones are."""
        if metric is None or metric == self.primary:
            return 1 if self.greater_is_better else -1
        return 1 if self.metrics[metric].greater_is_better else -1

    def signed(self, metric: str | None = None) -> float:
        """A metric (default: the primary one), negated if lower is better, so that greater is better."""
        return self.sign(metric) * self.metrics[metric or self.primary].value


@dataclass(frozen=True)
class EvalReport:
    """The scores of all tasks on one split at one step."""

    step: int
    split: str
    tasks: Mapping[str, TaskScore]
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By task, at step 0 only: the scores of a simple method with the untrained encoder."""
    not_trained: tuple[str, ...] = ()
    """Tasks that are only scored (`trained: false`), and have no part in the mean."""
    train: Mapping[str, TaskScore] = field(default_factory=dict)
    """The trained tasks' scores on some of their training rows (`train.evaluate_train`)."""

    @property
    def mean(self) -> float:
        """The mean of the trained tasks' primary metrics, negated where lower is better.

        Correlations are not rescaled. Tasks of kind text are left out: their perplexity has another scale. If there are
        no other trained tasks, it is the negated mean loss.
        """
        trained = [score for task, score in self if task not in self.not_trained]
        values = [score.signed() for score in trained if not score.is_text] or [-score.loss for score in trained]
        return sum(values) / len(values)

    @property
    def mean_is_loss(self) -> bool:
        """Whether `mean` is a negated loss, because all trained tasks are plain text."""
        return all(score.is_text for task, score in self if task not in self.not_trained)

    def chosen(self, select: str) -> float:
        """The number that chooses the best checkpoint, greater is better: `mean`, `task`, or `task.metric`.

        For `last` it is the step, so that every evaluation is better than the ones before.
        """
        if select == "mean":
            return self.mean
        if select == "last":
            return float(self.step)
        task, _, metric = select.partition(".")
        return self.tasks[task].signed(metric or None)

    def __iter__(self) -> Iterator[tuple[str, TaskScore]]:
        return iter(self.tasks.items())


@dataclass(frozen=True)
class Interference:
    """How the tasks' gradients of their shared parameters agreed after one step."""

    step: int
    tasks: tuple[str, ...]
    layers: Mapping[str, Sequence[Sequence[float | None]]]
    """Layer (`all`, `pooler`, `layer 5` ... `embeddings`) -> [K, K] cosines; None for tasks without a gradient."""
    norms: Mapping[str, Sequence[float | None]]
    """Layer -> [K] norms of the gradients; None if NaN or infinite."""
    seconds: float
    """Duration of the probe."""

    def pairs(self) -> Iterator[tuple[str, float]]:
        """The cosine over all layers for every pair of tasks that both have a gradient."""
        for i, row in enumerate(self.layers.get("all", ())):
            for j, cosine in enumerate(row[:i]):
                if cosine is not None:
                    yield f"{self.tasks[j]} {self.tasks[i]}", cosine


@dataclass(frozen=True)
class StepReport:
    """The result of one training step."""

    step: int
    """Counted from 1."""
    steps: int
    """Number of steps in the whole run."""
    epoch: int
    losses: Mapping[str, float]
    """Loss of each task in the step."""
    penalties: Mapping[str, float]
    """Penalty of each regularizer."""
    learning_rate: float
    """Learning rate of the encoder; of adapters or heads if the encoder is frozen."""
    gradient_norm: float
    examples: int
    tokens: int
    seconds: float
    evaluation: EvalReport | None = None
    """Set on steps that ended with an evaluation."""
    best: bool = False
    """Whether this evaluation is the best so far."""
    left: tuple[str, ...] = ()
    """The tasks that stopped after this evaluation (`train.stop: per_task`)."""
    checkpoint: str | None = None
    """Set on steps that ended with a checkpoint. On a GPU it is written while training continues."""
    interference: Interference | None = None
    """Set on steps that ended with a probe."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of the encoder's top layer, the adapter, the heads and the policy, if they are trained."""
    skipped: str | None = None
    """Why the step was skipped (`train.on_nan: skip`); `losses` and `penalties` contain only finite values."""


def unknown(where: str, name: str, known: Iterable[str], what: str, of: str = "") -> str:
    """The error message for an unknown name (`of` follows the name): suggests the closest valid name and lists all."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{where}: there is no {what} {name!r}{of}{hint}. Valid: {', '.join(known) or 'none'}"
