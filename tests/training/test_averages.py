"""Averages of weights: by hand, in the loop's evaluations and checkpoints, and through a restart."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytask import read_recipe, start_training
from polytask.training.averages import RunningAverage, mean_weights
from polytask.training.checkpoint import newest, numbered, optimizer_tensors, read_checkpoint
from polytask.training.loop import Session

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def copied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def bits(session: Session) -> dict[str, Tensor]:
    found = {**session.model.state_dict(), **optimizer_tensors(session.optimizer)}
    if session.average is not None:
        found.update({f"average/{name}": tensor for name, tensor in session.average.weights.items()})
    return found


# --- by hand ----------------------------------------------------------------------------------------------------------
def test_a_running_average_with_its_slow_start() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = RunningAverage(model, decay=0.25)
    expected, found = 8.0, []
    for step, (weight, decay) in enumerate([(1.0, 2 / 11), (3.0, 3 / 12), (-5.0, 0.25), (2.0, 0.25)], start=1):
        nn.init.constant_(model.weight, weight)
        average.update(step)
        expected = decay * expected + (1 - decay) * weight
        found.append(average.weights["weight"].item())
        assert found[-1] == pytest.approx(expected, rel=1e-6)
    assert model.weight.item() == 2.0  # the average is a copy


def test_frozen_weights_stay_exactly_what_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Linear(30, 30)
    before = model.weight.detach().clone()
    average = RunningAverage(model, 0.999)
    for step in range(1, 50):
        average.update(step)
    assert torch.equal(average.weights["weight"], before)


def test_swapped_in_and_the_very_same_weights_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    average = RunningAverage(model, 0.9)
    for tensor in average.weights.values():
        tensor.fill_(7.0)
    parameters = list(model.parameters())
    places, values = [p.data_ptr() for p in parameters], [p.detach().clone() for p in parameters]
    with average.swapped_in(model):
        assert all((p == 7).all() for p in model.parameters())
        assert all((t == 7).all() for t in model.state_dict().values())
    for _ in range(2):
        assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
        assert [p.data_ptr() for p in model.parameters()] == places
        assert all(torch.equal(p, value) for p, value in zip(model.parameters(), values, strict=True))
        with pytest.raises(RuntimeError, match="in between"), average.swapped_in(model):  # and after an error too
            raise RuntimeError("in between")


def test_mean_of_weights() -> None:
    models = [{"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(w)} for w in (1.0, 2.0, 6.0)]
    mean = mean_weights(models)
    assert mean["w"].tolist() == [1.0, 2.0]
    assert mean["b"].item() == 3.0
    assert mean["w"].dtype == torch.float32


# --- in the loop ------------------------------------------------------------------------------------------------------
def averaged(session: Session) -> Session:
    """The session, with the running average of its settings."""
    assert session.settings.ema is not None
    session.average = RunningAverage(session.model, session.settings.ema)
    return session


def watched(session: Session) -> dict[int, dict[str, Tensor]]:
    """The weights of each evaluation, by step."""
    seen: dict[int, dict[str, Tensor]] = {}
    plain = session.evaluate

    def evaluate(step: int) -> Any:
        seen[step] = copied(session.model.state_dict())
        return plain(step)

    session.evaluate = evaluate
    return seen


def test_the_average_is_evaluated_and_saved_and_does_not_affect_training(make_session: Any) -> None:
    plain, session = make_session("plain"), averaged(make_session("average", ema=0.9))
    seen = watched(session)
    list(plain.fit())
    averages = {0: copied(session.average.weights)}
    for report in session.fit():
        averages[report.step] = copied(session.average.weights)
        own = copied(dict(session.model.named_parameters()))
        decay = min(0.9, (1 + report.step) / (10 + report.step))
        for name, average in averages[report.step].items():
            by_hand = decay * averages[report.step - 1][name] + (1 - decay) * own[name]
            torch.testing.assert_close(average, by_hand)
    assert same(plain.model.state_dict(), session.model.state_dict())

    assert set(seen) == {0, 6, 12}
    assert all(same(seen[step], averages[step]) for step in seen)
    best = read_checkpoint(session.checkpoints / f"best-{session.best_step}").tensors
    assert same(best["model"], averages[session.best_step])
    last = read_checkpoint(session.checkpoints / "step-12").tensors
    assert same(last["model"], plain.model.state_dict())
    assert same(last["average"], averages[12])
    session.load_best()
    assert same(session.model.state_dict(), averages[session.best_step])


@pytest.mark.parametrize("stop", [3, 8])
def test_a_stopped_run_with_an_average_ends_with_the_same_bits(make_session: Any, stop: int) -> None:
    options = {"ema": 0.9, "save_every": 2, "evaluate_every": 3, "average_best": 2}
    straight = averaged(make_session("straight", **options))
    list(straight.fit())
    stopped = averaged(make_session("stopped", **options))
    list(itertools.islice(stopped.fit(), stop))
    resumed = averaged(make_session("stopped", resumed_at=stop - stop % 2, **options))
    resumed.load(newest(stopped.checkpoints))
    list(resumed.fit())
    assert same(bits(resumed), bits(straight))
    assert resumed.progress.bests == straight.progress.bests
    resumed.load_best()
    straight.load_best()
    assert same(resumed.model.state_dict(), straight.model.state_dict())


def test_the_mean_of_the_two_best_and_only_their_folders(make_session: Any) -> None:
    session = make_session(epochs=4, evaluate_every=3, average_best=2, schedule="constant")
    seen, values = watched(session), {}
    for report in session.fit():
        if report.evaluation is not None:
            values[report.step] = report.evaluation.mean
            assert report.best == (report.step == max(values, key=lambda step: (values[step], -step)))
    assert len(values) == 8
    best = sorted(values, key=lambda step: (-values[step], step))[:2]
    assert [step for _, step in session.progress.bests] == best
    assert list(numbered(session.checkpoints, "best-")) == sorted(best)
    session.load_best()
    for name, weight in session.model.state_dict().items():
        torch.testing.assert_close(weight, (seen[best[0]][name] + seen[best[1]][name]) / 2)


def test_fewer_evaluations_than_weights_to_average(make_session: Any) -> None:
    session = make_session(epochs=1, average_best=5)
    seen = watched(session)
    list(session.fit())
    session.load_best()
    assert same(session.model.state_dict(), seen[6])


def test_a_whole_run_with_both_averages_resumes(tmp_path: Path, tiny_settings: list[str]) -> None:
    more = ["train.ema=0.9", "train.average_best=2", "train.steps_per_epoch=2", "train.epochs=4", "train.save_every=3"]
    recipe = read_recipe(QUICKSTART, [*tiny_settings, *more])
    straight = start_training(recipe, tmp_path / "straight")
    list(straight.steps())
    list(itertools.islice(start_training(recipe, tmp_path / "stopped").steps(), 5))
    resumed = start_training(recipe, tmp_path / "stopped", resume=True)
    list(resumed.steps())
    assert straight.session.average is not None
    assert same(bits(straight.session), bits(resumed.session))
    straight.session.load_best()
    resumed.session.load_best()
    assert same(straight.session.model.state_dict(), resumed.session.model.state_dict())
