"""The tasks of a recipe as classes, for Python: the same fields as in a recipe file, with types and documentation."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal

from polytask.settings import RowSample
from polytask.types import LabelKind, TagScheme

Data = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | Any
"""A file as in a recipe, a pandas or Polars frame, a Hugging Face data set, a pyarrow table, or dicts. (Any: the types
of optional libraries cannot be named here.)"""
Method = str | Mapping[str, Any]
"""A method's name, or its name and options as in {"name": "focal", "gamma": 2.0}."""
DEV_FIELDS = ("dev_share", "dev_seed")
"""The fields that a recipe does not have: they say how rows are held out if there are no dev rows."""
LISTS = ("text", "label", "options", "tags", "metrics", "classes", "range")
"""The fields with several values."""
DATA_FIELDS = ("train", "dev", "test", "unlabelled")
"""The fields of a task that name a file, or hold data in memory."""


def is_in_memory(data: object) -> bool:
    """Whether a value holds rows, rather than naming a file or being absent."""
    return data is not None and not isinstance(data, str | os.PathLike | int | float)


def needs_files(task: object) -> bool:
    """Whether a task of a recipe's mapping is an object such as `Classes`, or has data in memory."""
    if isinstance(task, Mapping):
        return any(is_in_memory(task.get(name)) or isinstance(task.get(name), os.PathLike) for name in DATA_FIELDS)
    return isinstance(task, TaskFields)


@dataclass(frozen=True)
class TaskFields:
    """The fields that all kinds of tasks have. Data can be a file or in memory: see `Data`."""

    kind: ClassVar[LabelKind]

    train: Data
    """Training data."""
    text: str | Sequence[str]
    """Column with the text, or a list of columns with texts that belong together."""
    label: str | Sequence[str] | None
    """Column with the label; for `MultiLabel` also a list of columns of 0 and 1."""
    dev: Data = None
    """Data that is evaluated during training, to choose the best weights. Default: a share of the training data, which
    is then not trained on (see `dev_share`)."""
    test: Data = None
    """Data that is evaluated once, after training."""
    dev_share: float = field(default=0.2, kw_only=True)
    """Without `dev`: the share of the training rows that is held out, of each class the same. Rows with the
    same text stay together (rows with the same pair, if shared texts connect nearly all rows)."""
    dev_seed: int = field(default=0, kw_only=True)
    """Without `dev`: seed of the choice. It is not the run's seed, so that runs with several seeds use the same
    rows."""
    rows: int | RowSample | Mapping[str, int] | None = field(default=None, kw_only=True)
    """Train on the first rows, as in 10000, or on a random sample of them, as in {"sample": 10000, "seed": 0}."""
    unlabelled: Data = field(default=None, kw_only=True)
    """More training data without labels, which only the task's teachers label."""
    trained: bool = field(default=True, kw_only=True)
    """False: the task is scored like the others, but not trained."""
    metric: str | None = field(default=None, kw_only=True)
    """Primary metric, which chooses the best weights. Default: accuracy; pearson for scores; f1_micro for
    multilabel; f1 of spans for tokens; mrr for match."""
    metrics: Sequence[str] = field(default=(), kw_only=True)
    """Your own functions as additional metrics, as in ["mymodule:function"]."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor of the task's loss."""
    head: Method | None = field(default=None, kw_only=True)
    """Default: linear for one text, cross for several, tags for words, match for `Match`, choice for `Choice`."""
    loss: Method | None = field(default=None, kw_only=True)
    """Default: cross-entropy for classes and options, binary cross-entropy for yes_no and multilabel, squared error for
    scores."""
    windows: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Read texts that are longer than `max_length` in overlapping windows, as in {"stride": 64, "pool": "mean"}."""
    broken_rows: Literal["stop", "skip"] = field(default="stop", kw_only=True)
    """What to do with rows that cannot be used, such as those without a label: stop, or skip them."""
    blank_labels: Literal["stop", "skip"] = field(default="stop", kw_only=True)
    """What to do with rows whose label is empty (None, NaN or only spaces): stop, or skip them and no others."""
    share_rows: str | None = field(default=None, kw_only=True)
    """Name of a group of tasks that are different label columns of the same data: give them the same `train`, `text`
    and `dev`. The encoder runs once for a batch of rows, and each task learns from the rows that have its label."""
    format: Literal["csv", "tsv", "jsonl", "parquet", "xlsx", "conll"] | None = field(default=None, kw_only=True)
    """Format of the files. Default: by their extension."""
    delimiter: str | None = field(default=None, kw_only=True)
    """Delimiter of the files. Default: detected."""
    quoting: Literal["minimal", "none"] | None = field(default=None, kw_only=True)
    """Quoting of the files. Default: detected."""
    encoding: str | None = field(default=None, kw_only=True)
    """Encoding of the files. Default: detected."""
    tags: str | Sequence[str] = field(default=(), kw_only=True)
    """Column with one part-of-speech tag for each word of the text, or a list with one column for each text."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns the task as a mapping, as in a recipe file, with the fields that differ from their defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in DEV_FIELDS}
        defaults = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        own = {name: value for name, value in values.items() if name not in defaults or value is not defaults[name]}
        return {"kind": self.kind, **{name: _plain(name, value) for name, value in own.items()}}


