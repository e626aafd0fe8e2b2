"""Teachers: trained models whose outputs for a task's training examples the task learns from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from polytask.runs.bundle import Bundle, load_run
from polytask.runs.prepare import Prepared
from polytask.tasks.task import Split
from polytask.training.memory import Memory
from polytask.types import UserError, unknown

WINDOW = 4096
"""Texts that are tokenized at once."""


@dataclass(frozen=True)
class Teacher:
    """A model that knows a task."""

    bundle: Bundle
    weight: float | None = None
    """The constant share of its outputs in the task's loss; None: `train.teacher_annealing` decides."""
    only_memory: bool = False
    """It is asked about remembered examples only, because steps have no others of its task."""


def load_teachers(prepared: Prepared) -> dict[str, Teacher]:
    """The teacher of each task for which the recipe names one."""
    return {name: Teacher(_load(prepared, name, run)) for name, run in prepared.recipe.teachers.items()}


def _load(prepared: Prepared, name: str, run: str) -> Bundle:
    where, task = f"recipe: teachers.{name}", prepared.tasks[name]
    try:
        bundle = load_run(Path(run))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if name not in bundle.specs:
        raise UserError(unknown(where, name, bundle.specs, f"task of {run}"))
    if task.spec.kind == "text":
        raise UserError(f"{where}: task {name} is plain text, which has no predictions to learn from")
    # Outputs are scaled to the range, whatever scores a head was standardized by.
    if replace(bundle.labels[name], standardized_by=None) != replace(task.labels, standardized_by=None):
        raise UserError(f"{where}: {run} has other labels for {name} than this recipe")
    if len(bundle.specs[name].text) != len(task.spec.text):
        raise UserError(f"{where}: {run} has another number of texts for {name} than this recipe")
    if bundle.specs[name].tags:
        raise UserError(f"{where}: {run} reads word tags from columns, which a teacher cannot; use a run with a tagger")
    return bundle


def teacher_outputs(
    prepared: Prepared, teachers: Mapping[str, Teacher], memory: Memory | None, device: torch.device
) -> dict[str, Tensor]:
    """Each teacher's outputs for the training examples of its task, in their order."""
    outputs = {}
    for name, teacher in teachers.items():
        split = prepared.tasks[name].splits["train"]
        indices: Sequence[int] = range(len(split))
        # An interference probe may draw any example.
        if teacher.only_memory and memory is not None and prepared.recipe.train.interference_every is None:
            indices = memory.kept[name]
        known = _answers(prepared, name, teacher.bundle, indices, device)
        outputs[name] = known.new_zeros(len(split), *known.shape[1:])
        outputs[name][list(indices)] = known
    return outputs


def _answers(prepared: Prepared, name: str, bundle: Bundle, indices: Sequence[int], device: torch.device) -> Tensor:
    split: Split = prepared.tasks[name].splits["train"]
    model = bundle.model.to(device)
    if bundle.tokenizer is prepared.tokenizer:
        outputs = model.answer(name, split.gather(list(indices)), bundle.packer)
    else:
        texts = [example.texts for example in split.examples()]
        windows = [[texts[i] for i in indices[at : at + WINDOW]] for at in range(0, len(indices), WINDOW)]
        outputs = torch.cat([_answers_to_texts(bundle, name, window) for window in windows])
    model.cpu()
    return outputs


def _answers_to_texts(bundle: Bundle, name: str, texts: Sequence[tuple[str, ...]]) -> Tensor:
    return bundle.model.answer(name, bundle.tokenize(texts), bundle.packer)
