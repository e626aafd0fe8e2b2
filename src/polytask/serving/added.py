"""The columns that a task's predictions add to a file: names, types and rounding."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from polytask.kinds.table import KINDS
from polytask.types import LabelSpace, Prediction, UserError, unknown

if TYPE_CHECKING:
    from polytask.serving.predictor import Predictor

SPAN = pa.struct(
    {"start": pa.int64(), "end": pa.int64(), "label": pa.string(), "text": pa.string(), "probability": pa.float64()}
)
PROBABILITIES = ("top", "all", "none")
PROBABILITY_DIGITS = 6  # significant digits, so that small probabilities do not become 0
SCORE_DIGITS = 5  # relative to the task's range: 4 decimals for scores from 0 to 5, 2 for scores from 0 to 100


@dataclass(frozen=True)
class AddedColumns:
    """The columns of one task: predicted_TASK, probability_TASK and, with "all", probability_TASK_CLASS per class.

    With several classes per row, predicted_TASK and probability_TASK have one item for each predicted class: in a list
    where the file's format has lists, else joined by the separator of the training data.

    With tags of words, predicted_TASK has the spans (start, end, label, text and probability), and words_TASK and
    tags_TASK the words and their tags: as lists, or as JSON where the format has no lists.
    For kind choice, predicted_TASK is the text of the chosen option and index_TASK its index; with "all",
    probabilities_TASK has those of all options in their order, as a list, or as JSON where there are no lists.

    They are followed by tokens_TASK and truncated_TASK, except with "none", by windows_TASK if the task has windows,
    and by abstained_TASK if the model may abstain.
    """

    task: str
    labels: LabelSpace
    probabilities: str
    lists: bool = False
    """Whether the file's format has lists."""
    abstains: bool = False
    """Whether predictions may have no label, or fewer spans, because probabilities are too low."""
    windows: bool = False
    """Whether long texts are read in windows."""

    def __post_init__(self) -> None:
        if self.probabilities not in PROBABILITIES:
            raise UserError(unknown("predict", self.probabilities, PROBABILITIES, "choice of probabilities"))

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        is_number = self.labels.kind in ("score", "match")
        label, probability = pa.float64() if is_number else pa.string(), pa.float64()
        if self.labels.kind == "multilabel":
            label, probability = (pa.list_(label), pa.list_(probability)) if self.lists else (label, pa.string())
        types = {f"predicted_{self.task}": label}
        if self.labels.kind == "choice":
            types[f"index_{self.task}"] = pa.int64()
        if self.labels.kind == "tokens":
            spans, names = (pa.list_(SPAN), pa.list_(label)) if self.lists else (label, label)
            types = {f"predicted_{self.task}": spans, f"words_{self.task}": names, f"tags_{self.task}": names}
        elif not is_number and self.probabilities != "none":
            types[f"probability_{self.task}"] = probability
            if self.probabilities == "all" and self.labels.kind == "choice":
                types[f"probabilities_{self.task}"] = pa.list_(pa.float64()) if self.lists else pa.string()
            elif self.probabilities == "all":
                types |= {self._class_column(name): pa.float64() for name in self.labels.classes}
        if self.probabilities != "none":
            types |= {f"tokens_{self.task}": pa.int64(), f"truncated_{self.task}": pa.bool_()}
            types |= {f"windows_{self.task}": pa.int64()} if self.windows else {}
        return types | ({f"abstained_{self.task}": pa.bool_()} if self.abstains else {})

    def values(self, prediction: Prediction) -> dict[str, Any]:
        """The prediction's values by column; all None if there is no prediction."""
        label, values = prediction.label, dict[str, Any](dict.fromkeys(self.types))
        if label is None and not prediction.abstained:
            return values
        if self.probabilities != "none":
            values |= {f"tokens_{self.task}": prediction.tokens, f"truncated_{self.task}": prediction.truncated}
            values |= {f"windows_{self.task}": prediction.windows} if self.windows else {}
        if self.abstains:
            values[f"abstained_{self.task}"] = prediction.abstained
        if prediction.spans is not None:
            return values | self._words(prediction)
        values[f"predicted_{self.task}"] = round(label, self._decimals) if isinstance(label, float) else label
        if isinstance(label, tuple):
            values[f"predicted_{self.task}"] = self._items(label)
        if self.labels.kind == "choice":
            values[f"index_{self.task}"] = prediction.index
        if prediction.probabilities is not None and self.probabilities != "none":
            known = prediction.probabilities
            if isinstance(label, tuple):
                values[f"probability_{self.task}"] = self._items([_rounded(known[name]) for name in label])
            else:
                highest = max(known.values()) if label is None else known[str(label)]
                values[f"probability_{self.task}"] = _rounded(highest)
            if self.probabilities == "all" and self.labels.kind == "choice":
                shares = [_rounded(share) for share in known.values()]
                values[f"probabilities_{self.task}"] = shares if self.lists else json.dumps(shares)
            elif self.probabilities == "all":
                values |= {self._class_column(name): _rounded(p) for name, p in prediction.probabilities.items()}
        return values

    def _words(self, prediction: Prediction) -> dict[str, Any]:
        assert prediction.spans is not None
        assert isinstance(prediction.label, tuple)
        spans = [asdict(span) | {"probability": _rounded(span.probability)} for span in prediction.spans]
        if self.probabilities == "none":
            spans = [{key: value for key, value in span.items() if key != "probability"} for span in spans]
        names = {"predicted": spans, "words": list(prediction.word_texts or ()), "tags": list(prediction.label)}
        return {f"{name}_{self.task}": values for name, values in names.items()}

    def _items(self, items: Sequence[str | float]) -> list[str | float] | str:
        return list(items) if self.lists else self.labels.separator.join(map(str, items))

    def _class_column(self, name: str) -> str:
        return f"probability_{self.task}_{name}"

    @cached_property
    def _decimals(self) -> int:
        span = self.labels.high - self.labels.low
        return max(0, SCORE_DIGITS - 1 - math.floor(math.log10(span)))


def _rounded(probability: float) -> float:
    return float(f"{probability:.{PROBABILITY_DIGITS}g}")


def added_columns(predictor: "Predictor", task: str, probabilities: str, lists: bool) -> AddedColumns:
    """The columns of a task of a model."""
    labels, spec = predictor.bundle.labels[task], predictor.spec(task)
    abstains = KINDS[labels.kind].has_confidence and (spec.abstain_below, predictor.abstain_below) != (None, None)
    return AddedColumns(task, labels, probabilities, lists, abstains, spec.windows is not None)


def check_names(source: str, columns: Iterable[str], added: Mapping[str, AddedColumns]) -> None:
    """Raises a UserError if two columns of the output would have the same name."""
    taken = dict.fromkeys(columns, "the input's")
    for task, columns_of_task in added.items():
        for name in columns_of_task.types:
            if name not in taken:
                taken[name] = f"task {task}'s"
            elif taken[name] == "the input's":
                raise UserError(
                    f"{source}: has a column {name!r}, which the predictions of task {task} would overwrite; rename or "
                    "remove that column, or predict the file without it"
                )
            else:
                raise UserError(
                    f"predict: {taken[name]} column and task {task}'s would both be called {name!r}; predict these "
                    "tasks separately, into two files"
                )