@dataclass(frozen=True)
class Classes(TaskFields):
    """A task whose labels are two or more classes.

    polytask.Classes(frame, text="message", label="team", dev=frame2)
    """

    kind = "classes"
    classes: Sequence[str] | None = field(default=None, kw_only=True)
    """Class names in order. Default: the labels of the training data, sorted."""
    abstain_below: float | None = field(default=None, kw_only=True)
    """A prediction whose highest probability is lower has no label. Default: always a label."""


@dataclass(frozen=True)
class YesNo(TaskFields):
    """A task whose labels are yes or no: 1/0, true/false, yes/no or y/n.

    polytask.YesNo(frame, text=["question1", "question2"], label="duplicate")
    """

    kind = "yes_no"
    abstain_below: float | None = field(default=None, kw_only=True)
    """A prediction whose highest probability is lower has no label. Default: always a label."""


@dataclass(frozen=True)
class Score(TaskFields):
    """A task whose labels are numbers.

    polytask.Score(frame, text=["sentence1", "sentence2"], label="similarity", range=(0, 5))
    polytask.Score(frame, text="advert", label="price")
    """

    kind = "score"
    range: tuple[float, float] | None = field(default=None, kw_only=True)
    """Lowest and highest score. Default: any number can be predicted."""
    standardize: bool = field(default=True, kw_only=True)
    """Whether the head learns (score - mean) / standard deviation of the training labels."""


@dataclass(frozen=True)
class MultiLabel(TaskFields):
    """A task whose labels are any number of classes per row: lists, names with a separator, or columns of 0 and 1.

    polytask.MultiLabel(frame, text="message", label="topics")
    polytask.MultiLabel(frame, text="message", label=["billing", "refund", "delivery"])
    """

    kind = "multilabel"
    classes: Sequence[str] | None = field(default=None, kw_only=True)
    """Class names in order. Default: the labels of the training data, sorted; or the names of the label columns."""
    separator: str | None = field(default=None, kw_only=True)
    """What separates the classes in a column of text. Default: the first of | ; , that the labels contain."""
    thresholds: Literal["tuned"] | float = field(default="tuned", kw_only=True)
    """The probability from which a class is predicted: the same for all classes, or chosen for each class on dev."""


@dataclass(frozen=True)
class Choice(TaskFields):
    """A task whose label is one of the options of the row: its text, the name of its column, or its index, counted from
    0.

    polytask.Choice(frame, text="question", options="answers", label="right")
    polytask.Choice(frame, text="question", options=["a", "b", "c", "d"], label="right")
    """

    kind = "choice"
    options: str | Sequence[str] = field(kw_only=True)
    """Column with a list of options, or a list of columns with one option each."""
    abstain_below: float | None = field(default=None, kw_only=True)
    """A prediction whose highest probability is lower has no label. Default: always a label."""


@dataclass(frozen=True)
class Match(TaskFields):
    """A task whose rows are two texts that belong together, without a label.

    polytask.Match(frame, text=["question", "answer"])
    """

    kind = "match"
    label: None = field(default=None, init=False)


@dataclass(frozen=True)
class Tokens(TaskFields):
    """A task whose labels are tags of words or spans of texts, such as entities or parts of speech.

    polytask.Tokens(rows, text="words", label="tags")    lists of words, and of as many tags
    polytask.Tokens(rows, text="text", label="spans")    texts, and lists of {"start": 0, "end": 3, "label": "person"}
    """

    kind = "tokens"
    classes: Sequence[str] | None = field(default=None, kw_only=True)
    """Classes of spans, or plain tags, in order. Default: those of the training data, sorted."""
    scheme: TagScheme | None = field(default=None, kw_only=True)
    """How tags mark spans: bio, bioes or plain. Default: detected from the tags."""
    abstain_below: float | None = field(default=None, kw_only=True)
    """Spans with a lower probability are left out. Default: none."""


def _plain(name: str, value: Any) -> Any:
    """A field's value as a recipe file has it; lists may be given as any sequence, such as an array of classes."""
    if isinstance(value, RowSample):
        return {"sample": value.sample, "seed": value.seed}
    if name in LISTS and value is not None and not isinstance(value, str):
        return value.tolist() if hasattr(value, "tolist") else list(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value
