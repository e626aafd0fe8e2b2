"""Runs a model over whole splits: scores with intervals, and a file of predictions."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import starmap
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polytask.disk.atomic import atomic_file
from polytask.evaluation.own_metrics import own_metrics
from polytask.evaluation.packed_splits import PackedSplits
from polytask.evaluation.scoring import Predictions, score
from polytask.heads.base import Head, TextHead
from polytask.kinds.tokens import located
from polytask.model import MultiTaskModel, concatenated
from polytask.processes import ALONE, Processes
from polytask.settings import TaskSpec
from polytask.text.packing import PackedBatch, Packer
from polytask.types import EvalReport, Example, Prediction, SharedExamples, TagScheme, TaskScore, TokenizedExamples


def split_outputs(
    model: MultiTaskModel,
    splits: Mapping[str, TokenizedExamples],
    packer: Packer,
    bf16: bool = False,
    packed: PackedSplits | None = None,
    shared: Iterable[SharedExamples] = (),
    processes: Processes = ALONE,
) -> dict[str, Tensor]:
    """Returns each task's outputs for every example of its split, in order. `packed` keeps what was packed before.

    Examples that several of the tasks share are encoded once, if the tasks can share a pass of the encoder. Several
    processes compute the same batches as one, each some of them, and every process returns all outputs.
    """
    packed = PackedSplits(max_tokens=0) if packed is None else packed
    outputs: dict[str, Tensor] = {}
    for examples in shared:
        for tasks in model.passes(examples.tasks):
            if len(tasks) > 1 and splits.keys() >= set(tasks):
                budget = _token_budget(model, tasks[0], processes)
                batches = packed.batches(model, tasks[0], examples, packer, budget)
                answers = _answers(model, tasks, batches, bf16, processes)
                outputs |= {task: answers[task][torch.from_numpy(examples.places(task))] for task in tasks}
    for task, own in splits.items():
        if task not in outputs:
            batches = packed.batches(model, task, own, packer, _token_budget(model, task, processes))
            outputs |= _answers(model, [task], batches, bf16, processes)
    return {task: outputs[task] for task in splits}


def _token_budget(model: MultiTaskModel, task: str, processes: Processes) -> int:
    """The tokens of a batch: those of the first process, because they depend on the memory of its GPU."""
    own = model.token_budget(task)
    return int(processes.text_from_main(str(own) if processes.is_main else None)) if processes.several else own


def _answers(
    model: MultiTaskModel, tasks: Sequence[str], batches: Iterable[PackedBatch], bf16: bool, processes: Processes
) -> dict[str, Tensor]:
    """Returns `model.answer_batches`; of several processes, each computes some of the batches."""
    if not processes.several:
        return model.answer_batches(tasks, batches, bf16)
    if model.input_format(tasks[0]).stride is not None:  # the windows of a text may be in different batches
        all_outputs = model.answer_batches(tasks, batches, bf16)
        return processes.from_main(all_outputs if processes.is_main else None)
    indices: list[list[int]] = [[] for _ in range(processes.count)]
    """By rank: the examples of the batches that the process computes."""

    def own_batches() -> Iterator[PackedBatch]:
        for number, batch in enumerate(batches):
            rank = number % processes.count
            indices[rank] += batch.indices.tolist()
            if rank == processes.rank:
                yield batch

    gathered = processes.gather(model.answer_batches(tasks, own_batches(), bf16))
    if not any(indices):
        return gathered[0]
    computed = [(sorted(own), answers) for own, answers in zip(indices, gathered, strict=True) if own]
    inverse = torch.from_numpy(np.argsort([index for own, _ in computed for index in own]))
    return {task: concatenated([answers[task] for _, answers in computed])[inverse] for task in tasks}


def evaluate(
    model: MultiTaskModel,
    outputs: Mapping[str, Tensor],
    splits: Mapping[str, TokenizedExamples],
    specs: Mapping[str, TaskSpec],
    split: str,
    step: int,
) -> EvalReport:
    """Scores outputs over the whole split; metrics are never averaged over batches."""
    scores = {
        task: score_outputs(model.head(task), out, splits[task].labels, specs[task]) for task, out in outputs.items()
    }
    return EvalReport(step, split, scores)


def score_outputs(head: Head, outputs: Tensor, labels: np.ndarray, spec: TaskSpec) -> TaskScore:
    """Scores the outputs of one head for all rows of a split."""
    loss = head.loss(outputs, torch.from_numpy(np.ascontiguousarray(labels))).item()
    return score(predictions_of(outputs, head, labels), head.labels, loss, spec.metric, own_metrics(spec))


def predictions_of(outputs: Tensor, head: Head, labels: np.ndarray) -> Predictions:
    """Turns a head's outputs and the stored labels into what metrics take, with scores in the task's own range."""
    if isinstance(head, TextHead):
        log_losses, num_masked = head.surprise(outputs).double().numpy().T
        return Predictions(num_masked, log_losses)
    kind, space = head.kind, head.labels
    gold, predicted = kind.compared(labels, kind.predicted(outputs, space), space)
    return Predictions(gold, predicted, kind.probabilities(outputs, space))


def write_predictions(path: Path, examples: Iterable[Example], predictions: Iterable[Prediction]) -> None:
    """Writes one JSON line for each example, in the order of the data file."""
    with atomic_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.writelines(starmap(_prediction_line, zip(examples, predictions, strict=True)))


def with_places(
    examples: Iterable[Example], predictions: Iterable[Prediction], scheme: TagScheme
) -> Iterator[Prediction]:
    """Yields the predictions of tags with the places of their words and spans in the texts."""
    for example, prediction in zip(examples, predictions, strict=True):
        yield located(prediction, example.texts[0], example.words or (), scheme)


def _prediction_line(example: Example, prediction: Prediction) -> str:
    """The JSON object with the row and its prediction, as json.dumps writes it, but faster.

    The text of a row with options is followed by the options, and there are the indices of the true and the predicted
    option too.
    """
    options = ""
    if prediction.index is not None:
        prediction = prediction.with_options(example.texts[1:])
        own = None if example.label is None else example.texts.index(str(example.label), 1) - 1
        options = f', "label_index": {_to_json(own)}, "index": {prediction.index}'
    texts = ", ".join([_to_json(text) for text in example.texts])
    line = f'{{"row": {example.row}, "text": [{texts}], "label": {_to_json(example.label)}, '
    measured = options
    if prediction.tokens is not None:
        measured += f', "tokens": {prediction.tokens}, "truncated": {_to_json(prediction.truncated)}'
    if prediction.windows > 1:
        measured += f', "windows": {prediction.windows}'
    if prediction.abstained:
        measured += ', "abstained": true'
    if prediction.rank is not None:
        measured += f', "rank": {prediction.rank}'
    if prediction.spans is not None:
        spans = [asdict(span) | {"probability": round(span.probability, 6)} for span in prediction.spans]
        words = f'"words": {_to_json(prediction.words)}, "spans": {_to_json(spans)}'
        return f'{line}"prediction": {_to_json(prediction.label)}, {words}{measured}}}\n'
    if prediction.probabilities is None:
        return f'{line}"prediction": {_to_json(prediction.label)}{measured}}}\n'
    shares = ", ".join([f"{_class_to_json(name)}: {_rounded(p)}" for name, p in prediction.probabilities.items()])
    return f'{line}"prediction": {_to_json(prediction.label)}, "probabilities": {{{shares}}}{measured}}}\n'


_to_json = json.JSONEncoder(ensure_ascii=False).encode
_class_to_json = lru_cache(_to_json)


def _rounded(probability: float) -> str:
    return repr(round(probability, 6)) if math.isfinite(probability) else _to_json(probability)
