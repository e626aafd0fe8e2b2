"""Frozen records that several packages share, and the error class for users."""

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


LabelKind = Literal["classes", "yes_no", "score", "text"]


class UserError(ValueError):
    """An error that the user can fix. The command line shows its message without a traceback."""


# --- numbers with bounds ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bounds:
    """The interval that a number must be in. `convert` checks `Annotated[float, Bounds(0, 1, "[)")]`."""

    low: float
    high: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"
    """Closed or open ends, in the usual notation."""

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.ends[0] == "[" else value > self.low
        below = value <= self.high if self.ends[1] == "]" else value < self.high
        return above and below

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'at least' if self.ends[0] == '[' else 'above'} {self.low:g}"
        return f"in {self.ends[0]}{self.low}, {self.high}{self.ends[1]}"


Positive = Annotated[float, Bounds(0, ends="()")]
NonNegative = Annotated[float, Bounds(0)]
Share = Annotated[float, Bounds(0, 1)]
Rate = Annotated[float, Bounds(0, 1, "[)")]
Count = Annotated[int, Bounds(1, 10**9)]
Size = Annotated[int, Bounds(1, 2**16)]
MaxLength = Annotated[int, Bounds(4, 10**6)]
"""At least 4: a pair has three special tokens."""


# --- recipes --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MethodChoice:
    """A method by name, with options for its constructor."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSpec:
    """One task of a recipe."""

    name: str
    kind: LabelKind
    """classes (two or more), yes_no, score (a number in a range), or text (plain text without labels)."""
    text: tuple[str, ...]
    """Column with the text, or the two columns of a pair."""
    label: str | None
    """Column with the label. Kind text has none."""
    train: str
    """Training data: a csv, tsv, jsonl, parquet or xlsx[#SHEET] file; sample:NAME; or
    hub:DATASET[/CONFIG][@REVISION]#SPLIT."""
    dev: str
    """Data that is evaluated during training, to choose the best checkpoint."""
    test: str | None = None
    """Data that is evaluated once, after training."""
    classes: tuple[str, ...] | None = None
    """Class names in order. Default: the labels of the training data, sorted."""
    range: tuple[float, float] | None = None
    """Lowest and highest score. Required for kind score."""
    metric: str | None = None
    """Primary metric, which chooses the best checkpoint. Default: accuracy; pearson for scores; perplexity for text.
    data.md lists the others."""
    metrics: tuple[str, ...] = ()
    """Your own functions as additional metrics, [mymodule:function]. mymodule.py can be in the recipe's folder."""
    weight: Positive = 1.0
    """Weight of the task's loss."""
    head: MethodChoice | None = None
    """Default: linear for one text, cross for a pair, mlm for plain text."""
    loss: MethodChoice | None = None
    """Default: cross-entropy for classes, binary cross-entropy for yes_no, squared error for scores."""
    broken_rows: Literal["stop", "skip"] = "stop"
    """stop: list all broken rows and train nothing. skip: ignore them; the report shows their number."""
    format: Literal["csv", "tsv", "jsonl", "parquet", "xlsx"] | None = None
    """File format. Default: by the file's extension. csv and tsv differ only in the delimiter that is tried first."""
    delimiter: str | None = None
    """comma, semicolon, tab, pipe, or any one character. Default: detected."""
    quoting: Literal["minimal", "none"] | None = None
    """Whether quotation marks around a field are removed (minimal) or belong to the text (none). Default: detected."""
    encoding: str | None = None
    """Encoding of csv, tsv and jsonl files. Default: detected (UTF-8, UTF-16 or Windows-1252)."""

    @property
    def is_pair(self) -> bool:
        return len(self.text) == 2


@dataclass(frozen=True)
class TrainSettings:
    """How to train: the recipe's `train` field."""

    epochs: Count = 3
    """Number of epochs, each of `steps_per_epoch` steps."""
    steps_per_epoch: Count | None = None
    """Steps per epoch. Default: as many as contain all tasks' training examples once."""
    batch_size: Size = 32
    """Examples per forward pass."""
    accumulate: Size = 1
    """Number of forward passes whose gradients are accumulated for one step."""
    parts: Literal["all", "adapters", "heads"] = "all"
    """What is trained: all parameters, adapters and heads, or heads only. The rest is frozen."""
    norms: bool = False
    """Whether to train the layer norms of a frozen encoder."""
    head_lr: Positive | None = None
    """Learning rate of the heads. Default: the optimizer's lr."""
    layer_decay: Positive = 1.0
    """Factor between the learning rates of an encoder layer and the layer above it. The embeddings are the lowest
    layer."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate schedule after the warm-up."""
    warmup: Annotated[float, Bounds(0, 10**9)] = 0.1
    """Warm-up of the learning rate: a fraction of all steps if below 1, otherwise a number of steps."""
    clip: Positive | None = 1.0
    """Maximum norm of the gradient. null: no clipping."""
    ema: Annotated[float, Bounds(0, 1, "()")] | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. The average is evaluated and saved instead
    of the weights. Default: none."""
    average_best: Size = 1
    """The final weights are the mean of the weights at this many best evaluations."""
    teacher_annealing: bool = True
    """Whether the weight of the teachers' outputs decreases linearly from 1 to 0 (Clark et al. 2019). false: always
    0.5."""
    teacher_temperature: Positive = 1.0
    """Softmax temperature for the teachers' class probabilities."""
    precision: Literal["auto", "float32", "bf16"] = "float32"
    """bf16: mixed precision with float32 weights. auto: bf16 if the device supports it natively."""
    evaluate_every: Count | None = None
    """Steps between evaluations. Default: one epoch."""
    save_every: Count | None = None
    """Steps between checkpoints. Default: one epoch."""
    keep: Annotated[int, Bounds(2, 10**9)] = 2
    """Number of recent checkpoints to keep during training, together with the best models they refer to. At least 2,
    so that a damaged checkpoint can be replaced by the one before it."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do if a loss or gradient is NaN or infinite. stop: stop before the weights change. skip: skip the step,
    up to 10 times in a row."""
    select: str = "mean"
    """Which evaluation has the best weights: by mean (of the primary metrics, without tasks of kind text), TASK or
    TASK.METRIC. last: the final weights."""
    patience: Count | None = None
    """Stop after this many evaluations without improvement. Default: never."""
    interference_every: Count | None = None
    """Steps between probes that compare the tasks' gradients. Default: no probes. Probes do not change the weights."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    threads: Annotated[int, Bounds(1, 1024)] | None = None
    """Number of CPU threads. Default: all usable cores, or fewer if a short measurement shows that fewer are faster."""
    capture: bool = True
    """Whether to replay whole steps as CUDA graphs, if all chosen methods support it. Otherwise a message says why
    not."""


@dataclass(frozen=True)
class AddSettings:
    """How tasks are added to a finished run: the recipe's `add` field."""

    guarantee: Literal["frozen", "measured"] = "frozen"
    """frozen: only the new tasks' parameters are trained, so the old tasks' predictions stay bit-identical. measured:
    all parameters are trained, and the old tasks are evaluated before and after."""
    max_drop: NonNegative = 1.0
    """For measured: how many points (hundredths) an old task's primary metric on dev may drop. If one drops more, no
    model is saved."""
    distill: Share = 0.0
    """For measured: weight of the old model's outputs in the loss of remembered examples. 0: labels only. 1: outputs
    only."""
    run: str | None = None
    """The finished run. `polytask add-task` sets it."""


# --- labels and examples ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LabelSpace:
    """The possible labels of a task: class names, no/yes, a range of scores, or the tokens of plain text."""

    kind: LabelKind
    classes: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    vocabulary: int = 0
    """Size of the vocabulary, for plain text."""

    def scaled(self, score: float) -> float:
        """Maps a score from the range to [0, 1], which is what heads learn."""
        return (score - self.low) / (self.high - self.low)

    def unscaled(self, value: Any) -> Any:
        """Maps a number in [0, 1], or an array of them, to scores in the range."""
        return self.low + value * (self.high - self.low)


YES_NO = LabelSpace("yes_no", classes=("no", "yes"))


@dataclass(frozen=True)
class Example:
    """One row: its text or two texts, its label as in the file (None if it has none), and its row number."""

    texts: tuple[str, ...]
    label: str | float | None
    row: int


class TokenizedExamples(Protocol):
    """The tokenized examples of one split of a task: token ids and labels by index."""

    @property
    def labels(self) -> "npt.NDArray[Any]":
        """Labels as heads learn them: class indices (int64); 0 and 1, or scores in [0, 1] (float32); zeros for text."""

    def __len__(self) -> int: ...

    def tokens(self, index: int) -> "tuple[npt.NDArray[np.integer], ...]":
        """The token ids of the example's text or two texts, without special tokens."""


@dataclass(frozen=True)
class Prediction:
    """A task's prediction for one example: a class name, yes or no, or a score."""

    task: str
    label: str | float | None
    """None if the example has no text (None, "", or only whitespace)."""
    probabilities: Mapping[str, float] | None = None
    """Probability of each class. None for scores and for examples without text."""


# --- reports of a run -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Draw:
    """A number of examples of one task, for one step."""

    task: str
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

    @property
    def mean(self) -> float:
        """The mean of the tasks' primary metrics, negated where lower is better. Correlations are not rescaled.

        Tasks of kind text are left out: their perplexity has another scale. If there are no other tasks, it is the
        negated mean loss.
        """
        values = [score.signed() for score in self.tasks.values() if not score.is_text]
        values = values or [-score.loss for score in self.tasks.values()]
        return sum(values) / len(values)

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
    checkpoint: str | None = None
    """Set on steps that ended with a checkpoint."""
    interference: Interference | None = None
    """Set on steps that ended with a probe."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of the encoder's top layer, the adapter, the heads and the policy, if they are trained."""
    skipped: str | None = None
    """Why the step was skipped (`train.on_nan: skip`); `losses` and `penalties` contain only finite values."""


def unknown(where: str, name: str, known: Iterable[str], what: str) -> str:
    """The error message for an unknown name: it suggests the closest valid name and lists all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{where}: there is no {what} {name!r}{hint}. Valid: {', '.join(known) or 'none'}"
