"""Runs a model over whole splits: scores with intervals, and predictions on disk. Knows no file format but its own."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polytask.evaluation.metrics import score
from polytask.heads.base import TextHead
from polytask.model import MultiTaskModel
from polytask.text.packing import Packer
from polytask.types import EvalReport, Example, LabelSpace, Prediction, TaskScore, TokenizedExamples
from polytask.whole import whole_file


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
    primary: Mapping[str, str | None],
    split: str,
    step: int,
) -> EvalReport:
    """Metrics over the whole split, never averaged over batches."""
    scores: dict[str, TaskScore] = {}
    for task, out in outputs.items():
        head = model.head(task)
        gold = splits[task].labels
        loss = head.loss(out, torch.from_numpy(np.ascontiguousarray(gold))).item()
        if isinstance(head, TextHead):
            said, gold = head.surprise(out).double().numpy().T
        else:
            said = decided(out, head.labels)
        scores[task] = score(gold, said, head.labels, loss, primary[task])
    return EvalReport(step, split, scores)


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


def write_predictions(path: Path, examples: Iterable[Example], predictions: Iterable[Prediction]) -> None:
    """One JSON line for each example, in the order of the file it came from."""
    with whole_file(path) as beside, beside.open("w", encoding="utf-8") as file:
        for example, prediction in zip(examples, predictions, strict=True):
            line = {"row": example.row, "text": example.texts, "label": example.label, "prediction": prediction.label}
            if prediction.probabilities is not None:
                line["probabilities"] = {name: round(p, 6) for name, p in prediction.probabilities.items()}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
