"""The frozen records that cross rooms. Knows nothing of polytask's other files.

Shape letters: T tokens of a stream, S its sequences, D the hidden size, K the tasks of a model, B examples of one task,
C classes. A field or variable that ends in such letters is a tensor of that shape.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

LabelKind = Literal["classes", "yes_no", "score"]
Pooling = Literal["first", "pooler", "mean"]


class UserError(ValueError):
    """Something the user can put right: shown as one message, without a traceback."""


# --- what a recipe says -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Swap:
    """A method chosen by name, with the options its constructor takes."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSpec:
    """One task as the recipe describes it."""

    name: str
    kind: LabelKind
    """classes (any number), yes_no, or score (a number in a range)."""
    text: tuple[str, ...]
    """The column with the text, or the two columns of a pair."""
    label: str
    """The column with the label."""
    train: str
    """File with the training rows: csv, tsv, jsonl, parquet; sample:NAME; or hub:DATASET[/CONFIG]#SPLIT."""
    dev: str
    """File with the rows that choose the best checkpoint."""
    test: str | None = None
    """File with rows that are scored once, at the end."""
    classes: tuple[str, ...] | None = None
    """Class names in order; left out: the labels found in the training file, sorted."""
    range: tuple[float, float] | None = None
    """Lowest and highest score; needed for kind score."""
    metric: str | None = None
    """The task's primary metric; left out: accuracy, or pearson for scores."""
    weight: float = 1.0
    """Factor of the task's loss."""
    head: Swap | None = None
    """Left out: linear for one text, cross for a pair."""
    broken_rows: Literal["stop", "skip"] = "stop"
    """stop lists every broken row and trains nothing; skip leaves them out and counts them in the report."""
    format: Literal["csv", "tsv", "jsonl", "parquet"] | None = None
    """Left out: told by the file's ending. csv and tsv differ only in the first guess of the delimiter."""
    delimiter: str | None = None
    """Left out: found out from the file."""
    quoting: Literal["minimal", "none"] | None = None
    """Left out: found out from the file."""
    encoding: str = "utf-8"
    """Of csv, tsv and jsonl files."""

    @property
    def is_pair(self) -> bool:
        return len(self.text) == 2


@dataclass(frozen=True)
class TrainSettings:
    """How long, how fast and on what: the recipe's `train:` part."""

    epochs: int = 3
    """Rounds of `steps_per_epoch` steps."""
    steps_per_epoch: int | None = None
    """Left out: as many steps as hold every training example once, all tasks together."""
    batch_size: int = 32
    """Examples in one forward pass."""
    accumulate: int = 1
    """Forward passes whose gradients make one step."""
    parts: Literal["all", "adapters", "heads"] = "all"
    """What learns: everything; adapters and heads; or heads alone. The rest of the trunk is frozen."""
    norms: bool = False
    """The layer norms of a frozen trunk learn too."""
    head_lr: float | None = None
    """Learning rate of heads (left out: the optimizer's lr)."""
    layer_decay: float = 1.0
    """Each trunk layer below the top learns at this factor of the one above it; the embeddings are the lowest."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """What the learning rate does after the warm-up."""
    warmup: float = 0.1
    """Share of all steps (below 1), or a number of steps, in which the learning rate rises from 0."""
    clip: float | None = 1.0
    """Largest norm of the gradient; null: not clipped."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16 computes the forward pass in half the bytes; weights stay float32."""
    evaluate_every: int | None = None
    """Steps between evaluations; left out: once an epoch."""
    save_every: int | None = None
    """Steps between checkpoints to resume from; left out: once an epoch."""
    keep: int = 2
    """Checkpoints kept, beside the best model."""
    select: str = "mean"
    """What the best checkpoint is best at: mean (of the tasks' primary metrics), a task, or task.metric."""
    patience: int | None = None
    """Evaluations without a better score before training stops; left out: never."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    threads: int | None = None
    """CPU threads; left out: torch's choice."""


# --- labels and examples ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LabelSpace:
    """What a task's labels can be: class names, no/yes, or a range of scores."""

    kind: LabelKind
    classes: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0

    def scaled(self, score: float) -> float:
        """A score of the range as a number from 0 to 1, which is what heads learn."""
        return (score - self.low) / (self.high - self.low)

    def unscaled(self, value: float) -> float:
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
    def labels(self) -> npt.NDArray[Any]:
        """As heads learn them: class indices (int64), 0 and 1 (float32), or scores scaled to 0..1 (float32)."""

    def __len__(self) -> int: ...

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        """The ids of the example's text or two texts, without special tokens."""


@dataclass(frozen=True)
class Prediction:
    """What a task says of one example: a class name, yes or no, or a score."""

    task: str
    label: str | float
    probabilities: Mapping[str, float] | None = None
    """Of each class; None for scores."""


# --- the stream -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length laid out as padded rows: what attention without a varlen kernel works on."""

    token_index: Tensor
    """Which tokens of the stream are in the bucket."""
    slot_index: Tensor
    """Where each of them goes in the flattened [rows * width] padded block."""
    rows: int
    width: int
    mask_B11L: Tensor | None
    """True where there is a token; None when nothing is padded."""


