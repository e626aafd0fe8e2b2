"""What a recipe can set: tasks, methods and how to train, as records, and the bounds of their numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from polytask.types import LabelKind, TagScheme


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


OPEN = "open"
"""Marks a choice to which plug-ins can add names: `Annotated[Literal[...], OPEN]`. Whether a name exists is checked
when the plug-ins are known."""
OpenKind = Annotated[LabelKind, OPEN]
Positive = Annotated[float, Bounds(0, ends="()")]
NonNegative = Annotated[float, Bounds(0)]
Share = Annotated[float, Bounds(0, 1)]
Rate = Annotated[float, Bounds(0, 1, "[)")]
Count = Annotated[int, Bounds(1, 10**9)]
Size = Annotated[int, Bounds(1, 2**16)]
ABSTAINING: tuple[LabelKind, ...] = ("classes", "yes_no", "tokens", "choice")
"""The kinds of labels whose predictions have one probability: those that are calibrated, and can abstain."""
MaxLength = Annotated[int, Bounds(4, 10**6)]
"""At least 4: a pair has three special tokens."""
MOST_TEXTS = 8
"""The most texts of an example."""
Truncate = Literal["end", "start", "error"]
"""Which end of a text that is too long is cut off; error: none, such a text is refused."""


# --- parts of a recipe ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MethodChoice:
    """A method by name, with options for its constructor."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowSample:
    """A random sample of a file's rows, without replacement and in the order of the file."""

    sample: Count
    """Number of rows."""
    seed: int = 0
    """Seed of the choice. It is not the run's seed, so that runs with several seeds are trained on the same rows."""


WindowPool = Literal["mean", "max", "first"]


