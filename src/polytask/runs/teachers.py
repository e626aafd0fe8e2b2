"""Teachers: trained models whose outputs for a task's training examples the task learns from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from polytask.disk.hashing import remembered_sha256
from polytask.kinds.table import KINDS
from polytask.model import concatenated
from polytask.recipe.records import Recipe, teacher_runs
from polytask.runs.bundle import Bundle, load_run
from polytask.runs.folder import find_model
from polytask.runs.prepare import Prepared
from polytask.tasks.training_rows import training_rows
from polytask.text.options import widened
from polytask.text.words import WordText
from polytask.training.memory import Memory
from polytask.types import Example, LabelKind, LabelSpace, UserError, unknown

WINDOW = 4096
"""Texts that are tokenized at once."""


@dataclass(frozen=True)
class Teacher:
    """A model that knows a task, or several of them."""

    bundles: tuple[Bundle, ...]
    """The mean of their predictions is learned. They may have different encoders, heads and tokenizers."""
    weight: float | None = None
    """The constant weight of their outputs in the task's loss; None: that of the recipe's `train` settings."""
    only_memory: bool = False
    """Only the outputs for remembered examples are needed, because steps have no others of the task."""


def load_teachers(prepared: Prepared) -> dict[str, Teacher]:
    """The teacher of each task for which the recipe names one or more runs."""
    bundles: dict[str, tuple[Bundle, ...]] = {}
    for field, task, run in teacher_runs(prepared.recipe):
        bundles[task] = (*bundles.get(task, ()), _load(prepared, task, run, f"recipe: {field}"))
    return {task: Teacher(known) for task, known in bundles.items()}


def _load(prepared: Prepared, name: str, run: str, where: str) -> Bundle:
    task = prepared.tasks[name]
    try:
        bundle = load_run(Path(run))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if name not in bundle.specs:
        raise UserError(unknown(where, name, bundle.specs, "task", f" in {run}"))
    if not KINDS[task.spec.kind].has_labels:
        raise UserError(f"{where}: task {name} is of kind {task.spec.kind}, which has no labels to learn from")
    if _outputs_of(bundle.labels[name]) != _outputs_of(task.labels):
        raise UserError(f"{where}: {run} has other labels for {name} than this recipe")
    if len(bundle.specs[name].text) != len(task.spec.text):
        raise UserError(f"{where}: {run} has another number of texts for {name} than this recipe")
    if bundle.specs[name].tags:
        raise UserError(f"{where}: {run} reads word tags from columns, which a teacher cannot; use a run with a tagger")
    return bundle


def _outputs_of(labels: LabelSpace) -> LabelSpace:
    """What outputs mean: they are scaled to the range, whatever scores a head was standardized by.

    Without a range they are standardized, by the teacher's scores, and `_answers` converts them.
    """
    known = replace(labels, standardized_by=None, thresholds=(), separator="")
    return known if labels.bounded else replace(known, low=0.0, high=1.0)


def teacher_origin(recipe: Recipe) -> dict[str, dict[str, str]]:
    """The SHA-256 of the weights of each run that is a teacher, for environment.json; empty without teachers."""
    models = {run: find_model(Path(run)) for _, _, run in teacher_runs(recipe)}
    files = {run: (model.encoder, model.parts) for run, model in models.items() if model is not None}
    hashes = {run: " ".join(map(remembered_sha256, weights)) for run, weights in files.items()}
    return {"teachers_sha256": hashes} if hashes else {}


def teacher_outputs(
    prepared: Prepared, teachers: Mapping[str, Teacher], memory: Memory | None, device: torch.device
) -> dict[str, Tensor]:
    """The outputs of each task's teacher for the task's training examples, in their order."""
    outputs = {}
    for name, teacher in teachers.items():
        rows = training_rows(prepared.tasks[name])
        indices: Sequence[int] = range(len(rows))
        # An interference probe may draw any example, and a memory of windows does not hold rows.
        every_row = prepared.recipe.train.interference_every is not None or prepared.model.head(name).stride is not None
        if teacher.only_memory and memory is not None and not every_row:
            indices = memory.kept[name]
        answers = [_answers(prepared, name, bundle, indices, device) for bundle in teacher.bundles]
        known = mean_outputs(answers, prepared.tasks[name].labels.kind_name)
        outputs[name] = known.new_zeros(len(rows), *known.shape[1:])
        outputs[name][list(indices)] = known
    return outputs


def mean_outputs(outputs: Sequence[Tensor], kind: LabelKind) -> Tensor:
    """The outputs whose predictions are the mean of those of several models: log-probabilities of classes, logits of
    yes, or scores. The outputs of one model are returned unchanged.

    Means of probabilities are computed from their logarithms, so that no output is infinite.
    """
    if len(outputs) == 1:
        return outputs[0]
    return KINDS[kind].mean_outputs(torch.stack([one.float() for one in outputs]))


def _answers(prepared: Prepared, name: str, bundle: Bundle, indices: Sequence[int], device: torch.device) -> Tensor:
    rows = training_rows(prepared.tasks[name])
    model = bundle.model.to(device)
    if bundle.tokenizer is prepared.tokenizer:
        outputs = model.answer(name, rows.gather(list(indices)), bundle.packer)
    else:
        examples = list(rows.examples())
        if bundle.specs[name].has_options:  # all windows have outputs for as many options
            width = max(len(one.texts) for one in examples)
            examples = [replace(one, texts=widened(one.texts, width)) for one in examples]
        windows = [[examples[i] for i in indices[at : at + WINDOW]] for at in range(0, len(indices), WINDOW)]
        outputs = concatenated([_answers_to_texts(bundle, name, window) for window in windows])
    model.cpu()
    known, labels = bundle.labels[name], prepared.tasks[name].labels
    if not labels.bounded and (known.low, known.high) != (labels.low, labels.high):
        rescaled: Tensor = labels.scaled(known.unscaled(outputs.double())).float()
        return rescaled
    return outputs


def _answers_to_texts(bundle: Bundle, name: str, examples: Sequence[Example]) -> Tensor:
    if bundle.model.head(name).kind.per_word:
        texts = bundle.tokenize_words([WordText(one.texts[0], one.words or ()) for one in examples])
    else:
        options = bundle.specs[name].has_options
        texts = bundle.tokenize([one.texts for one in examples], options=options)
    return bundle.model.answer(name, texts, bundle.packer)
