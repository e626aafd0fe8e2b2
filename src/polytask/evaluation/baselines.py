"""Baselines of a score: the model before training, and a simple method on the untrained encoder.

Knows models and splits, no files. The baseline of constant predictions is in tasks/describe.py.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polytask import seeds
from polytask.evaluation.own_metrics import primary_of
from polytask.evaluation.scoring import Predictions
from polytask.kinds.table import KINDS, kind_of
from polytask.model import MultiTaskModel
from polytask.modes import eval_mode
from polytask.settings import TaskSpec
from polytask.text.packing import InputFormat, Packer
from polytask.text.texts import texts_of
from polytask.types import EvalReport, LabelSpace, MetricValue, TaskScore, TokenizedExamples

Json = Mapping[str, Any]
NEIGHBOURS = 10
MOST_ROWS = 2000
"""Rows sampled of train and of dev, so that the baseline takes seconds for data of any size."""


def untrained_baseline(
    model: MultiTaskModel,
    spec: TaskSpec,
    labels: LabelSpace,
    splits: Mapping[str, TokenizedExamples],
    packer: Packer,
    bf16: bool = False,
) -> dict[str, Any]:
    """Scores a method that trains nothing on dev, by the task's primary metric.

    Scores of pairs in a range are predicted by the cosine of the two texts' mean vectors, by which pairs of kind match
    are ranked too; of several options, the one with the highest cosine with the text is predicted. Everything else is
    predicted by the labels of the nearest training rows, weighted by their cosine (of mean vectors; for pairs, of
    `[|u - v|; u * v]`; of more texts, of all their vectors).
    """
    dev, metric = splits["dev"], primary_of(spec)
    rows = _sample(len(dev), spec.name, "dev")
    dev_ND = _vectors(model, spec, dev, rows, packer, bf16)
    gold = dev.labels[rows]
    shares: NDArray[np.float64] | None = None
    if spec.kind == "match":
        predicted, what = dev_ND.numpy(), "the cosines of the untrained encoder"
    elif spec.kind == "score" and spec.is_pair and labels.bounded:
        u_ND, v_ND = dev_ND.unbind(1)
        predicted = (u_ND * v_ND).sum(1).clamp(0, 1).numpy()
        what = "the cosine of the two texts, untrained encoder"
    elif spec.kind == "choice":
        predicted, shares = _nearest_option(dev_ND, gold[:, 1])
        what = "the option nearest to the text, untrained encoder"
    else:
        train = splits["train"]
        train_rows = _sample(len(train), spec.name, "train")
        train_ND = _vectors(model, spec, train, train_rows, packer, bf16)
        predicted, shares = _vote(_joined(dev_ND), _joined(train_ND), train.labels[train_rows], labels)
        what = f"the {min(NEIGHBOURS, len(train_rows))} nearest of {len(train_rows):,} training rows, untrained encoder"
    if len(rows) < len(dev):
        what += f", on {len(rows):,} dev rows"
    predictions = Predictions(*KINDS[spec.kind].compared(gold, predicted, labels), shares)
    return {"metric": metric.name, "value": predictions.value(metric), "what": what}


def _sample(rows: int, task: str, split: str) -> NDArray[np.int64]:
    """Returns all rows, or a sample of them that does not depend on the run's seed."""
    if rows <= MOST_ROWS:
        return np.arange(rows)
    return np.sort(seeds.generator(0, "baseline", task, split).choice(rows, MOST_ROWS, replace=False))


@torch.inference_mode()
def _vectors(
    model: MultiTaskModel,
    spec: TaskSpec,
    split: TokenizedExamples,
    rows: NDArray[np.int64],
    packer: Packer,
    bf16: bool,
) -> Tensor:
    """Returns unit vectors [N, D], or [N, W, D] for several texts: the mean of the last hidden states of each text."""
    texts = texts_of(split, rows)
    width = texts.lengths_NW.shape[1]
    vectors, order = [], []
    with eval_mode(model):
        form = InputFormat("separate", windows=model.head(spec.name).windows)
        for batch in model.batches(spec.name, texts, packer, form):
            with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                hidden_TD = model.encode(batch.stream)
            encoded = model.encoded(spec.name, spec.name, hidden_TD, batch.stream)
            pooled = torch.nn.functional.normalize(encoded.pool("mean").float(), dim=-1)
            vectors.append(pooled.unflatten(0, (-1, width)) if width > 1 else pooled)
            order.append(batch.indices)
    return torch.cat(vectors).cpu()[torch.from_numpy(np.argsort(np.concatenate(order)))]


def _joined(vectors: Tensor) -> Tensor:
    if vectors.ndim == 2:
        return vectors
    if vectors.shape[1] > 2:
        return torch.nn.functional.normalize(vectors.flatten(1), dim=1)
    u_ND, v_ND = vectors.unbind(1)
    return torch.nn.functional.normalize(torch.cat([(u_ND - v_ND).abs(), u_ND * v_ND], dim=1), dim=1)


def _nearest_option(vectors_NWD: Tensor, counts_N: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Returns the options whose vectors are nearest to those of the texts, and the softmax of all cosines."""
    cosines_NM = torch.einsum("nd,nmd->nm", vectors_NWD[:, 0], vectors_NWD[:, 1:]).double()
    missing_NM = torch.arange(cosines_NM.shape[1]) >= torch.from_numpy(counts_N)[:, None]
    cosines_NM = cosines_NM.masked_fill(missing_NM, -torch.inf)
    return cosines_NM.argmax(1).numpy(), cosines_NM.softmax(1).numpy()


def _vote(
    dev_ND: Tensor, train_ND: Tensor, train_labels: NDArray[Any], labels: LabelSpace
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Returns predicted labels, and the probability of each class."""
    cosines, indices = (dev_ND @ train_ND.T).topk(min(NEIGHBOURS, len(train_ND)), dim=1)
    weights, near = cosines.clamp(min=1e-6).double().numpy(), train_labels[indices.numpy()]
    return kind_of(labels).vote(near, weights, labels)


def report_from(line: Json) -> EvalReport:
    """Returns the evaluation that a line of metrics.jsonl holds."""
    return EvalReport(
        line["step"],
        line["split"],
        _scores(line["tasks"]),
        line.get("baselines", {}),
        tuple(line.get("not_trained", ())),
        _scores(line.get("train", {})),
    )


def _scores(tasks: Mapping[str, Json]) -> dict[str, TaskScore]:
    return {
        task: TaskScore(**{**score, "metrics": {name: MetricValue(**m) for name, m in score["metrics"].items()}})
        for task, score in tasks.items()
    }
