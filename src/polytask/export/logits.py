"""A head's linear layer as other libraries read it: one logit for each class, or the score itself."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from polytask.runs.bundle import Bundle


@dataclass(frozen=True)
class Logits:
    """A linear layer, what its outputs are called, and what it leaves out."""

    weight: Tensor
    bias: Tensor
    names: tuple[str, ...]
    problem: str | None
    """The `problem_type` of transformers; None for tags of words and options."""
    notes: tuple[str, ...] = ()

    def config(self) -> dict[str, Any]:
        """The entries of a config.json."""
        names = {str(i): name for i, name in enumerate(self.names)}
        content: dict[str, Any] = {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
        return content if self.problem is None else {**content, "problem_type": self.problem}


@torch.no_grad()
def logits_of(bundle: Bundle, task: str) -> Logits:
    """The linear layer of a task's head, with its temperature and the scale of its scores merged into the weights.

    The softmax of the logits are then the run's probabilities, and the output for scores is the score.
    """
    head, labels = bundle.model.head(task), bundle.labels[task]
    layer = getattr(head, "output")  # noqa: B009  (of heads with one linear layer)
    assert isinstance(layer, nn.Linear)
    temperature = bundle.temperatures.get(task, 1.0)
    weight, bias = layer.weight.double().cpu() / temperature, layer.bias.double().cpu() / temperature
    names, problem, notes = labels.classes, "single_label_classification", []
    if labels.kind == "yes_no":  # the logit of yes, next to a logit of no that is always 0
        weight, bias = (torch.cat([torch.zeros_like(part), part]) for part in (weight, bias))
    elif labels.kind == "score":
        scaled = (
            labels.unscaled
            if labels.standardized_by is None
            else lambda z: labels.unscaled(labels.from_standardized(z))
        )
        start = scaled(0.0)
        slope = scaled(1.0) - start
        weight, bias = weight * slope, bias * slope + start
        names, problem = ("score",), "regression"
        if labels.bounded:
            notes.append(f"Scores can be outside [{labels.low:g}, {labels.high:g}], to which polytask clips them.")
    elif labels.kind == "multilabel":
        problem = "multi_label_classification"
        if any(threshold != 0.5 for threshold in labels.thresholds):
            shown = ", ".join(f"{n} {t:.3g}" for n, t in zip(names, labels.thresholds, strict=True))
            notes.append(f"polytask predicts a class from these probabilities on, not from 0.5: {shown}.")
    elif labels.kind == "choice":
        names = ("option",)
        notes.append("The softmax over the options of a text gives their probabilities.")
    elif labels.kind == "tokens":
        notes.append("The tag of a word is that of its first token.")
        if labels.scheme != "plain":
            notes.append(f"polytask repairs tags that break the scheme {labels.scheme}.")
    problem_type = None if labels.kind in ("tokens", "choice") else problem
    return Logits(weight.float(), bias.float(), names, problem_type, tuple(notes))
