"""Runs a model over whole splits: scores with intervals, and predictions on disk. Knows no file format but its own."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polytask.disk.atomic import atomic_file
from polytask.evaluation.metrics import score
from polytask.evaluation.own_metrics import own_metrics
from polytask.heads.base import Head, TextHead
from polytask.model import MultiTaskModel
from polytask.text.packing import Packer
from polytask.types import EvalReport, Example, LabelSpace, Prediction, TaskScore, TaskSpec, TokenizedExamples


def split_outputs(
    model: MultiTaskModel, splits: Mapping[str, TokenizedExamples], packer: Packer, bf16: bool = False
) -> dict[str, Tensor]:
    """Each task's outputs for every example of its split, in order."""
    return {
        task: model.answer(task, [examples.tokens(i) for i in range(len(examples))], packer, bf16=bf16)
        for task, examples in splits.items()
    }


def evaluate(
    model: MultiTaskModel,
    outputs: Mapping[str, Tensor],
    splits: Mapping[str, TokenizedExamples],
    specs: Mapping[str, TaskSpec],
    split: str,
    step: int,
) -> EvalReport:
    """Metrics over the whole split, never averaged over batches."""
    scores: dict[str, TaskScore] = {}
    for task, out in outputs.items():
        head = model.head(task)
        labels = splits[task].labels
        loss = head.loss(out, torch.from_numpy(np.ascontiguousarray(labels))).item()
        gold, said, shares = measured(out, head, labels)
        own = own_metrics(specs[task])
        scores[task] = score(gold, said, head.labels, loss, specs[task].metric, probabilities=shares, own=own)
    return EvalReport(step, split, scores)


def measured(outputs: Tensor, head: Head, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """What metrics take: true and predicted labels, scores in the task's own range, and probabilities."""
    if isinstance(head, TextHead):
        surprise, asked = head.surprise(outputs).double().numpy().T
        return asked, surprise, None
    said = decided(outputs, head.labels)
    if head.labels.kind == "score":
        gold, said = (head.labels.unscaled(values.astype(np.float64)) for values in (labels, said))
        return gold, said, None
    return labels.astype(np.int64), said, probabilities(outputs, head.labels)


def decided(outputs: Tensor, labels: LabelSpace) -> np.ndarray:
    """Outputs as labels: class indices, 0 and 1, or scores from 0 to 1."""
    match labels.kind:
        case "classes":
            return outputs.argmax(-1).numpy()
        case "yes_no":
            return (outputs > 0).numpy().astype(np.int64)
        case "score":
            return outputs.clamp(0, 1).numpy()
        case "text":
            raise NotImplementedError("plain text has nothing to decide")


def probabilities(outputs: Tensor, labels: LabelSpace) -> np.ndarray | None:
    """Of every class [N, C], no and yes included; None for scores and plain text."""
    if labels.kind == "classes":
        return outputs.double().softmax(-1).numpy()
    if labels.kind == "yes_no":
        return torch.stack((-outputs, outputs), -1).double().sigmoid().numpy()
    return None


def write_predictions(path: Path, examples: Iterable[Example], predictions: Iterable[Prediction]) -> None:
    """One JSON line for each example, in the order of the file it came from."""
    with atomic_file(path) as beside, beside.open("w", encoding="utf-8") as file:
        for example, prediction in zip(examples, predictions, strict=True):
            line = {"row": example.row, "text": example.texts, "label": example.label, "prediction": prediction.label}
            if prediction.probabilities is not None:
                line["probabilities"] = {name: round(p, 6) for name, p in prediction.probabilities.items()}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