@dataclass(frozen=True)
class Layout:
    """Where the sequences and the tasks lie in a stream. Filler sequences come last and belong to no task."""

    cu_seqlens_S1: Tensor
    task_ids_S: Tensor
    task_ids_T: Tensor
    lengths: tuple[int, ...]
    sequence_ranges: tuple[tuple[int, int], ...]
    """For each task of the model, the first sequence and the one after the last."""
    token_ranges: tuple[tuple[int, int], ...]
    """For each task of the model, the first token and the one after the last."""

    @property
    def max_length(self) -> int:
        return max(self.lengths)

    def to(self, device: torch.device) -> "Layout":
        return replace(
            self,
            cu_seqlens_S1=self.cu_seqlens_S1.to(device, non_blocking=True),
            task_ids_S=self.task_ids_S.to(device, non_blocking=True),
            task_ids_T=self.task_ids_T.to(device, non_blocking=True),
        )

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """Sequences sorted by length and cut where padding them together would waste more than a quarter of a row."""
        device = self.cu_seqlens_S1.device
        starts = [0]
        for length in self.lengths:
            starts.append(starts[-1] + length)
        order = sorted(range(len(self.lengths)), key=lambda s: -self.lengths[s])
        groups: list[list[int]] = []
        for s in order:
            if not groups or self.lengths[s] * 4 < self.lengths[groups[-1][0]] * 3:
                groups.append([])
            groups[-1].append(s)
        return tuple(_bucket(group, starts, self.lengths, device) for group in groups)


def _bucket(group: list[int], starts: list[int], lengths: tuple[int, ...], device: torch.device) -> Bucket:
    width = lengths[group[0]]
    columns = torch.arange(width)
    lengths_B1 = torch.tensor([[lengths[s]] for s in group])
    mask_BL = columns < lengths_B1
    tokens_BL = torch.tensor([[starts[s]] for s in group]) + columns
    slots_BL = torch.arange(len(group) * width).view(len(group), width)
    padded = not bool(mask_BL.all())
    return Bucket(
        token_index=tokens_BL[mask_BL].to(device),
        slot_index=slots_BL[mask_BL].to(device),
        rows=len(group),
        width=width,
        mask_B11L=mask_BL[:, None, None, :].to(device) if padded else None,
    )


@dataclass(frozen=True)
class Stream:
    """The packed tokens of a step: sequences one after another, ordered by task, with no padding between them."""

    token_ids_T: Tensor
    position_ids_T: Tensor
    segment_ids_T: Tensor
    layout: Layout
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    """For each task in the stream, the labels of its examples, in order."""

    def to(self, device: torch.device) -> "Stream":
        return Stream(
            self.token_ids_T.to(device, non_blocking=True),
            self.position_ids_T.to(device, non_blocking=True),
            self.segment_ids_T.to(device, non_blocking=True),
            self.layout.to(device),
            {task: labels.to(device, non_blocking=True) for task, labels in self.labels.items()},
        )


@dataclass(frozen=True)
class Encoded:
    """One task's part of the trunk's output, which is what a head sees."""

    hidden_TD: Tensor
    """The whole stream's hidden states; `tokens` and `sequences` say which are this task's."""
    layout: Layout
    task_index: int
    pooler: Callable[[Tensor], Tensor]
    """The trunk's pooler: first-token states to tanh(W h + b)."""

    @property
    def tokens(self) -> slice:
        return slice(*self.layout.token_ranges[self.task_index])

    def pool(self, pooling: Pooling) -> Tensor:
        """One vector for each of the task's sequences: first token, pooler output, or mean over its tokens."""
        first, last = self.layout.sequence_ranges[self.task_index]
        if pooling == "mean":
            offsets = self.layout.cu_seqlens_S1[first : last + 1].long() - self.tokens.start
            own_TD = self.hidden_TD[self.tokens].float()
            mean_SD = torch.segment_reduce(own_TD, "mean", offsets=offsets, axis=0, unsafe=True)
            return mean_SD.to(self.hidden_TD.dtype)
        states_SD = self.hidden_TD.index_select(0, self.layout.cu_seqlens_S1[first:last])
        return self.pooler(states_SD) if pooling == "pooler" else states_SD


# --- what a run reports -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Draw:
    """So many examples of one task, for one step."""

    task: str
    count: int


@dataclass(frozen=True)
class MetricValue:
    """A metric over a whole split, with its 95 % bootstrap interval over examples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class TaskScore:
    """One task's metrics and mean loss on one split."""

    loss: float
    metrics: Mapping[str, MetricValue]
    primary: str
    examples: int

    @property
    def value(self) -> float:
        return self.metrics[self.primary].value


@dataclass(frozen=True)
class EvalReport:
    """All tasks' scores on one split at one step."""

    step: int
    split: str
    tasks: Mapping[str, TaskScore]

    @property
    def mean(self) -> float:
        """The plain mean of the tasks' primary metrics (correlations are not rescaled)."""
        return sum(score.value for score in self.tasks.values()) / len(self.tasks)

    def chosen(self, select: str) -> float:
        """The number the best checkpoint is chosen by: `mean`, `task`, or `task.metric`."""
        if select == "mean":
            return self.mean
        task, _, metric = select.partition(".")
        score = self.tasks[task]
        return score.metrics[metric or score.primary].value

    def __iter__(self) -> Iterator[tuple[str, TaskScore]]:
        return iter(self.tasks.items())


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
