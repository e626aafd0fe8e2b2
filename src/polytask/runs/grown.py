"""A task with a new class before and after: its old rows, and every class's precision and recall."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.evaluation.evaluate import predictions_of, score_outputs, split_outputs
from polytask.evaluation.forgetting import OldTask, before_and_after
from polytask.evaluation.label_sets import margins_of_sets
from polytask.evaluation.metrics import margins, per_class
from polytask.heads.base import Head
from polytask.runs.joining import OldRun
from polytask.runs.new_class import rows_without_class
from polytask.runs.prepare import Prepared
from polytask.types import EvalReport, LabelSpace

NEVER = -1e4
"""The output of the old model for the new class, whose probability is then 0."""


class GrownTask:
    """The outputs of the old and of the new model for a split, in a form in which they can be compared.

    One class per row: the rows without the new class are compared, with all classes, so that an old row that is taken
    for the new class counts as wrong. Several classes per row: all rows are compared, by their old classes.
    """

    def __init__(self, old: OldRun, prepared: Prepared, split: str, outputs: Tensor) -> None:
        assert prepared.grown is not None
        self.task, self.spec = prepared.grown, prepared.recipe.tasks[prepared.grown]
        self.data, self.outputs = prepared.tasks[self.task].splits[split], outputs
        self.head = prepared.model.head(self.task)
        model = old.bundle.model.to(prepared.model.device)
        answers = split_outputs(model, {self.task: self.data}, old.bundle.packer, prepared.bf16)[self.task]
        model.cpu()
        before, space = model.head(self.task), self.head.labels
        self.labels: npt.NDArray[Any]
        if space.kind == "classes":
            rows = rows_without_class(self.data.labels, space)
            self.labels = self.data.labels[rows]
            self.before_head = _with_space(before, replace(before.labels, classes=space.classes))
            self.before = torch.cat([answers, torch.full((len(answers), 1), NEVER)], 1)[rows]
            self.after_head, self.after = self.head, outputs[rows]
        else:
            known = len(before.labels.classes)
            self.labels = np.ascontiguousarray(self.data.labels[:, :known])
            self.before_head, self.before, self.after = before, answers, outputs[:, :known]
            self.after_head = _with_space(self.head, replace(before.labels, thresholds=space.thresholds[:known]))

    def compare(self) -> OldTask | None:
        """The primary metric before and after; None if the split has no row to compare."""
        if not len(self.labels):
            return None
        before, after = (
            (EvalReport(0, "", {self.task: score_outputs(head, outputs, self.labels, self.spec)}), {self.task: outputs})
            for head, outputs in ((self.before_head, self.before), (self.after_head, self.after))
        )
        heads, labels = {self.task: self.before_head}, {self.task: self.labels}
        specs, new_heads = {self.task: self.spec}, {self.task: self.after_head}
        return before_and_after(heads, labels, before, after, specs, new_heads)[self.task]

    def classes(self) -> dict[str, dict[str, Any]]:
        """By class: precision, recall, F1 and support before and after, on the rows that are compared.

        The new class has no numbers before; those after are on all rows of the split.
        """
        before = _by_class(self.before_head, self.before, self.labels)
        after = _by_class(self.after_head, self.after, self.labels)
        *known, new = self.head.labels.classes
        whole = _by_class(self.head, self.outputs, self.data.labels)
        return {
            **{name: {"before": before[name], "after": after[name]} for name in known},
            new: {"before": None, "after": whole[new]},
        }


def _with_space(head: Head, labels: LabelSpace) -> Head:
    """The head with another label space; its weights are shared."""
    other = copy.copy(head)
    other.labels = labels
    return other


def _by_class(head: Head, outputs: Tensor, labels: npt.NDArray[Any]) -> Mapping[str, dict[str, float]]:
    found, names = predictions_of(outputs, head, labels), head.labels.classes
    several = found.gold.ndim == 2
    counts = (
        margins_of_sets(found.gold, found.predicted) if several else margins(found.gold, found.predicted, len(names))
    )
    columns = per_class(counts)
    return {name: {key: float(values[i]) for key, values in columns.items()} for i, name in enumerate(names)}
