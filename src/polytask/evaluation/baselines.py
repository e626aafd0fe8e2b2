"""Baselines of a score: the model before training, and a simple method on the untrained encoder.

Knows models and splits, no files. The baseline of constant predictions is in tasks/describe.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polytask import seeds
from polytask.evaluation.own_metrics import primary_of
from polytask.evaluation.scoring import Predictions
from polytask.model import MultiTaskModel
from polytask.stream import Encoded
from polytask.text.packing import Packer, Part, batches_by_length
from polytask.types import EvalReport, LabelSpace, MetricValue, TaskScore, TaskSpec, TokenizedExamples

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

    Scores of pairs are predicted by the cosine of the two texts' mean vectors. Everything else is predicted by the
    labels of the nearest training rows, weighted by their cosine (of mean vectors; for pairs, of `[|u - v|; u * v]`).
    """
    dev, metric = splits["dev"], primary_of(spec)
    rows = _sample(len(dev), spec.name, "dev")
    dev_ND = _vectors(model, spec, dev, rows, packer, bf16)
    gold = dev.labels[rows]
    if spec.kind == "score" and spec.is_pair:
        u_ND, v_ND = dev_ND.unbind(1)
        predicted, shares = (u_ND * v_ND).sum(1).clamp(0, 1).numpy(), None
        what = "the cosine of the two texts, untrained encoder"
    else:
        train = splits["train"]
        train_rows = _sample(len(train), spec.name, "train")
        train_ND = _vectors(model, spec, train, train_rows, packer, bf16)
        predicted, shares = _vote(_joined(dev_ND), _joined(train_ND), train.labels[train_rows], labels)
        what = f"the {min(NEIGHBOURS, len(train_rows))} nearest of {len(train_rows):,} training rows, untrained encoder"
    if len(rows) < len(dev):
        what += f", on {len(rows):,} dev rows"
    if labels.kind == "score":
        predictions = Predictions(*(labels.unscaled(values.astype(np.float64)) for values in (gold, predicted)))
    else:
        predictions = Predictions(gold.astype(np.int64), predicted, shares)
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
    """Returns unit vectors [N, D], or [N, 2, D] for pairs: the mean of the encoder's last hidden states per text."""
    texts = [split.tokens(int(row)) for row in rows]
    lengths = [packer.length(tuple(map(len, ids)), spec.is_pair) for ids in texts]
    vectors, order = [], []
    was_training = model.training
    model.eval()
    try:
        for batch in batches_by_length(lengths, 8192):
            stream = packer.pack([Part(spec.name, [texts[i] for i in batch], spec.is_pair)]).to(model.device)
            with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                hidden_TD = model.encoder.encode(stream, model.adapter)
            encoded = Encoded(hidden_TD, stream.layout, model.tasks.index(spec.name), model.encoder.pool)
            pooled = torch.nn.functional.normalize(encoded.pool("mean").float(), dim=-1).cpu()
            vectors.append(pooled.unflatten(0, (-1, 2)) if spec.is_pair else pooled)
            order += batch
    finally:
        model.train(was_training)
    return torch.cat(vectors)[torch.from_numpy(np.argsort(order))]


def _joined(vectors: Tensor) -> Tensor:
    if vectors.ndim == 2:
        return vectors
    u_ND, v_ND = vectors.unbind(1)
    return torch.nn.functional.normalize(torch.cat([(u_ND - v_ND).abs(), u_ND * v_ND], dim=1), dim=1)


def _vote(
    dev_ND: Tensor, train_ND: Tensor, train_labels: NDArray[Any], labels: LabelSpace
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Returns predicted labels, and each class's share of the neighbours' weight plus one vote spread over all."""
    cosines, indices = (dev_ND @ train_ND.T).topk(min(NEIGHBOURS, len(train_ND)), dim=1)
    weights, near = cosines.clamp(min=1e-6).double().numpy(), train_labels[indices.numpy()]
    if labels.kind == "score":
        return (weights * near).sum(1) / weights.sum(1), None
    votes = np.zeros((len(dev_ND), len(labels.classes)))
    np.add.at(votes, (np.arange(len(votes))[:, None], near.astype(np.int64)), weights)
    shares = (votes + 1 / votes.shape[1]) / (votes.sum(1, keepdims=True) + 1)
    return shares.argmax(1), shares


# --- in words ---------------------------------------------------------------------------------------------------------


def against(metric: Json, reference: float, greater_is_better: bool) -> str:
    """Returns `better` or `worse` where the whole interval lies on one side of the reference."""
    above, below = metric["low"] > reference, metric["high"] < reference
    if above or below:
        return "better" if above == greater_is_better else "worse"
    return "no clear difference"


def report_from(line: Json) -> EvalReport:
    """Returns the evaluation that a line of metrics.jsonl holds."""
    tasks = {
        task: TaskScore(**{**score, "metrics": {name: MetricValue(**m) for name, m in score["metrics"].items()}})
        for task, score in line["tasks"].items()
    }
    return EvalReport(line["step"], line["split"], tasks, line.get("baselines", {}))


def remarks(trained: EvalReport, start: EvalReport, select: str) -> list[str]:
    """Says in sentences what training did not improve; none where every task is clearly better than at the start."""
    sentences = []
    # A run that adds tasks with `guarantee: frozen` scores only the new ones at the start.
    common = replace(trained, tasks={task: score for task, score in trained if task in start.tasks})
    if select != "last" and start.chosen(select) > common.chosen(select):
        by = "the mean of the tasks" if select == "mean" else select
        sentences.append(
            f"The model at step 0 scored better on dev, by {by}, than the best checkpoint (step {trained.step}): "
            f"{abs(start.chosen(select)):.3f} before training, {abs(common.chosen(select)):.3f} after."
        )
    for task, score in trained:
        value, name = score.metrics[score.primary], score.primary
        references = {}
        if task in start.tasks and name in start.tasks[task].metrics:
            references["the model at step 0"] = start.tasks[task].metrics[name].value
        if (simple := start.baselines.get(task)) and simple["metric"] == name:
            references[simple["what"]] = simple["value"]
        kinds = (("worse", "worse", " and than "), ("no clear difference", "not clearly better", " or than "))
        for verdict, words, joint in kinds:
            named = [
                f"{what} ({reference:.3f})"
                for what, reference in references.items()
                if against(vars(value), reference, score.greater_is_better) == verdict
            ]
            if named:
                sentences.append(f"{task}: {name} {value} is {words} than {joint.join(named)}.")
    return sentences
