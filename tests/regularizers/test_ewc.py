"""EWC: the Fisher information and the penalty worked out by hand, and the state from stage to stage."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polytask import read_recipe, start_training
from polytask.regularizers.base import RegularizerContext
from polytask.regularizers.ewc import Ewc
from polytask.stream import Stream
from polytask.types import YES_NO, Stage

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
STAGES = (Stage("topic", 1, 3), Stage("same", 4, 5), Stage("alike", 6, 9))


# --- a logistic model, by hand ----------------------------------------------------------------------------------------
class Logistic(nn.Module):
    """`w x` as the logit of yes: an encoder of two weights, and a head that returns the encoder's output."""

    tasks, device = ("same",), torch.device("cpu")

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 1, bias=False)
        self.encoder.weight.data = torch.tensor([weights])
        self.seen_in_training: list[bool] = []

    def head(self, task: str) -> Any:
        return SimpleNamespace(loss=nn.functional.binary_cross_entropy_with_logits, labels=YES_NO)

    def forward(self, stream: Any) -> dict[str, Tensor]:
        self.seen_in_training.append(self.training)
        return {"same": self.encoder(stream.x).squeeze(-1)}


def one(x: list[float], label: float) -> Any:
    stream = SimpleNamespace(x=torch.tensor([x]), labels={"same": torch.tensor([label])})
    stream.to = lambda device: stream
    return stream


def test_the_fisher_information_of_a_logistic_model() -> None:
    """g = (sigmoid(w x) - y) x for each example: squared first, then averaged."""
    model = Logistic([0.5, -1.0])
    data = [([1.0, 2.0], 1.0), ([3.0, 0.0], 0.0), ([-1.0, 1.0], 1.0)]
    asked: list[tuple[str, int]] = []

    def examples(task: str, count: int) -> Iterator[Any]:
        asked.append((task, count))
        return (one(x, label) for x, label in data)

    context: Any = RegularizerContext(model, {"same": 2.0}, 9, (Stage("same", 1, 2), Stage("x", 3, 9)), examples)
    ewc = Ewc(context, samples=77)
    model.train()
    ewc.after_step(model, 2)
    squares = []
    for (a, b), label in data:
        wrong = 1 / (1 + np.exp(-(0.5 * a - 1.0 * b))) - label
        squares.append([(2.0 * wrong * a) ** 2, (2.0 * wrong * b) ** 2])  # 2: the task's weight
    np.testing.assert_allclose(ewc.fisher["weight"].numpy(), np.mean(squares, axis=0, keepdims=True), rtol=1e-6)
    assert asked == [("same", 77)]
    assert model.seen_in_training == [False] * 3  # without dropout
    assert model.training
    assert model.encoder.weight.grad is None


# --- the penalty ------------------------------------------------------------------------------------------------------
def context_of(model: Any, make_context: Any, tiny_stream: Any) -> RegularizerContext:
    def examples(task: str, count: int) -> Iterator[Stream]:
        return (tiny_stream([task], 1, seed=number) for number in range(min(count, 5)))

    return replace(make_context(model, same=3.0), stages=STAGES, examples=examples)


@pytest.fixture
def made(tiny_model: Any, make_context: Any, tiny_stream: Any) -> Any:
    """made(**options): a model and the regularizer of a run in which no stage has ended."""

    def make(**options: Any) -> tuple[Any, Ewc]:
        model = tiny_model()
        return model, Ewc(context_of(model, make_context, tiny_stream), **options)

    return make


def shake(model: Any, seed: int = 1) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)


def test_nothing_before_the_first_stage_has_ended(made: Any, tiny_stream: Any) -> None:
    model, ewc = made()
    for step in (1, 2):
        shake(model, step)
        ewc.after_step(model, step)
        assert ewc.penalty(model, model.run(tiny_stream(["topic"]))).item() == 0
    assert ewc.state_dict() == {}
    ewc.after_step(model, 3)
    assert ewc.penalty(model, model.run(tiny_stream(["same"]))).item() == 0  # the weights have not changed
    shake(model)
    assert ewc.penalty(model, model.run(tiny_stream(["same"]))).item() > 0


