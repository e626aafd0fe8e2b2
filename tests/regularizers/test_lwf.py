"""Distillation from a copy: by hand, on texts of other tasks, and through a restart."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polytask import read_recipe, start_training
from polytask.losses.base import distillation_loss
from polytask.regularizers.lwf import Lwf
from polytask.regularizers.other_task import as_task, readable_layouts
from polytask.types import Stage

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
STAGES = (Stage("topic", 1, 3), Stage("alike", 4, 5), Stage("same", 6, 9))


@pytest.fixture
def made(tiny_model: Any, make_context: Any) -> Any:
    """made(step, adapter, **options): a model, and the regularizer after the stages that end by this step."""

    def make(step: int, adapter: str = "none", **options: Any) -> tuple[Any, Lwf]:
        model = tiny_model(adapter, dropout=0.0)
        lwf = Lwf(replace(make_context(model, topic=3.0), stages=STAGES), **options)
        for past in range(1, step + 1):
            lwf.after_step(model, past)
        return model, lwf

    return make


def shake(model: Any, seed: int = 1) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)


# --- another task's texts ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("adapter", ["none", "pal", "conditional_norm"])
def test_a_stream_read_as_another_task_is_that_tasks_own(tiny_model: Any, tiny_stream: Any, adapter: str) -> None:
    """The sequences of `same`, read by `topic`, are what they would be in a stream of `topic`."""
    options = {"size": 8, "heads": 2} if adapter == "pal" else {}
    model = tiny_model(adapter, dropout=0.0, options=options).eval()
    shake(model)
    stream = tiny_stream(["same"])
    found = model(replace(stream, layout=as_task(stream.layout, 0)))
    assert list(found) == ["topic"]
    layout = replace(
        stream.layout,
        sequence_ranges=((0, 4), (0, 0), (0, 0)),
        token_ranges=((0, len(stream.token_ids_T)), (0, 0), (0, 0)),
    )
    torch.testing.assert_close(found["topic"], model(replace(stream, layout=layout))["topic"])


def test_heads_read_what_they_can(tiny_model: Any, tiny_stream: Any) -> None:
    """topic and same read one sequence, alike two: of 4 + 4 + 2 * 4 sequences and a filler."""
    model = tiny_model()
    layout = tiny_stream(token_budget=400).layout
    for task, expected in [("topic", [(0, 16)]), ("same", [(0, 16)]), ("alike", [(8, 16)])]:
        k = model.tasks.index(task)
        assert [found.sequence_ranges[k] for found in readable_layouts(model, layout, task)] == expected
    assert not list(readable_layouts(model, tiny_stream(["same"]).layout, "alike"))
    tokens = next(readable_layouts(model, layout, "alike")).token_ranges[2]
    assert tokens == layout.token_ranges[2]


@pytest.mark.parametrize("other", ["cross", "bi", "joint"])
def test_a_joint_head_reads_the_pairs_of_joint_heads(tiny_model: Any, tiny_stream: Any, other: str) -> None:
    heads = {"topic": "linear", "same": other, "alike": "joint"}
    layout = tiny_stream(["same"], heads=heads).layout
    found = [found.sequence_ranges[2] for found in readable_layouts(tiny_model(heads=heads), layout, "alike")]
    assert found == ([(0, 12)] if other == "joint" else [])


# --- the penalty ------------------------------------------------------------------------------------------------------
def test_nothing_before_the_first_stage_has_ended(made: Any, tiny_stream: Any) -> None:
    model, lwf = made(2)
    shake(model)
    assert lwf.penalty(model, model.run(tiny_stream(["same"]))).item() == 0
    assert lwf.state_dict() == {}
    lwf.after_step(model, 3)
    found = lwf.penalty(model, model.run(tiny_stream(["same"])))
    assert found.item() == pytest.approx(0, abs=1e-6)  # the model equals its copy
    shake(model)
    assert lwf.penalty(model, model.run(tiny_stream(["same"]))).item() > 1e-4


@pytest.mark.parametrize("adapter", ["none", "lhuc"])
def test_the_old_head_on_both_encoders(made: Any, tiny_stream: Any, adapter: str) -> None:
    """Against passes of whole models: the copy, and a model of the new encoder with the copy's head and adapter."""
    model, lwf = made(3, adapter, weight=0.5)
    old = copy.deepcopy(model).eval()
    shake(model)
    stream = tiny_stream(["same"])
    found = lwf.penalty(model, model.run(stream))
    own = replace(stream, layout=as_task(stream.layout, 0))
    mixed = copy.deepcopy(old)
    mixed.encoder.load_state_dict(model.encoder.state_dict())
    expected = 0.5 * 3.0 * distillation_loss(mixed(own)["topic"], old(own)["topic"], "classes", 2.0, "kl")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("adapter", ["none", "lhuc"])
