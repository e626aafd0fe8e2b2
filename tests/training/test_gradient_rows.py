"""Rows of gradients: what a pass writes is what the update gets, weighted by the policy."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.kernels.graphs import Graphs
from polytask.kernels.updates import Learned
from polytask.policies import POLICIES
from polytask.policies.base import PolicyContext
from polytask.training.gradient_rows import ALIGNMENT, GradientRows
from polytask.types import Draw

CONTEXT = PolicyContext({"one": 1.0, "two": 1.0}, {"one": "classes", "two": "yes_no"}, 6)


class Conflict(POLICIES["pcgrad"]):  # type: ignore[misc,name-defined]
    """Weights that are easy to check."""

    def combine(self, gram_KK: Tensor, own: int) -> Tensor:
        self.seen = gram_KK
        return torch.tensor([2.0, -3.0], dtype=torch.float64)


@pytest.fixture
def session(make_session: Any) -> Any:
    return make_session(sampler="mixed")


def rows_of(session: Any, policy: Any, penalties: bool = False) -> GradientRows:
    parameters = [(p, False) for group in session.optimizer.param_groups for p in group["params"]]
    return GradientRows(session.model, policy, parameters, penalties)


def random_gradients(parameters: list[Any]) -> list[Learned]:
    return [Learned(p, torch.randn_like(p)) for p in parameters]


def test_shared_gradients_are_weighted_and_own_ones_are_kept(session: Any) -> None:
    policy, model = Conflict(CONTEXT), session.model
    rows, shared = rows_of(session, policy), list(model.encoder.layers.parameters())
    given = {}
    for task in ("one", "two"):
        stream = session.feed.next_batch([Draw(task, 2)], static_shape=True).together
        source = rows.source("losses", stream, model.tasks)
        given[task] = random_gradients([*shared, *model.head(task).parameters()])
        rows.write(source, task, given[task])
        rows.reached(source, task)
    assert not rows.solve(Graphs(torch.device("cpu")))
    flat = [torch.cat([one.gradient.flatten() for one in given[t] if one.weight in set(shared)]) for t in given]
    torch.testing.assert_close(policy.seen.float(), torch.stack(flat) @ torch.stack(flat).T, rtol=1e-4, atol=1e-3)
    combined = {one.weight: one.gradient for one in rows.combined(torch.tensor(rows.weights), {})}
    by_task = {task: {one.weight: one.gradient for one in learned} for task, learned in given.items()}
    assert set(combined) == set(by_task["one"]) | set(by_task["two"])
    for parameter in shared:
        expected = 2 * by_task["one"][parameter] - 3 * by_task["two"][parameter]
        torch.testing.assert_close(combined[parameter], expected)
    for task in ("one", "two"):
        for parameter in model.head(task).parameters():
            assert torch.equal(combined[parameter], by_task[task][parameter])


def test_later_passes_are_added_and_what_a_step_does_not_reach_is_left_out(session: Any) -> None:
    model = session.model
    rows, layer = rows_of(session, POLICIES["sum"](CONTEXT)), list(model.encoder.layers[0].parameters())
    stream = session.feed.next_batch([Draw("one", 2)], static_shape=True).together
    passes = [random_gradients(layer) for _ in range(3)]
    for step in range(2):  # nothing is left of the step before
        rows.start_step()
        for number, learned in enumerate(passes[step:]):
            source = rows.source("all", stream, model.tasks)
            assert source.first == (number == 0)
            rows.write(source, number, learned)
            rows.reached(source, number)
        assert not rows.solve(Graphs(torch.device("cpu")))
        found = {one.weight: one.gradient for one in rows.combined(torch.tensor(rows.weights), {})}
        assert set(found) == set(layer)
        for n, parameter in enumerate(layer):
            torch.testing.assert_close(found[parameter], sum(learned[n].gradient for learned in passes[step:]))


def test_a_gradient_that_is_not_finite_is_named(session: Any) -> None:
    model = session.model
    rows = rows_of(session, POLICIES["mgda"](CONTEXT))
    for task in ("one", "two"):
        stream = session.feed.next_batch([Draw(task, 2)], static_shape=True).together
        learned = random_gradients(list(model.encoder.layers.parameters()))
        if task == "two":
            learned[0].gradient.view(-1)[0] = torch.inf
        source = rows.source("losses", stream, model.tasks)
        rows.write(source, task, learned)
        rows.reached(source, task)
    assert rows.solve(Graphs(torch.device("cpu"))) == ["two"]


def test_every_parameter_starts_at_a_wide_boundary(session: Any) -> None:
    rows = rows_of(session, POLICIES["gem"](CONTEXT), penalties=True)
    assert all(start % ALIGNMENT == 0 for start in rows.start.values())
    assert len(rows.flat_RP) == 3
    assert len(rows_of(session, POLICIES["a_gem"](CONTEXT), penalties=True).flat_RP) == 4
