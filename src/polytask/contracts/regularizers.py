"""Properties of regularizers, on a tiny model with three tasks: one text, a pair in one sequence, a pair in two."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polytask.build import make_model
from polytask.contracts.claims import require, require_finite
from polytask.encoders.bert import Bert, BertShape
from polytask.model import MultiTaskModel
from polytask.regularizers.base import Regularizer, RegularizerContext
from polytask.settings import MethodChoice, TaskSpec
from polytask.stream import Stream
from polytask.text.packing import Packer, Part
from polytask.types import YES_NO, LabelSpace, Stage

Method = Callable[[RegularizerContext], Regularizer]
SHAPE = BertShape(layers=2, hidden=16, heads=2, ffn=32, vocabulary=100, positions=32)
SPECS = {
    "one": TaskSpec("one", "classes", ("a",), "label", "", ""),
    "two": TaskSpec("two", "yes_no", ("a", "b"), "label", "", ""),
    "three": TaskSpec("three", "score", ("a", "b"), "label", "", "", head=MethodChoice("bi")),
}
LABELS = {"one": LabelSpace("classes", ("a", "b", "c")), "two": YES_NO, "three": LabelSpace("score", high=5)}
PACKER = Packer(tuple(SPECS), 2, 3, 32)


@dataclass(frozen=True)
class Subject:
    """A regularizer and the adapter of the model that it is tried with."""

    method: Method
    adapter: MethodChoice = field(default_factory=lambda: MethodChoice("conditional_norm"))


def tiny_model(adapter: MethodChoice) -> MultiTaskModel:
    return make_model(SPECS, LABELS, adapter, lambda: Bert(SHAPE)).train()


def part_of(model: MultiTaskModel, task: str, examples: int, seed: int = 0) -> Part:
    rng = np.random.default_rng([seed, len(task)])
    texts = [tuple(rng.integers(5, 100, rng.integers(2, 8)) for _ in SPECS[task].text) for _ in range(examples)]
    gold: dict[str, npt.NDArray[Any]] = {
        "one": rng.integers(0, 3, examples),
        "two": rng.integers(0, 2, examples).astype(np.float32),
        "three": rng.random(examples).astype(np.float32),
    }
    return Part(task, texts, model.head(task).reading, gold[task])


def stream_of(model: MultiTaskModel, *tasks: str) -> Stream:
    return PACKER.pack([part_of(model, task, 8) for task in tasks or model.tasks])


def build(method: Method, model: MultiTaskModel) -> Regularizer:
    """The regularizer after the first step, which ends the first task's stage."""

    def examples(task: str, count: int) -> Iterable[Stream]:
        return [PACKER.pack([part_of(model, task, 1, seed)]) for seed in range(1, min(count, 5) + 1)]

    stages = tuple(Stage(task, step, step) for step, task in enumerate(model.tasks, 1))
    regularizer = method(RegularizerContext(model, dict.fromkeys(model.tasks, 1.0), 20, stages, examples))
    regularizer.after_step(model, 1)
    return regularizer


def shake(model: MultiTaskModel) -> None:
    """Changes all weights: at the start some penalties and their gradients are 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))


def penalty(regularizer: Regularizer, model: MultiTaskModel, stream: Stream, bf16: bool = False) -> Tensor:
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        return regularizer.penalty(model, model.run(stream))


# --- properties -------------------------------------------------------------------------------------------------------
def the_penalty_has_a_gradient(subject: Subject) -> None:
    """The penalty is a finite float32 scalar of at least 0 with finite gradients, also in mixed precision."""
    for bf16 in (False, True):
        model = tiny_model(subject.adapter)
        regularizer = build(subject.method, model)
        shake(model)
        found = penalty(regularizer, model, stream_of(model), bf16)
        require(found.ndim == 0, f"the penalty must be a scalar, found the shape {tuple(found.shape)}")
        require(found.dtype == torch.float32, f"the penalty must be float32, found {found.dtype}")
        require_finite(found, "the penalty")
        require(found >= 0, f"the penalty must be at least 0, found {found.item()}")
        require(found.requires_grad, "the penalty has no gradient: it does not depend on the weights")
        found.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        require(all(torch.isfinite(grad).all() for grad in grads), "the penalty has gradients that are NaN or infinite")
        require(any(grad.abs().sum() > 0 for grad in grads), "all gradients of the penalty are 0")


def other_tasks_get_no_gradient(subject: Subject) -> None:
    """Parameters of tasks that are not in the step get no gradient (None, not zeros)."""
    model = tiny_model(subject.adapter)
    regularizer = build(subject.method, model)
    shake(model)
    for task in model.tasks:
        model.zero_grad(set_to_none=True)
        found = penalty(regularizer, model, stream_of(model, task))
        require_finite(found, f"the penalty of a step with task {task} only")
        if found.requires_grad:
            found.backward()
        for other in model.tasks:
            own = [*model.head(other).parameters(), *model.adapter.task_parameters(other)]
            quiet = other == task or all(p.grad is None for p in own)
            require(quiet, f"a step of task {task} gives parameters of task {other} a gradient")


def the_state_restores_the_penalty(subject: Subject) -> None:
    """A regularizer that loads another's state_dict has the same penalty."""
    model = tiny_model(subject.adapter)
    regularizer = build(subject.method, model)
    shake(model)
    regularizer.after_step(model, 4)
    saved = {key: tensor.clone() for key, tensor in regularizer.state_dict().items()}
    other = tiny_model(subject.adapter)
    again = build(subject.method, other)
    other.load_state_dict(model.state_dict())
    again.load_state_dict(saved)
    stream = stream_of(model)
    same = torch.equal(penalty(again, other, stream), penalty(regularizer, model, stream))
    require(same, "after load_state_dict the penalty differs: state_dict must return all that after_step changes")


PROPERTIES = (the_penalty_has_a_gradient, other_tasks_get_no_gradient, the_state_restores_the_penalty)
