"""Every optimizer of the table: no update without a gradient, resumable, finds a minimum, checks its options; and its
captured update equals its definition.

What a new one needs: the options `lr` and `weight_decay`, which training sets for each group of parameters. Any other
option, and what is kept of a parameter, is its own matter; options that others have too are tested by their name.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.build import option
from polytask.contracts import optimizers as contract
from polytask.contracts.optimizers import gradients, named_groups, run, start, through_state_dict
from polytask.kernels.updates import UPDATES, Learned, Table, Update, update_for
from polytask.methods import options_of
from polytask.optim import OPTIMIZERS
from polytask.settings import MethodChoice
from polytask.training import checkpoint as ckpt
from polytask.types import UserError

# In addition to the defaults: options that change the formula.
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OPTIMIZERS),
    ("adamw", {"correction": "efficient"}),
    ("lamb", {"clamp": None}),
    ("qhadam", {"nus": (0.5, 0.9)}),
]
IDS = [f"{name}-{'-'.join(options)}" if options else name for name, options in CASES]


@pytest.mark.parametrize("holds", contract.PROPERTIES, ids=lambda function: function.__name__)
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_the_contract(name: str, options: dict[str, Any], holds: Callable[[contract.Method], None]) -> None:
    holds(partial(OPTIMIZERS[name], **options))


def through_checkpoint(before: torch.optim.Optimizer, after: torch.optim.Optimizer, folder: Path) -> None:
    tensors = ckpt.optimizer_tensors(before)
    ckpt.write_checkpoint(folder / "step-9", ckpt.Checkpoint({"optimizer": tensors}, {}))
    ckpt.load_optimizer_tensors(after, ckpt.read_checkpoint(folder / "step-9").tensors["optimizer"])


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_a_checkpoint_resumes_bit_identical(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    method = partial(OPTIMIZERS[name], **options)
    contract.a_saved_state_resumes_bit_identical(method, partial(through_checkpoint, folder=tmp_path))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_groups_rate_and_decay_are_declared(name: str) -> None:
    """The groups are created before the optimizer, from the defaults of its constructor."""
    defaults = OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)]).defaults
    missing = {"lr", "weight_decay"} - {entry.name for entry in options_of(OPTIMIZERS[name])}
    assert not missing, f"{name} needs the options {missing}: training sets them for each group of parameters"
    for field in ("lr", "weight_decay"):
        declared = option("optimizer", MethodChoice(name), field, "here")
        assert isinstance(declared, float)
        assert declared == defaults[field]


WRONG: dict[str, list[Any]] = {
    "lr": [-1.0, float("nan")],
    "eps": [-1e-8],
    "weight_decay": [-0.1],
    "betas": [(0.9, 1.0), (-0.1, 0.9), [0.9]],
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_wrong_options_are_named(name: str) -> None:
    has = {entry.name for entry in options_of(OPTIMIZERS[name])}
    for field, values in WRONG.items():
        for value in values if field in has else []:
            with pytest.raises(UserError, match=f"{name}: {field} must "):
                OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)], **{field: value})


WITH_BETAS = [name for name, method in OPTIMIZERS.items() if any(entry.name == "betas" for entry in options_of(method))]


@pytest.mark.parametrize("name", WITH_BETAS)
def test_betas_may_be_a_list_as_a_recipe_gives_it(name: str) -> None:
    assert OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)], betas=[0.8, 0.9]).defaults["betas"] == (0.8, 0.9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_rate_is_the_second_positional_argument(name: str) -> None:
    """As of torch's optimizers."""
    assert OPTIMIZERS[name]([torch.zeros(1, requires_grad=True)], 0.3).defaults["lr"] == 0.3


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_rate_may_be_a_tensor(name: str, shape: tuple[int, ...]) -> None:
    """And is changed by a schedule in place."""
    ends = []
    for rate in (0.25, torch.full(shape, 0.25)):
        params = start()
        optimizer = OPTIMIZERS[name](params, lr=rate)
        run(optimizer, params, list(gradients(5)))
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        run(optimizer, params, list(gradients(5)))
        ends.append(params)
    for one, two in zip(*ends, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError):
        OPTIMIZERS[name](start(), lr=torch.ones(2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_gradients_are_refused_before_anything_moves(name: str) -> None:
    words, dense = torch.nn.Embedding(5, 3, sparse=True), torch.ones(2, requires_grad=True)
    optimizer = OPTIMIZERS[name]([{"params": [dense]}, {"params": words.parameters()}], lr=0.1)
    (words(torch.tensor([1, 1, 2])).sum() + dense.sum()).backward()
    before = words.weight.detach().clone()
    with pytest.raises((UserError, RuntimeError), match="sparse"):
        optimizer.step()
    assert torch.equal(words.weight, before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_all_at_once_on_a_gpu_is_one_by_one_on_the_cpu(name: str, options: dict[str, Any]) -> None:
    steps = list(gradients(200))
    ends = []
    for device in ("cpu", "cuda"):
        params = start(device)
        run(OPTIMIZERS[name](named_groups(params), **options), params, steps)
        ends.append([parameter.detach().cpu() for parameter in params])
    for one, two in zip(*ends, strict=True):
        torch.testing.assert_close(one, two, atol=2e-5, rtol=2e-5)


# --- updates that can be captured: the same steps, with rates and counts on the device --------------------------------
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
# One pass needs a GPU or Triton's interpreter, which runs in a process of its own.
FORMS = [
    *([("one pass", "cpu")] if INTERPRETED else [("plain", "cpu")]),
    *(pytest.param((form, "cuda"), marks=on_cuda) for form in ("one pass", "plain")),
]
LARGER: list[tuple[int, ...]] = [(35, 40), (11,), (3, 2, 2), (), (8,), (4, 4)]
"""More than one piece; numbers of elements that are multiples of four and not; the last has no gradient, ever."""


@pytest.mark.slow
def test_updates_in_one_pass_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__, "-k", "an_update_is_the_definition")


@dataclass
class Inputs:
    """What a step gets: the gradients of some parameters, a learning rate factor, and what is done to the gradients."""

    grads: list[Tensor | None]
    schedule: float
    divisor: float | None
    found_inf: bool


def inputs(steps: int, device: str) -> Iterator[Inputs]:
    """Every second gradient in bf16; some steps have NaN gradients, which must change nothing."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        size, found_inf = 10.0 ** (step % 5 - 3), step % 8 == 3
        grads: list[Tensor | None] = []
        for k, shape in enumerate(LARGER):
            grad = size * torch.randn(shape, generator=generator) + (torch.nan if found_inf else 0.0)
            grads.append(grad.to(device, torch.bfloat16 if (k + step) % 2 else torch.float32))
        if step % 3 == 0:
            grads[1] = None
        if step % 7 < 4:
            grads[3] = None
        grads[-1] = None
        yield Inputs(grads, 1 - step / (2 * steps), 2.5 if step % 4 == 2 else None, found_inf)


class Captured:
    """An optimizer whose parameters an update changes."""

    def __init__(self, form: str, device: str, name: str, options: dict[str, Any]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.params = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in LARGER]
        named = [(f"parameter.{i}", parameter) for i, parameter in enumerate(self.params)]
        groups = [
            {"params": named[::2], "lr": 1e-2, "base_lr": 1e-2, "weight_decay": 0.1},
            {"params": named[1::2], "lr": 3e-3, "base_lr": 3e-3, "weight_decay": 0.0, "betas": (0.8, 0.99)},
        ]
        self.optimizer = OPTIMIZERS[name](groups, **options)
        self.copies = [parameter.detach().bfloat16() for parameter in self.params]
        self.form = form
        self.update = self.make_update()

    def make_update(self) -> Update | None:
        if self.form == "definition":
            return None
        update = update_for(self.optimizer, kernels=self.form == "one pass" and not INTERPRETED)
        return UPDATES[type(self.optimizer)](self.optimizer) if INTERPRETED else update

    def step(self, given: Inputs) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * given.schedule
        if self.update is None:
            if not given.found_inf:
                scaled = [None if g is None else g.float() / (given.divisor or 1) for g in given.grads]
                run(self.optimizer, self.params, [scaled])
            return
        device = self.params[0].device
        together = zip(self.params, given.grads, self.copies, strict=True)
        self.update.step(
            [Learned(parameter, grad, copy) for parameter, grad, copy in together if grad is not None],
            torch.tensor([group["lr"] for group in self.optimizer.param_groups], device=device),
            torch.tensor(float(given.found_inf), device=device),
            None if given.divisor is None else torch.tensor(given.divisor, device=device),
        )

    def compare(self, other: "Captured") -> None:
        for one, two in zip(self.params, other.params, strict=True):
            torch.testing.assert_close(one, two, rtol=5e-6, atol=1e-6)
            state, wanted = self.optimizer.state.get(one, {}), other.optimizer.state.get(two, {})
            assert state.keys() == wanted.keys()
            for field, value in wanted.items():
                largest = float(value.abs().max())
                # torch's own fused AdamW on CUDA rounds its squares differently.
                torch.testing.assert_close(state[field], value, rtol=2e-5, atol=1e-6 * largest, check_device=False)

    def check_copies(self) -> None:
        for copy_, parameter in zip(self.copies, self.params, strict=True):
            if INTERPRETED:  # it truncates, CUDA rounds
                torch.testing.assert_close(copy_.float(), parameter.detach(), rtol=2**-7, atol=0)
            else:
                assert torch.equal(copy_, parameter.detach().bfloat16())


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_an_update_is_the_definition(name: str, options: dict[str, Any], form: tuple[str, str]) -> None:
    kind, device = form
    ours, definition = Captured(kind, device, name, options), Captured("definition", device, name, options)
    for given in inputs(20, device):
        ours.step(given)
        definition.step(given)
        ours.compare(definition)
    assert {float(ours.optimizer.state[p]["step"]) for p in ours.params[:3]} == {17.0, 11.0}
    assert ours.params[-1] not in ours.optimizer.state
    ours.check_copies()


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_steps_and_updates_take_turns(
    name: str, options: dict[str, Any], form: tuple[str, str], tmp_path: Path
) -> None:
    """In one run, and from one run to the next: both keep their state in the optimizer."""
    kind, device = form
    definition = Captured("definition", device, name, options)
    ours = Captured("definition", device, name, options)
    for number, given in enumerate(inputs(16, device)):
        if number in (5, 10):
            before, ours = ours, Captured(kind if number == 5 else "definition", device, name, options)
            through = partial(through_checkpoint, folder=tmp_path) if number == 5 else through_state_dict
            through(before.optimizer, ours.optimizer)
            with torch.no_grad():
                for new, old in zip(ours.params, before.params, strict=True):
                    new.copy_(old)
        if number in (8, 13):
            ours.form = "definition" if number == 8 else kind
            ours.update = ours.make_update()
        ours.step(given)
        definition.step(given)
        ours.compare(definition)


@on_cuda
@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
@pytest.mark.parametrize("form", ["one pass", "plain"])
def test_a_graph_replays_an_update(name: str, options: dict[str, Any], form: str) -> None:
    """With the rates, divisor and found_inf of each step, which the graph reads on the device."""
    ours, definition = (Captured(kind, "cuda", name, options) for kind in (form, "definition"))
    update = ours.update
    assert update is not None
    rates, found_inf, divisor = torch.zeros(2, device="cuda"), torch.zeros((), device="cuda"), torch.ones(1).cuda()[0]
    static = [torch.zeros_like(parameter) for parameter in ours.params]

    def step(table: Table | None = None) -> None:
        # Gradients exist in a graph only, as in training.
        learned = [Learned(p, g * 1, c) for p, g, c in zip(ours.params, static, ours.copies, strict=True)]
        update.step(learned, rates, found_inf, divisor, table)

    graph, table = torch.cuda.CUDAGraph(), update.table()
    for number, given in enumerate(inputs(20, "cuda")):
        given.grads = [torch.full_like(p, 0.01) if g is None else g for p, g in zip(static, given.grads, strict=True)]
        for into, grad in zip(static, given.grads, strict=True):
            into.copy_(grad)
        rates.copy_(torch.tensor([1e-2, 3e-3]) * given.schedule)
        found_inf.fill_(given.found_inf)
        divisor.fill_(given.divisor or 1.0)
        if number == 1:
            with torch.cuda.graph(graph):
                step(table)
            table.send()
        step() if number == 0 else graph.replay()
        definition.step(given)
        ours.compare(definition)
    ours.check_copies()


def test_every_optimizer_that_declares_it_has_an_update() -> None:
    for name, method in OPTIMIZERS.items():
        assert isinstance(method, type)
        assert (method in UPDATES) >= bool(vars(method).get("capturable")), f"{name}: see kernels/updates"
