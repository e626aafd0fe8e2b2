"""The frozen records that cross rooms, those of the stream aside. Knows nothing of polytask's other files."""

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
    """Something the user can put right: shown as one message, without a traceback."""


# --- numbers with bounds ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bounds:
    """The interval a number must lie in. `Annotated[float, Bounds(0, 1, "[)")]` is checked by `convert`."""

    low: float
    high: float = math.inf
    ends: Literal["[]", "[)", "(]", "()"] = "[]"
    """Whether each end belongs to the interval, in the usual notation."""

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
"""A pair has three special tokens."""


# --- what a recipe says -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MethodChoice:
    """A method chosen by name, with the options its constructor takes."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSpec:
    """One task as the recipe describes it."""

    name: str
    kind: LabelKind
    """classes (any number), yes_no, score (a number in a range), or text (plain text, which has no labels)."""
    text: tuple[str, ...]
    """The column with the text, or the two columns of a pair."""
    label: str | None
    """The column with the label; kind text has none."""
    train: str
    """Training rows: csv, tsv, jsonl, parquet or xlsx[#SHEET]; sample:NAME; hub:DATASET[/CONFIG][@REVISION]#SPLIT."""
    dev: str
    """File with the rows that choose the best checkpoint."""
    test: str | None = None
    """File with rows that are scored once, at the end."""
    classes: tuple[str, ...] | None = None
    """Class names in order; left out: the labels found in the training file, sorted."""
    range: tuple[float, float] | None = None
    """Lowest and highest score; needed for kind score."""
    metric: str | None = None
    """Judges checkpoints; left out: accuracy, pearson for scores, perplexity for text. The others are in data.md."""
    metrics: tuple[str, ...] = ()
    """Functions of your own as further metrics, [mymodule:function]; mymodule.py is looked for beside the recipe."""
    weight: Positive = 1.0
    """Factor of the task's loss."""
    head: MethodChoice | None = None
    """Left out: linear for one text, cross for a pair, mlm for plain text."""
    loss: MethodChoice | None = None
    """Left out: cross-entropy for classes, binary cross-entropy for yes_no, squared error for scores."""
    broken_rows: Literal["stop", "skip"] = "stop"
    """stop lists every broken row and trains nothing; skip leaves them out and counts them in the report."""
    format: Literal["csv", "tsv", "jsonl", "parquet", "xlsx"] | None = None
    """Left out: told by the file's ending. csv and tsv differ only in the first guess of the delimiter."""
    delimiter: str | None = None
    """comma, semicolon, tab, pipe, or any one character. Left out: found out from the file."""
    quoting: Literal["minimal", "none"] | None = None
    """Left out: found out from the file."""
    encoding: str | None = None
    """Of csv, tsv and jsonl files. Left out: found out from the file (UTF-8, UTF-16, Windows-1252)."""

    @property
    def is_pair(self) -> bool:
        return len(self.text) == 2


@dataclass(frozen=True)
class TrainSettings:
    """How long, how fast and on what: the recipe's `train:` part."""

    epochs: Count = 3
    """Rounds of `steps_per_epoch` steps."""
    steps_per_epoch: Count | None = None
    """Left out: as many steps as hold every training example once, all tasks together."""
    batch_size: Size = 32
    """Examples in one forward pass."""
    accumulate: Size = 1
    """Forward passes whose gradients make one step."""
    parts: Literal["all", "adapters", "heads"] = "all"
    """What learns: everything; adapters and heads; or heads alone. The rest of the encoder is frozen."""
    norms: bool = False
    """The layer norms of a frozen encoder learn too."""
    head_lr: Positive | None = None
    """Learning rate of heads (left out: the optimizer's lr)."""
    layer_decay: Positive = 1.0
    """Each encoder layer below the top learns at this factor of the one above it; the embeddings are the lowest."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """What the learning rate does after the warm-up."""
    warmup: Annotated[float, Bounds(0, 10**9)] = 0.1
    """Share of all steps (below 1), or a number of steps, in which the learning rate rises from 0."""
    clip: Positive | None = 1.0
    """Largest norm of the gradient; null: not clipped."""
    ema: Annotated[float, Bounds(0, 1, "()")] | None = None
    """Decay of a running average of the weights (0.999, say), which is evaluated and saved in their place."""
    average_best: Size = 1
    """The final weights are the mean of those at this many best evaluations."""
    teacher_annealing: bool = True
    """Teachers' say falls from all to none over the run (Clark et al. 2019); false: half, throughout."""
    teacher_temperature: Positive = 1.0
    """Softens what teachers say of classes."""
    precision: Literal["auto", "float32", "bf16"] = "float32"
    """bf16: most of a step in half the bytes, weights stay float32. auto: bf16 where the device multiplies it."""
    evaluate_every: Count | None = None
    """Steps between evaluations; left out: once an epoch."""
    save_every: Count | None = None
    """Steps between checkpoints to resume from; left out: once an epoch."""
    keep: Annotated[int, Bounds(2, 10**9)] = 2
    """Checkpoints kept, beside the best models they need; at least 2, so that a damaged one has one before it."""
    on_nan: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is no number: stop before anything moves; or skip the step, up to 10 times in a row."""
    select: str = "mean"
    """The weights to keep: best by mean (of the primary metrics, plain text aside), by TASK or TASK.METRIC; or last."""
    patience: Count | None = None
    """Evaluations without a better score before training stops; left out: never."""
    interference_every: Count | None = None
    """Steps between probes of how the tasks' gradients agree; left out: none. Weights are the same with and without."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    threads: Annotated[int, Bounds(1, 1024)] | None = None
    """CPU threads; left out: all usable cores, or fewer if a short measurement shows that fewer are clearly faster."""
    capture: bool = True
    """On CUDA, replay whole steps as graphs where the methods chosen allow it; else a line says why not."""


@dataclass(frozen=True)
class AddSettings:
    """How tasks join a run that has finished: the recipe's `add:` part."""

    guarantee: Literal["frozen", "measured"] = "frozen"
    """frozen: only new parts learn, old answers stay bit-identical. measured: all learns, old tasks are measured."""
    max_drop: NonNegative = 1.0
    """measured: points (hundredths) an old task's primary metric may fall on dev. If one falls further: no model."""
    distill: Share = 0.0
    """measured: the old model's say in what remembered examples teach: 0 their labels alone, 1 its answers alone."""
    run: str | None = None
    """The run that has finished; `polytask add-task` writes it here."""


# --- labels and examples ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LabelSpace:
    """What a task's labels can be: class names, no/yes, a range of scores, or, of plain text, its own tokens."""

    kind: LabelKind
    classes: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    vocabulary: int = 0
    """How many different tokens plain text has."""

    def scaled(self, score: float) -> float:
        """A score of the range as a number from 0 to 1, which is what heads learn."""
        return (score - self.low) / (self.high - self.low)

    def unscaled(self, value: Any) -> Any:
        """A number from 0 to 1, or an array of such numbers, as scores of the range."""
        return self.low + value * (self.high - self.low)


YES_NO = LabelSpace("yes_no", classes=("no", "yes"))


@dataclass(frozen=True)
class Example:
    """One row: its text or two texts, its label as the file has it (None: unlabelled), and where it stands."""

    texts: tuple[str, ...]
    label: str | float | None
    row: int


class TokenizedExamples(Protocol):
    """The examples of one task and split as training and evaluation see them: ids and labels by index."""

    @property
    def labels(self) -> "npt.NDArray[Any]":
        """As heads learn them: class indices (int64), 0 and 1 or scores scaled to 0..1 (float32); zeros for text."""

    def __len__(self) -> int: ...

    def tokens(self, index: int) -> "tuple[npt.NDArray[np.integer], ...]":
        """The ids of the example's text or two texts, without special tokens."""


@dataclass(frozen=True)
class Prediction:
    """A task's prediction for one example: a class name, yes or no, or a score."""

    task: str
    label: str | float | None
    """None: the example has no text (None, "", or only white space), so nothing was predicted."""
    probabilities: Mapping[str, float] | None = None
    """Of each class; None for scores and for examples without text."""


# --- what a run reports -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Draw:
    """So many examples of one task, for one step."""

    task: str
    count: int


@dataclass(frozen=True)
class Stage:
    """Steps in a row that learn one task, where tasks are learned one after another."""

    task: str
    first: int
    """Counted from 1, as in reports."""
    last: int


@dataclass(frozen=True)
class MetricValue:
    """A metric over a whole split, with its 95 % interval over examples."""

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
    """Of the primary metric; each metric has its own."""

    @property
    def value(self) -> float:
        return self.metrics[self.primary].value

    @property
    def is_text(self) -> bool:
        """Whether the task is plain text, whose perplexity is not comparable with other tasks' metrics."""
        return self.primary == "perplexity"

    def sign(self, metric: str | None = None) -> int:
        """1 where a greater value of the metric (left out: the primary one) is better, -1 where a lower one is."""
        if metric is None or metric == self.primary:
            return 1 if self.greater_is_better else -1
        return 1 if self.metrics[metric].greater_is_better else -1

    def signed(self, metric: str | None = None) -> float:
        """A metric (left out: the primary one), turned round where lower is better: the greater the better."""
        return self.sign(metric) * self.metrics[metric or self.primary].value


@dataclass(frozen=True)
class EvalReport:
    """All tasks' scores on one split at one step."""

    step: int
    split: str
    tasks: Mapping[str, TaskScore]
    baselines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By task, at step 0 only: what a simple method scores with the untrained encoder."""

    @property
    def mean(self) -> float:
        """The plain mean of the tasks' primary metrics (correlations are not rescaled; where lower is better, minus).

        Plain text is left out: its perplexity has another scale. Where there is nothing else, minus its loss.
        """
        values = [score.signed() for score in self.tasks.values() if not score.is_text]
        values = values or [-score.loss for score in self.tasks.values()]
        return sum(values) / len(values)

    def chosen(self, select: str) -> float:
        """The number the best checkpoint is chosen by, the greater the better: `mean`, `task`, or `task.metric`.

        By `last` it is the step: every evaluation is better than those before it.
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
    """How the tasks' gradients on what they share lay to each other after one step."""

    step: int
    tasks: tuple[str, ...]
    layers: Mapping[str, Sequence[Sequence[float | None]]]
    """`all`, `pooler`, `layer 5` ... `embeddings` -> [K, K] cosines; None with a task that has no gradient there."""
    norms: Mapping[str, Sequence[float | None]]
    """The same -> [K] norms of the gradients; None for what is no number."""
    seconds: float
    """That the probe took."""

    def pairs(self) -> Iterator[tuple[str, float]]:
        """The cosine of each two tasks over all layers, where both have a gradient."""
        for i, row in enumerate(self.layers.get("all", ())):
            for j, cosine in enumerate(row[:i]):
                if cosine is not None:
                    yield f"{self.tasks[j]} {self.tasks[i]}", cosine


@dataclass(frozen=True)
class StepReport:
    """What one training step did."""

    step: int
    """Counted from 1."""
    steps: int
    """In the whole run."""
    epoch: int
    losses: Mapping[str, float]
    """Of each task that took part."""
    penalties: Mapping[str, float]
    """Of each regularizer."""
    learning_rate: float
    """Of the encoder; of adapters or heads where the encoder does not learn."""
    gradient_norm: float
    examples: int
    tokens: int
    seconds: float
    evaluation: EvalReport | None = None
    """Set on steps that ended with an evaluation."""
    best: bool = False
    """This evaluation is the best so far."""
    checkpoint: str | None = None
    """Set on steps that ended with a checkpoint."""
    interference: Interference | None = None
    """Set on steps that ended with a probe."""
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Of the encoder's top layer, the adapter, the heads and the policy, as far as they learn."""
    skipped: str | None = None
    """Why the step moved no weights (`train.on_nan: skip`); `losses` and `penalties` are those that are numbers."""


def unknown(where: str, name: str, known: Iterable[str], what: str) -> str:
    """The message for a name that is not in a table: the nearest one, and all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{where}: there is no {what} {name!r}{hint}. Valid: {', '.join(known) or 'none'}"