def test_the_gradient(made: Any, tiny_stream: Any, check_gradient: Any, adapter: str) -> None:
    model, lwf = made(5, adapter)
    for each in (model.double(), lwf.copy.double()):
        for head in each.heads.values():
            head.pooling = "first"  # the mean is always taken in float32
    shake(model)
    stream = tiny_stream(["same", "alike"])
    check_gradient(model, lambda: lwf.penalty(model, model.run(stream)))


@pytest.mark.parametrize("adapter", ["none", "lhuc"])
def test_only_the_encoder_is_held(made: Any, tiny_stream: Any, adapter: str) -> None:
    model, lwf = made(5, adapter)
    shake(model)
    lwf.penalty(model, model.run(tiny_stream(["same"]))).backward()
    assert model.encoder.layers[0].up.weight.grad.abs().sum() > 0
    assert all(p.grad is None for p in [*model.heads.parameters(), *model.adapter.parameters()])
    model.encoder.requires_grad_(False)
    assert lwf.penalty(model, model.run(tiny_stream(["same"]))).item() == 0


def test_a_head_of_pairs_waits_for_pairs(made: Any, tiny_stream: Any) -> None:
    """After both stages topic and alike are kept; single sequences do not affect alike."""
    model, lwf = made(5)
    shake(model)
    for tasks in (["same"], ["same", "alike"]):
        stream = tiny_stream(tasks)
        both = lwf.penalty(model, model.run(stream)).item()
        lwf.finished = 1
        assert (lwf.penalty(model, model.run(stream)).item() < both) == ("alike" in tasks)
        lwf.finished = 2


def test_the_copy_is_of_the_latest_border(made: Any, tiny_stream: Any) -> None:
    model, lwf = made(3)
    shake(model)
    before = lwf.penalty(model, model.run(tiny_stream(["same"]))).item()
    for step in (4, 5):
        lwf.after_step(model, step)
    assert before > 1e-4
    assert lwf.penalty(model, model.run(tiny_stream(["same", "alike"]))).item() == pytest.approx(0, abs=1e-6)
    assert lwf.copy is not None
    weights = {name: t.clone() for name, t in lwf.copy.state_dict().items()}
    for step in (6, 7, 8, 9):
        shake(model, step)
        lwf.after_step(model, step)
    assert all(torch.equal(t, weights[name]) for name, t in lwf.copy.state_dict().items())


def test_tasks_that_a_finished_run_brings_are_held_from_the_start(
    tiny_model: Any, make_context: Any, tiny_stream: Any
) -> None:
    model = tiny_model(dropout=0.0)
    context = replace(make_context(model), learned=("topic",))
    lwf = Lwf(context)
    lwf.start(model)
    again = Lwf(context)
    again.load_state_dict(lwf.state_dict())
    shake(model)
    found = [each.penalty(model, model.run(tiny_stream(["same"]))) for each in (lwf, again)]
    assert found[0].item() > 1e-4
    assert torch.equal(found[0], found[1])


# --- a whole run ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_resumed_sequence_ends_bit_identical(tmp_path: Path, tiny_settings: list[str]) -> None:
    """Stages of 5, 4 and 3 steps; checkpoints at 2, 4, 6 ...: before the first border, and between the two."""
    more = ["sampler=in_order", "train.select=last", "regularizers=[lwf]", "train.save_every=2", "adapter=lhuc"]
    short = ["train.epochs=2", "train.steps_per_epoch=6", "train.batch_size=4"]
    recipe = read_recipe(QUICKSTART, [*tiny_settings, *more, *short])
    reports = list(start_training(recipe, tmp_path / "straight").steps())
    penalties = [report.penalties["lwf"] for report in reports]
    assert penalties[:5] == [0.0] * 5
    assert all(value > 0 for value in penalties[6:])
    for stop in (3, 7):
        stopped = tmp_path / f"stopped-{stop}"
        list(itertools.islice(start_training(recipe, stopped).steps(), stop))
        list(start_training(recipe, stopped, resume=True).steps())
        for file in ("model", "optimizer", "methods"):
            path = f"checkpoints/step-12/{file}.safetensors"
            assert (tmp_path / "straight" / path).read_bytes() == (stopped / path).read_bytes(), stop
