"""Probes: cosines of whole gradients, and training that does not depend on probes."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask import read_recipe, start_training
from polytask.evaluation.interference import summarize
from polytask.reports.interference import NOTHING_SHARED, with_sentences
from polytask.training.checkpoint import newest, optimizer_tensors, step_of
from polytask.training.gradients import shared_by_layer
from polytask.training.loop import Session
from polytask.training.probe import probe
from polytask.types import Interference

QUICKSTART = Path(__file__).parent.parent.parent / "recipes" / "quickstart.yaml"
PLAIN_TEXT = "{kind: text, text: %s, train: 'sample:%s-train', dev: 'sample:%s-dev', head: %s}"


def probed(session: Session, step: int = 3) -> Interference:
    return probe(session.model, session.feed, session.objective, session.settings, step, 0.25)


def gradients(session: Session, step: int = 3) -> dict[str, dict[str, Tensor]]:
    """By task and layer, the whole gradient of the same loss, flat, by one ordinary backward pass."""
    model, found = session.model.eval(), {}
    layers = [(name, shared) for name, shared in shared_by_layer(model) if shared]
    for task in model.tasks:
        stream = session.feed.draw(task, session.settings.batch_size, "interference", step)
        losses = session.objective.task_losses(model, stream, model(stream), 0.25)
        loss = session.objective.policy.weigh(losses)
        grads = torch.autograd.grad(loss, [p for _, shared in layers for p in shared], materialize_grads=True)
        rest = iter(grads)
        found[task] = {
            name: torch.cat([grad.flatten() for grad in itertools.islice(rest, len(shared))]).double()
            for name, shared in layers
        }
    return found


def session_of(folder: Path, tiny: list[str], *more: str) -> Session:
    return start_training(read_recipe(QUICKSTART, [*tiny, "tasks.similarity.weight=25", *more]), folder / "run").session


@pytest.mark.parametrize("adapter", ["none", "houlsby", "{name: own_encoder, layers: 1}"])
def test_cosines_and_norms_are_those_of_whole_gradients(tmp_path: Path, tiny_settings: list[str], adapter: str) -> None:
    session = session_of(tmp_path, tiny_settings, f"adapter={adapter}")
    found = probed(session)
    whole = gradients(session)
    assert found.tasks == ("opinion", "question", "similarity")
    own = {"layer 1"} if "own_encoder" in adapter else set()  # not shared
    assert list(found.layers) == ["all", *(n for n in ("layer 1", "layer 0", "embeddings") if n not in own)]
    for name, rows in found.layers.items():
        flat = [torch.cat(list(by.values())) if name == "all" else by[name] for by in whole.values()]
        for i, j in itertools.product(range(3), repeat=2):
            cosine = float(flat[i] @ flat[j] / (flat[i].norm() * flat[j].norm()))
            assert rows[i][j] == pytest.approx(cosine, abs=2e-5)
        assert found.norms[name] == pytest.approx([float(g.norm()) for g in flat], rel=1e-4)


def test_bf16_gives_about_the_same(tmp_path: Path, tiny_settings: list[str]) -> None:
    full = probed(session_of(tmp_path / "a", tiny_settings))
    half = probed(session_of(tmp_path / "b", tiny_settings, "train.precision=bf16"))
    for one, other in zip(full.layers["all"], half.layers["all"], strict=True):
        assert other == pytest.approx(one, abs=0.05)
    assert full.layers != half.layers


def test_a_probe_leaves_everything_as_it_was(make_session: Any) -> None:
    session = make_session()
    session.model.train()
    session.model.encoder.eval()
    modes = [module.training for module in session.model.modules()]
    random, given = torch.get_rng_state(), session.feed.state_dict()
    found = probed(session)
    assert [module.training for module in session.model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert session.feed.state_dict() == given
    assert all(p.grad is None for p in session.model.parameters())
    assert probed(session).layers == found.layers  # no dropout, and the examples depend on the step
    assert probed(session, step=4).layers != found.layers


def weights(session: Session) -> dict[str, Tensor]:
    return {**session.model.state_dict(), **optimizer_tensors(session.optimizer)}


def lines(session: Session) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in session.journal.path.read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_is_the_same_bit_for_bit(make_session: Any, accumulate: int) -> None:
    plain = make_session("plain", accumulate=accumulate)
    looked_at = make_session("looked-at", accumulate=accumulate, interference_every=1)
    list(plain.fit())
    reports = list(looked_at.fit())
    assert all(report.interference is not None for report in reports)
    one, other = weights(plain), weights(looked_at)
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert lines(plain) == [line for line in lines(looked_at) if line["kind"] != "interference"]


def test_plain_text_and_memories_take_part_and_change_nothing(tmp_path: Path, tiny_settings: list[str]) -> None:
    """Masking and memories depend on how many examples training has drawn."""
    more = [
        f"tasks.words={PLAIN_TEXT % ('text', 'opinions', 'opinions', 'mlm')}",
        f"tasks.views={PLAIN_TEXT % ('sentence1', 'similarity', 'similarity', 'simcse')}",
        "policy=a_gem",
        "train.epochs=1",
        "train.steps_per_epoch=7",
    ]
    ends = []
    for name, every in [("plain", "null"), ("looked-at", "2")]:
        session = session_of(tmp_path / name, tiny_settings, *more, f"train.interference_every={every}")
        reports = list(session.fit())
        ends.append(weights(session))
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    found = [report.interference for report in reports if report.interference is not None]
    assert [one.step for one in found] == [2, 4, 6]
    assert found[-1].tasks[-2:] == ("words", "views")
    assert all(norm > 0 for norm in found[-1].norms["all"])


@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_resumed_run_has_the_lines_of_an_unstopped_one(make_session: Any, stop: int) -> None:
    options = {"save_every": 2, "interference_every": 3}
    straight, stopped = make_session("straight", **options), make_session("stopped", **options)
    list(straight.fit())
    list(itertools.islice(stopped.fit(), stop))
    checkpoint = newest(stopped.checkpoints)
    resumed = make_session("stopped", resumed_at=step_of(checkpoint) if checkpoint else 0, **options)
    if checkpoint is not None:
        resumed.load(checkpoint)
    list(resumed.fit())
    assert [line["step"] for line in lines(straight) if line["kind"] == "interference"] == [3, 6, 9, 12]
    assert lines(resumed) == lines(straight)


def test_tasks_that_share_no_parameters_are_reported(tmp_path: Path, tiny_settings: list[str]) -> None:
    frozen = ["train.parts=adapters", "adapter=houlsby"]
    found = probed(session_of(tmp_path / "a", tiny_settings, *frozen))
    assert (dict(found.layers), dict(found.norms)) == ({}, {})
    told = with_sentences(summarize([json.loads(json.dumps({"kind": "interference", **vars(found)}))]))
    assert told["note"] == NOTHING_SHARED
    assert told["pairs"] == []
    norms = probed(session_of(tmp_path / "b", tiny_settings, *frozen, "train.norms=true"))
    assert list(norms.layers) == ["all", "layer 1", "layer 0", "embeddings"]  # the layer norms are


def test_one_task_has_no_pairs(tmp_path: Path, tiny_settings: list[str]) -> None:
    task = "{kind: classes, text: text, label: opinion, train: 'sample:opinions-train', dev: 'sample:opinions-dev'}"
    recipe = read_recipe(QUICKSTART, [*tiny_settings, f"tasks={{opinion: {task}}}", "train.interference_every=1"])
    assert not probed(start_training(recipe, tmp_path / "run").session).layers


def test_a_task_that_diverged_spoils_only_its_own_pairs(make_session: Any) -> None:
    session = make_session()
    with torch.no_grad():
        next(session.model.head("two").parameters()).fill_(float("nan"))
    found = probed(session)
    assert found.norms["all"][0] > 0
    assert (found.norms["all"][1], found.layers["all"][0]) == (None, [1.0, None])
    json.dumps(vars(found), allow_nan=False)  # the journal stays JSON


def test_first_order_transfer_is_what_a_small_step_does(make_session: Any) -> None:
    """A real step against task i's gradient changes j's loss by transfer_ij times what a step on j itself does."""
    session = make_session(batch_size=20)
    list(itertools.islice(session.fit(), 2))
    found = probed(session)
    transfer = summarize([{"kind": "interference", **vars(found)}])["transfer"]
    model, whole = session.model.eval(), gradients(session)
    shared = [p for _, layer in shared_by_layer(model) for p in layer]

    def losses() -> list[float]:
        streams = [session.feed.draw(task, 20, "interference", 3) for task in model.tasks]
        with torch.no_grad():
            done = [session.objective.task_losses(model, stream, model(stream), 0.25) for stream in streams]
        return [float(loss) for each in done for loss in each.values()]

    def changes(task: str, size: float) -> list[float]:
        """Central differences: second-order terms cancel."""
        ends = []
        for sign in (1, -1):
            flat = torch.cat(list(whole[task].values())).float()
            parts = flat.split([p.numel() for p in shared])
            with torch.no_grad():
                for parameter, part in zip(shared, parts, strict=True):
                    parameter -= sign * size * part.view_as(parameter)
                ends.append(losses())
                for parameter, part in zip(shared, parts, strict=True):
                    parameter += sign * size * part.view_as(parameter)
        return [after - before for after, before in zip(*ends, strict=True)]

    measured = [changes(task, 1e-2) for task in model.tasks]
    for i, j in itertools.product(range(2), repeat=2):
        assert measured[j][j] < 0
        assert transfer[i][j]["value"] == pytest.approx(measured[i][j] / measured[j][j], rel=0.05, abs=0.01)
    assert transfer[0][0]["value"] == pytest.approx(1)