@dataclass(frozen=True)
class Windows:
    """How texts that are longer than a sequence are read: a task's `windows` field."""

    stride: Size | None = None
    """Tokens between the starts of two windows. Default: half of a window."""
    pool: WindowPool = "mean"
    """How the vectors of a text's windows become one vector: their mean, or the largest of each number. first: only the
    first window is read, as without windows."""
    most: Annotated[int, Bounds(1, 1024)] = 16
    """The most windows of a text. What is not in them is cut off, as `truncate` says."""

    def starts_after(self, size: int) -> int:
        """Return the tokens between the starts of two windows of `size` tokens."""
        return max(1, size // 2) if self.stride is None else min(self.stride, size)

    def room(self, size: int) -> int:
        """Return the number of tokens that windows of `size` tokens can hold together."""
        return size if self.pool == "first" else size + (self.most - 1) * self.starts_after(size)


@dataclass(frozen=True)
class TaskSpec:
    """One task of a recipe."""

    name: str
    kind: OpenKind
    """classes (two or more), yes_no, score (a number), multilabel (any number of classes per row), tokens (a tag for
    each word), match (pairs of texts that belong together, without labels), choice (one of the row's options), text
    (plain text without labels), or a kind that a plug-in registers."""
    text: tuple[str, ...]
    """Column with the text, or a list of two to eight columns with texts that belong together. For kind tokens, texts
    or lists of words."""
    label: str | tuple[str, ...] | None
    """Column with the label. Kinds match and text have none. For kind multilabel: a column with a list of classes, or a
    list of columns of 0 and 1, whose names are the classes. For kind tokens: a column with one tag for each word, or
    with lists of spans, [{start: 0, end: 3, label: person}]. For kind choice: the text of the right option, or its
    index, counted from 0."""
    train: str | None
    """Training data: a csv, tsv, jsonl, parquet, xlsx[#SHEET] or CoNLL file; sample:NAME; or
    hub:DATASET[/CONFIG][@REVISION]#SPLIT. Can be left out with `trained: false`."""
    dev: str
    """Data that is evaluated during training, to choose the best checkpoint."""
    test: str | None = None
    """Data that is evaluated once, after training."""
    rows: Count | RowSample | None = None
    """Train on a part of the training data: on its first rows, as in 10000, or on a random sample of them, as in
    {sample: 10000, seed: 0}. The class names are still those of the whole file. Default: all rows."""
    unlabelled: str | None = None
    """More training data with the same text columns, without labels: only the task's teachers (`teachers.TASK`) label
    it. Default: none."""
    trained: bool = True
    """false: the task has a head and is scored like the others, but no step has examples of it, and it has no part in
    the mean that chooses the best checkpoint. At least one task must be trained."""
    classes: tuple[str, ...] | None = None
    """Class names in order; for kind tokens, classes of spans or plain tags. Default: the labels of the training data
    (without it, of the dev data), sorted."""
    options: str | tuple[str, ...] | None = None
    """For kind choice: the column with a list of options, or a list of columns with one option each. Rows may have
    different numbers of options."""
    separator: str | None = None
    """For kind multilabel: what separates the classes of a row, as in billing|login. JSON lists need none. Default: the
    first of | ; , that the labels contain."""
    thresholds: Literal["tuned"] | Annotated[float, Bounds(0, 1, "()")] = "tuned"
    """For kind multilabel: the probability from which a class is predicted. tuned: after training, each class gets the
    threshold with its highest F1 on dev. A number: the same threshold for all classes."""
    range: tuple[float, float] | None = None
    """For kind score: the lowest and the highest score. Labels outside are errors, and predictions are never outside.
    Default: any number; scores are standardized by the training labels, and predictions are not limited."""
    metric: str | None = None
    """Primary metric, which chooses the best checkpoint. Default: accuracy; pearson for scores; f1_micro for
    multilabel; f1 of spans for tokens; mrr for match; perplexity for text. data.md lists the others."""
    metrics: tuple[str, ...] = ()
    """Your own functions as additional metrics, [mymodule:function]. mymodule.py can be in the recipe's folder. A name
    without a module is a metric that a plug-in registers."""
    abstain_below: Share | None = None
    """For classes, yes_no and choice: a prediction whose highest probability is lower has no label. For tokens: spans
    with a lower probability are left out. Default: always a label."""
    weight: Positive = 1.0
    """Factor of the task's loss, in addition to `train.loss_scale`."""
    standardize: bool = True
    """For kind score: whether the head learns (score - mean) / standard deviation of the training labels. Predictions
    are scores in the range. Cosine heads for scores have no weights to standardize."""
    head: MethodChoice | None = None
    """Default: linear for one text, cross for several, choice for options, tags for kind tokens, mlm for plain text."""
    windows: Windows | None = None
    """Read texts that are longer than `max_length` in overlapping windows, as in {stride: 64, pool: mean, most: 16}.
    Default: they are truncated. Kind tokens always reads them in windows (`head: {name: tags, stride: 64}`)."""
    loss: MethodChoice | None = None
    """Default: cross-entropy for classes and options, binary cross-entropy for yes_no and multilabel, squared error for
    scores."""
    broken_rows: Literal["stop", "skip"] = "stop"
    """stop: list all broken rows and train nothing. skip: ignore them; the report shows their number."""
    blank_labels: Literal["stop", "skip"] = "stop"
    """stop: a row with an empty label is a broken row. skip: leave it out; the report shows the number of such rows."""
    share_rows: str | None = None
    """Name of a group of tasks that are different label columns of the same rows: they name the same files and text
    columns. The encoder runs once for a batch of rows, each task learns from the rows that have its label, and empty
    labels are skipped. Default: the task has rows of its own."""
    format: Literal["csv", "tsv", "jsonl", "parquet", "xlsx", "conll"] | None = None
    """File format. Default: by the file's extension. csv and tsv differ only in the delimiter that is tried first.
    conll: one word per line, for kind tokens; `text` and `label` are then the columns' numbers, from 0, or names."""
    delimiter: str | None = None
    """comma, semicolon, tab, pipe, or any one character. Default: detected."""
    quoting: Literal["minimal", "none"] | None = None
    """Whether quotation marks around a field are removed (minimal) or belong to the text (none). Default: detected."""
    encoding: str | None = None
    """Encoding of csv, tsv and jsonl files. Default: detected (UTF-8, UTF-16 or Windows-1252)."""
    scheme: TagScheme | None = None
    """For kind tokens: bio (B-PER, I-PER, O), bioes (with E-PER and S-PER), or plain (each word has a tag of its own).
    Default: detected from the tags. Spans are read as bio."""
    tags: tuple[str, ...] = ()
    """Column with one part-of-speech tag for each word of the text, or a list with one column for each text. Words and
    tags are separated by spaces. Default: no tags."""

    @property
    def is_pair(self) -> bool:
        return len(self.text) == 2

    @property
    def has_options(self) -> bool:
        return self.options is not None

    @property
    def option_columns(self) -> tuple[str, ...]:
        """The columns with options: none, one with lists, or several."""
        return () if self.options is None else (self.options,) if isinstance(self.options, str) else self.options

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that a prediction needs: those of the texts and of the options."""
        return (*self.text, *self.option_columns)

    @property
    def skips_blanks(self) -> bool:
        """Whether rows with an empty label are left out."""
        return self.blank_labels == "skip" or self.share_rows is not None

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns with labels: none, one or several."""
        return () if self.label is None else (self.label,) if isinstance(self.label, str) else self.label


TaggerName = Literal["pattern", "nltk"]


@dataclass(frozen=True)
class WordTags:
    """Part-of-speech tags of all tasks' texts: the recipe's `word_tags` field."""

    tagger: TaggerName
    """pattern: TextBlob's tagger for English, whose files are in its package. nltk: NLTK's averaged perceptron for
    English, whose data NLTK downloads. Both need `pip install 'polytask[tags]'`."""


@dataclass(frozen=True)
class TrainSettings:
    """How to train: the recipe's `train` field."""

    epochs: Count = 3
    """Number of epochs, each of `steps_per_epoch` steps."""
    steps_per_epoch: Count | None = None
    """Steps per epoch. Default: as many as contain all tasks' training examples once."""
    batch_size: Size = 32
    """Examples per forward pass."""
    batch_tokens: Count | None = None
    """Tokens per forward pass, about: each task's batch size is this number divided by the mean number of tokens of its
    training examples, rounded. Default: `batch_size` examples, whatever their lengths."""
    accumulate: Size = 1
    """Number of forward passes whose gradients are accumulated for one step."""
    parts: Literal["all", "adapters", "heads"] = "all"
    """What is trained: all parameters, adapters and heads, or heads only. The rest is frozen."""
    norms: bool = False
    """Whether to train the layer norms of a frozen encoder."""
    frozen_dropout: bool = False
    """Whether a frozen encoder has dropout in training, as in peft and in the code of Houlsby et al. (2019). false: its
    features do not change, and `dropout` and `attention_dropout` have no effect on it."""
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
    loss_scale: Literal["even", "none"] = "even"
    """even: each task's loss is divided by the loss of a guess that ignores the text (log of the number of classes,
    variance of the scores), so that all tasks start at about 1. none: losses as they are."""
    ema: Annotated[float, Bounds(0, 1, "()")] | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. The average is evaluated and saved instead
    of the weights. Default: none."""
    average_best: Size = 1
    """The final weights are the mean of the weights at this many best evaluations."""
    calibrate: bool = True
    """Whether each task of kind classes, yes_no, multilabel, tokens or choice gets a temperature after training, which
    is fitted on dev and divides its outputs before probabilities are computed. Labels and scores do not change."""
    teacher_annealing: bool = True
    """Whether the weight of the teachers' outputs decreases linearly from 1 to 0 (Clark et al. 2019), while that of the
    labels increases from 0 to 1. false: it is always `teacher_weight`."""
    teacher_weight: Share = 0.5
    """With `teacher_annealing: false`, the weight of the teachers' outputs in a task's loss. The labels have the rest:
    0 is labels only, 1 is teachers only."""
    teacher_temperature: Positive = 1.0
    """Softmax temperature for the teachers' class probabilities."""
    precision: Literal["auto", "float32", "bf16"] = "float32"
    """bf16: mixed precision with float32 weights. auto: bf16 if the device supports it natively."""
    evaluate_every: Count | None = None
    """Steps between evaluations. Default: one epoch."""
    evaluate_train: Annotated[int, Bounds(0, 10**9)] = 0
    """Number of training rows of each trained task that evaluations score too, always the same ones: their scores show
    overfitting. 0: none."""
    save_every: Count | None = None
    """Steps between checkpoints. Default: one epoch."""
    keep: Annotated[int, Bounds(2, 10**9)] = 2
    """Number of recent checkpoints to keep during training, together with the best models they refer to. At least 2,
    so that a damaged checkpoint can be replaced by the one before it."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What to do if a loss or gradient is NaN or infinite. stop: stop before the weights change. skip: skip the step,
    up to 10 times in a row."""
    select: str = "mean"
    """Which evaluation has the best weights: by mean (of the trained tasks' primary metrics, without tasks of kind
    text), TASK or TASK.METRIC. last: the final weights."""
    patience: Count | None = None
    """Stop after this many evaluations without improvement. Default: never."""
    stop: Literal["all", "per_task"] = "all"
    """What stops when patience runs out. all: the run, by the number that `select` chooses by. per_task: each task by
    its own primary metric on dev; no more examples of it are drawn, and the run ends when all tasks have stopped."""
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
    max_drop: NonNegative | None = 1.0
    """For measured, and for the task of add-class: how many points (hundredths) the primary metric of old rows on dev
    may drop. If one drops more, no model is saved. null: any number."""
    distill: Share = 0.0
    """For measured: weight of the old model's outputs in the loss of remembered examples. 0: labels only. 1: outputs
    only."""
    run: str | None = None
    """The finished run. `polytask add-task` sets it."""
    task: str | None = None
    """The task that gets a new class. `polytask add-class` sets it."""
    new_class: str | None = None
    """The new class of that task. `polytask add-class` sets it."""
    rehearse: Annotated[int, Bounds(0, 10**9)] | None = None
    """For add-class: how many of the task's old training rows are trained on again, in a random sample. 0: none, so
    that the old training file is not needed. Default: all."""