def test_value_and_gradient_of_the_penalty(made: Any, tiny_stream: Any) -> None:
    """`weight/2 sum F d^2`, gradient `weight F d`, on the encoder and on nothing else."""
    model, ewc = made(weight=10.0)
    ewc.after_step(model, 3)
    start = {name: p.detach().clone() for name, p in model.encoder.named_parameters()}
    shake(model)
    value = ewc.penalty(model, model.run(tiny_stream(["same"])))
    value.backward()
    away = {name: p.detach() - start[name] for name, p in model.encoder.named_parameters()}
    expected = 5.0 * sum((ewc.fisher[name] * d.square()).sum() for name, d in away.items())
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in model.encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, 10.0 * ewc.fisher[name] * away[name])
    assert all(p.grad is None for p in model.heads.parameters())
    assert ewc.fisher["words.weight"].count_nonzero() > 0
    assert not ewc.fisher["pooler.weight"].any()  # no head uses it


@pytest.mark.parametrize("decay", [1.0, 0.25])
def test_a_later_stage_adds_its_information_and_moves_the_centre(made: Any, decay: float) -> None:
    model, ewc = made(decay=decay)
    ewc.after_step(model, 3)
    first = {name: f.clone() for name, f in ewc.fisher.items()}
    shake(model)
    second = ewc.fisher_information(model, "same")
    for step in (4, 5):
        ewc.after_step(model, step)
    for name, parameter in model.encoder.named_parameters():
        torch.testing.assert_close(ewc.fisher[name], decay * first[name] + second[name])
        assert torch.equal(ewc.centre[name], parameter)
    kept = {name: f.clone() for name, f in ewc.fisher.items()}
    for step in (6, 7, 8, 9):  # no stage follows the last one
        ewc.after_step(model, step)
    assert all(torch.equal(ewc.fisher[name], kept[name]) for name in kept)


def test_the_state_is_a_copy_that_restores_everything(made: Any, tiny_stream: Any) -> None:
    model, ewc = made()
    ewc.after_step(model, 3)
    state = ewc.state_dict()
    other, again = made()
    again.load_state_dict(state)
    shake(model)
    other.load_state_dict(model.state_dict())
    stream = tiny_stream(["same"])
    assert torch.equal(again.penalty(other, other.run(stream)), ewc.penalty(model, model.run(stream)))
    state["fisher/words.weight"].zero_()
    assert again.fisher["words.weight"].any()


def test_a_frozen_encoder_has_no_penalty(tiny_model: Any, make_context: Any, tiny_stream: Any) -> None:
    model = tiny_model("lhuc")
    model.encoder.requires_grad_(False)
    ewc = Ewc(context_of(model, make_context, tiny_stream))
    ewc.after_step(model, 3)
    assert ewc.penalty(model, model.run(tiny_stream(["same"]))).item() == 0


def test_tasks_that_a_finished_run_brings_are_held_from_the_start(
    tiny_model: Any, make_context: Any, tiny_stream: Any
) -> None:
    model = tiny_model()
    context = replace(context_of(model, make_context, tiny_stream), stages=(), learned=("topic", "alike"))
    ewc = Ewc(context, decay=0.5)
    ewc.start(model)
    parts = [ewc.fisher_information(model, task) for task in context.learned]
    for name, found in ewc.fisher.items():  # both were trained before, so neither decays
        torch.testing.assert_close(found, parts[0][name] + parts[1][name])
    shake(model)
    assert ewc.penalty(model, model.run(tiny_stream(["same"]))).item() > 0


# --- a whole run ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_resumed_sequence_ends_bit_identical(tmp_path: Path, tiny_settings: list[str]) -> None:
    """Stages of 5, 4 and 3 steps; checkpoints at 2, 4, 6 ...: before the first border, and between the two."""
    more = ["sampler=in_order", "train.select=last", "regularizers=[{name: ewc, samples: 6}]", "train.save_every=2"]
    short = ["train.epochs=2", "train.steps_per_epoch=6", "train.batch_size=4"]
    recipe = read_recipe(QUICKSTART, [*tiny_settings, *more, *short])
    straight = start_training(recipe, tmp_path / "straight")
    assert [stage.last for stage in straight.session.sampler.stages] == [5, 9, 12]
    reports = list(straight.steps())
    penalties = [report.penalties["ewc"] for report in reports]
    assert penalties[:6] == [0.0] * 6  # step 6 starts from the weights at the end of the first stage
    assert all(value > 0 for step, value in enumerate(penalties, 1) if step in (7, 8, 9, 11, 12))
    for stop in (3, 7, 8):
        stopped = tmp_path / f"stopped-{stop}"
        list(itertools.islice(start_training(recipe, stopped).steps(), stop))
        list(start_training(recipe, stopped, resume=True).steps())
        for file in ("model", "optimizer", "methods"):
            path = f"checkpoints/step-12/{file}.safetensors"
            assert (tmp_path / "straight" / path).read_bytes() == (stopped / path).read_bytes(), stop
