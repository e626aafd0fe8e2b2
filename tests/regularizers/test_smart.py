"""SMART: how much the word embeddings change in each mode, in which direction, and the penalty."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.kinds.classes import Classes
from polytask.kinds.table import KINDS
from polytask.losses.base import symmetric_distance
from polytask.model import MultiTaskModel
from polytask.regularizers.smart import Smart, largest_of_sequence


def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first noise is the same for every token, so that only the gradient makes a difference between them."""
    monkeypatch.setattr(torch, "randn_like", pattern)


def pattern(x_TD: Tensor) -> Tensor:
    return torch.linspace(-1, 2, x_TD.shape[-1], dtype=x_TD.dtype).expand_as(x_TD)


def test_paper_mode_moves_by_epsilon_at_most(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    forward = model.run(tiny_stream())
    for steps in (1, 3):
        smart = Smart(make_context(model), steps=steps)
        d_TD = smart.perturbation(model, forward)
        assert not d_TD.requires_grad
        assert d_TD.abs().max().item() == pytest.approx(1e-5)  # eta is larger, so the bound is reached
        largest_T1 = largest_of_sequence(d_TD, forward.stream.layout)
        assert (largest_T1 > 0.99e-5).all()  # in every sequence of every task, both texts of a pair included
        assert (d_TD.abs().amax(-1) > 0).all()


def test_a_step_that_stays_inside_is_eta_long(
    tiny_model: Any, tiny_stream: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sequence's largest step is eta: the gradient is scaled by its largest entry in the sequence."""
    same_noise(monkeypatch)
    model = tiny_model()
    forward = model.run(tiny_stream())
    smart = Smart(make_context(model), epsilon=1.0, eta=0.01)
    moved_TD = smart.perturbation(model, forward) - smart.ascent.sigma * pattern(forward.words_TD)
    torch.testing.assert_close(
        largest_of_sequence(moved_TD, forward.stream.layout), torch.full((len(moved_TD), 1), 0.01), rtol=1e-4, atol=0
    )


def test_paper_mode_is_the_papers_formula(
    tiny_model: Any, tiny_stream: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step for one sequence: up along the gradient, the dropout of the clean pass in the perturbed one."""
    same_noise(monkeypatch)
    model = tiny_model(dropout=0.3)
    stream = tiny_stream(["topic"], count=1)
    torch.manual_seed(3)
    forward = model.run(stream)
    start = 0.1 * pattern(forward.words_TD)
    moved = (forward.words_TD.detach() + start).requires_grad_()
    torch.manual_seed(3)
    p, q = model(stream, moved)["topic"].softmax(-1), forward.outputs["topic"].detach().softmax(-1)
    g = torch.autograd.grad((p * (p / q).log() + q * (q / p).log()).sum(), moved)[0]
    expected = (start + 0.2 * g / g.abs().max()).clamp(-0.3, 0.3)
    found = Smart(make_context(model), sigma=0.1, eta=0.2, epsilon=0.3).perturbation(model, forward)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_steps_follow_the_distance_of_a_kind_of_a_plug_in(
    tiny_model: Any, tiny_stream: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distance that is always 0 has no direction, so d stays the noise of the start."""

    class Same(Classes):
        name, form = "same outputs", "classes"

        def distance(self, one: Tensor, other: Tensor, fixed_targets: bool) -> Tensor:
            return 0 * super().distance(one, other, fixed_targets)

    same_noise(monkeypatch)
    monkeypatch.setitem(KINDS, "same outputs", Same())
    model = tiny_model()
    model.head("topic").labels = replace(model.head("topic").labels, own_kind="same outputs")
    forward = model.run(tiny_stream(["topic"]))
    d_TD = Smart(make_context(model), sigma=0.1, epsilon=1.0).perturbation(model, forward)
    torch.testing.assert_close(d_TD, 0.1 * pattern(forward.words_TD))


def test_mtdnn_mode_moves_every_token_by_about_one(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    forward = model.run(tiny_stream())
    for steps in (1, 2):
        d_TD = Smart(make_context(model), mode="mtdnn", steps=steps).perturbation(model, forward)
        largest_T = d_TD.abs().amax(-1)
        assert (largest_T <= 1).all()
        assert (largest_T > 0.85).all()  # m/(m + 1e-6), m the largest of 16 numbers of size 1e-5


def test_mtdnn_mode_is_the_authors_arithmetic(
    tiny_model: Any, tiny_stream: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lines with our l_s: the gradient of a sum over the batch, and a norm over each last dimension."""
    same_noise(monkeypatch)
    model = tiny_model(dropout=0.0)
    stream = tiny_stream(["alike"])
    forward = model.run(stream)
    embed, logits = forward.words_TD, forward.outputs["alike"]
    noise = (pattern(embed) * 1e-5).detach().requires_grad_()
    adv_loss = torch.nn.functional.mse_loss(model(stream, embed + noise)["alike"], logits.detach(), reduction="sum")
    (delta_grad,) = torch.autograd.grad(adv_loss, noise)
    delta_grad = noise + delta_grad * 10.0  # a step size at which the gradient matters
    expected = delta_grad / (delta_grad.abs().max(-1, keepdim=True)[0] + 1e-6)
    found = Smart(make_context(model), mode="mtdnn", eta=10.0).perturbation(model, forward)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(found, pattern(embed) / 2, atol=0.1)


@pytest.mark.parametrize("mode", ["paper", "mtdnn"])
def test_the_direction_is_worse_than_chance(mode: Any, tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """It is found by gradient ascent: random changes of the same size in every entry do less."""
    model = tiny_model().double()
    for task in model.tasks:
        model.head(task).pooling = "first"
    forward = model.run(tiny_stream())
    # In mtdnn mode the noise dominates the gradient unless the step is large.
    smart = Smart(make_context(model), mode=mode, eta=1e-3 if mode == "paper" else 10.0)
    d_TD = smart.perturbation(model, forward)

    def change(d_TD: Tensor) -> float:
        changed = model.rerun(forward, forward.words_TD + d_TD)
        return smart.output_distance(model, forward, changed.outputs).item()

    chance = [change(d_TD.abs() * torch.randn_like(d_TD).sign()) for _ in range(10)]
    assert change(d_TD) > 2 * sum(chance) / len(chance)


@pytest.mark.parametrize("mode", ["paper", "mtdnn"])
def test_filler_stays_and_changes_nothing(mode: Any, tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model(dropout=0.0)
    tight, filled = tiny_stream(), tiny_stream(token_budget=300)
    real = len(tight.token_ids_T)
    smart = Smart(make_context(model), mode=mode)
    found = []
    for stream in (tight, filled):
        forward = model.run(stream)
        torch.manual_seed(1)
        found.append(smart.perturbation(model, forward))
    assert len(found[1]) == 300 > real
    assert (found[1][real:] == 0).all()
    close = (found[1][:real] - found[0]).abs() <= 0.01 * found[0].abs().max()
    assert close.float().mean() > 0.99  # rounding can change the sign of a gradient near 0


@pytest.mark.parametrize("mode", ["paper", "mtdnn"])
def test_the_noise_of_an_example_does_not_depend_on_its_batch(
    mode: Any, tiny_model: Any, tiny_stream: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a second copy of the batch nor other tasks in the stream change the perturbation or the penalty."""
    same_noise(monkeypatch)
    model = tiny_model(dropout=0.0).double()
    for task in model.tasks:
        model.head(task).pooling = "first"
    smart = Smart(make_context(model, same=3.0), mode=mode)
    streams = {name: tiny_stream(**more) for name, more in {"once": {}, "twice": {"copies": 2}}.items()}
    passes = {name: model.run(stream) for name, stream in streams.items()}
    moved = {name: smart.perturbation(model, forward) for name, forward in passes.items()}
    for k, task in enumerate(model.tasks):
        once, twice = (moved[name][slice(*streams[name].layout.token_ranges[k])] for name in ("once", "twice"))
        torch.testing.assert_close(twice, torch.cat([once, once]), rtol=1e-3, atol=1e-9)
        alone = smart.perturbation(model, model.run(tiny_stream([task])))
        torch.testing.assert_close(alone, once, rtol=1e-3, atol=1e-9)
    penalties = [smart.penalty(model, forward).item() for forward in passes.values()]
    assert penalties[0] == pytest.approx(penalties[1], rel=1e-4)


def test_the_penalty_is_the_mean_divergence_of_two_passes_with_one_dropout(
    tiny_model: Any, tiny_stream: Any, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(dropout=0.3)
    stream = tiny_stream()
    smart = Smart(make_context(model, topic=2.0, alike=5.0), weight=0.5)
    d_TD = 0.1 * torch.randn(len(stream.token_ids_T), 16)
    monkeypatch.setattr(smart, "perturbation", lambda model, forward: d_TD)
    torch.manual_seed(3)
    forward = model.run(stream)
    found = smart.penalty(model, forward)
    torch.manual_seed(3)
    moved = model(stream, model.encoder.words(stream.token_ids_T) + d_TD)
    factors = {"topic": 2.0, "same": 1.0, "alike": 5.0}
    kinds = {"topic": "classes", "same": "yes_no", "alike": "score"}
    parts = [factors[t] * symmetric_distance(forward.outputs[t], moved[t], kinds[t]) for t in factors]  # type: ignore[arg-type]
    assert found.item() == pytest.approx(0.5 * sum(parts).item(), rel=1e-5)
    monkeypatch.setattr(smart, "perturbation", lambda model, forward: torch.zeros_like(d_TD))
    assert smart.penalty(model, forward).item() == 0  # a second pass with other dropout would not be the same


@pytest.mark.parametrize("size", [1e-5, 0.1])
def test_gradient_of_the_penalty(
    size: float,
    tiny_model: Any,
    tiny_stream: Any,
    make_context: Any,
    check_gradient: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On both sides: every weight affects the clean outputs and the perturbed ones."""
    model = tiny_model(dropout=0.1).double()
    for task in model.tasks:
        model.head(task).pooling = "first"  # the mean is taken in float32
    stream = tiny_stream(count=2)
    smart = Smart(make_context(model))
    d_TD = size * torch.randn(len(stream.token_ids_T), 16, dtype=torch.float64)
    monkeypatch.setattr(smart, "perturbation", lambda model, forward: d_TD)

    def penalty() -> Tensor:
        torch.manual_seed(4)
        return smart.penalty(model, model.run(stream))

    check_gradient(model, penalty)


@pytest.mark.parametrize(("task", "ratio"), [("topic", 2.0), ("same", 2.0), ("alike", 1.0)])
def test_the_gradient_by_the_answers_is_twice_that_of_fixed_targets(
    task: str, ratio: float, tiny_model: Any, tiny_stream: Any, make_context: Any
) -> None:
    """At the same point, with the same value: mt-dnn's is half of ours for classes and yes_no, and the same for scores.

    In the weights, the answers of both passes move together. With fixed targets the two gradients cancel then; the
    whole ones also have a part that makes the answers surer.
    """
    model = tiny_model(dropout=0.0).double()
    model.head(task).pooling = "first"
    values, gradients = [], []
    for fixed in (False, True):
        forward = model.run(tiny_stream([task]))
        torch.manual_seed(1)
        penalty = Smart(make_context(model), weight=3.0, fixed_targets=fixed).penalty(model, forward)
        values.append(penalty.item())
        gradients.append(torch.autograd.grad(penalty, forward.outputs[task])[0])
    assert 0 < values[0] == pytest.approx(values[1])
    near = 1e-3 * gradients[0].abs().max().item()
    torch.testing.assert_close(gradients[0], ratio * gradients[1], rtol=1e-3, atol=near)


def test_the_search_leaves_no_trace(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """No weight gets a gradient from it, and the penalty's own graph still exists afterwards."""
    model = tiny_model()
    forward = model.run(tiny_stream())
    smart = Smart(make_context(model), steps=2)
    smart.perturbation(model, forward)
    assert all(p.grad is None for p in model.parameters())
    (smart.penalty(model, forward) + forward.outputs["topic"].sum()).backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "pooler" not in n)


@pytest.mark.parametrize("mode", ["paper", "mtdnn"])
def test_a_constant_model_has_no_penalty(mode: Any, tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    """Its gradient is 0 everywhere, and what is divided by its norm stays finite."""
    model: MultiTaskModel = tiny_model()
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.zero_()
    forward = model.run(tiny_stream(token_budget=300))
    smart = Smart(make_context(model), mode=mode)
    assert torch.isfinite(smart.perturbation(model, forward)).all()
    penalty = smart.penalty(model, forward)
    penalty.backward()
    assert penalty.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_a_frozen_encoder_is_still_perturbed(tiny_model: Any, tiny_stream: Any, make_context: Any) -> None:
    model = tiny_model()
    model.encoder.requires_grad_(False).eval()
    forward = model.run(tiny_stream())
    assert not forward.words_TD.requires_grad
    smart = Smart(make_context(model), epsilon=1e-3)
    assert smart.perturbation(model, forward).abs().max().item() == pytest.approx(1e-3)
    smart.penalty(model, forward).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.heads.parameters() if p.ndim > 1)
