"""Updates in one pass: AdamW's against torch's, under Triton's interpreter and on CUDA; and which optimizers have one.

That every optimizer's update equals its definition: tests/contracts/test_optimizers.py.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from polytask.kernels.triton_support import TRITON
from polytask.kernels.updates import UPDATES, Learned, adamax, adamw, kernel, lamb, lion, norm_of, one_pass, update_for
from polytask.kernels.updates import qhadam as qh
from polytask.kernels.updates.adamw import AdamWUpdate
from polytask.kernels.updates.plain import PlainUpdate
from polytask.optim import OPTIMIZERS
from polytask.optim.fused_adamw import FusedAdamW

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
on_cuda = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=on_cuda)]
SHAPES = [(1,), (7,), (1000,), (50, 100), (2048,), (17, 300)]
NEAR = {"rtol": 2e-6, "atol": 2e-7}


@pytest.mark.slow
def test_under_the_interpreter(under_interpreter: Any) -> None:
    under_interpreter(__file__)


def make(device: str, fused: bool = True, shapes: Any = SHAPES) -> tuple[list[Tensor], torch.optim.AdamW]:
    """Groups with options of their own."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]
    groups = [
        {"params": weights[::2], "lr": 1e-2, "weight_decay": 0.1},
        {"params": weights[1::2], "lr": 3e-3, "weight_decay": 0.0, "betas": (0.8, 0.99), "eps": 1e-5},
    ]
    return weights, torch.optim.AdamW(groups, fused=fused)


def rates_of(optimizer: torch.optim.Optimizer, device: str) -> Tensor:
    return torch.tensor([group["lr"] for group in optimizer.param_groups], device=device)


def gradients(device: str, steps: int, shapes: Any = SHAPES) -> Iterator[list[Tensor | None]]:
    """Of changing size; every second one in bf16, and in some steps two have none."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        found: list[Tensor | None] = [10.0 ** (step % 4 - 3) * torch.randn(s, generator=generator) for s in shapes]
        for k, gradient in enumerate(found):
            assert gradient is not None
            found[k] = gradient.to(device, torch.bfloat16 if k // 2 % 2 else torch.float32)
        if step % 3 == 1:
            found[1] = found[-1] = None
        yield found


def of(device: str, value: float) -> Tensor:
    return torch.tensor(value, device=device)


def copies_of(weights: list[Tensor]) -> list[Tensor]:
    return [weight.detach().bfloat16() for weight in weights]


def take(weights: list[Tensor], grads: list[Tensor | None], copies: Any = None) -> list[Learned]:
    copies = copies or [None] * len(weights)
    return [Learned(w, g, c) for w, g, c in zip(weights, grads, copies, strict=True) if g is not None]


def torchs_step(optimizer: torch.optim.Optimizer, weights: list[Tensor], grads: list[Tensor | None]) -> None:
    for weight, gradient in zip(weights, grads, strict=True):
        weight.grad = None if gradient is None else gradient.float()
    optimizer.step()


def check_same(ours: Any, theirs: Any) -> None:
    (mine, one), (reference, two) = ours, theirs
    for weight, other in zip(mine, reference, strict=True):
        torch.testing.assert_close(weight, other, **NEAR)
        assert one.state[weight].keys() == two.state[other].keys()
        for name, value in two.state[other].items():
            found = one.state[weight][name]
            assert (found.dtype, found.device, found.shape) == (value.dtype, weight.device, value.shape)
            off = 2e-7 * float(value.abs().max())  # moments are sums of what is larger than they are
            # torch's kernel for CUDA works 1 - .999 out in float32, where it is off in the fifth digit.
            near = 2e-5 if found.is_cuda else 2e-6
            torch.testing.assert_close(found, value, rtol=near, atol=off, check_device=False)


def check_copies(weights: list[Tensor], copies: list[Tensor]) -> None:
    for weight, copy in zip(weights, copies, strict=True):
        if INTERPRETED:  # which cuts where CUDA rounds
            torch.testing.assert_close(copy.float(), weight.detach(), rtol=2**-7, atol=0)
        else:
            assert torch.equal(copy, weight.detach().bfloat16())


@pytest.mark.parametrize("device", DEVICES)
def test_steps_are_torchs(device: str) -> None:
    ours, theirs = make(device), make(device, fused=device == "cuda")
    moves, copies = AdamWUpdate(ours[1]), copies_of(ours[0])
    for step, grads in enumerate(gradients(device, 7)):
        for group in [*ours[1].param_groups, *theirs[1].param_groups]:
            group["lr"] *= 1 - 0.1 * step
        moves.step(take(ours[0], grads, copies), rates_of(ours[1], device), of(device, 0.0))
        torchs_step(theirs[1], theirs[0], grads)
        check_same(ours, theirs)
    counts = {int(ours[1].state[weight]["step"]) for weight in ours[0]}
    assert counts == {5, 7}
    check_copies(ours[0], copies)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beta2", [0.0, 0.9, 0.999, 0.9999])
def test_a_first_step_goes_as_far_as_the_rate(device: str, beta2: float) -> None:
    """With next to no eps, m^ / sqrt(v^) of one gradient is its sign: not if 1 - beta2 were worked out in float32."""
    weight = torch.zeros(5, device=device, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], lr=0.5, betas=(0.9, beta2), eps=1e-30, fused=True)
    gradient = torch.tensor([1e-3, -2.0, 3e-8, 1.0, -70.0], device=device)
    AdamWUpdate(optimizer).step([Learned(weight, gradient)], of(device, 0.5)[None], of(device, 0.0))
    torch.testing.assert_close(weight.detach(), -0.5 * gradient.sign(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_over_a_divisor(device: str) -> None:
    ours, theirs = make(device), make(device, fused=False)
    moves = AdamWUpdate(ours[1])
    for number, grads in enumerate(gradients(device, 2)):
        divisor = 1 + 2.7 * number
        before = [None if g is None else g.clone() for g in grads]
        moves.step(take(ours[0], grads), rates_of(ours[1], device), of(device, 0.0), of(device, divisor))
        torchs_step(theirs[1], theirs[0], [None if g is None else g.float() / divisor for g in grads])
        assert all(g is None or torch.equal(g, old) for g, old in zip(grads, before, strict=True) if old is not None)
        check_same(ours, theirs)


@pytest.mark.parametrize("device", DEVICES)
def test_with_found_nothing_moves(device: str) -> None:
    ours, theirs = make(device), make(device, fused=False)
    moves, copies = AdamWUpdate(ours[1]), copies_of(ours[0])
    rates = rates_of(ours[1], device)
    first, second = gradients(device, 2)
    spoiled = [None if g is None else torch.full_like(g, torch.nan) for g in first]
    before = [weight.detach().clone() for weight in ours[0]], [copy.clone() for copy in copies]
    moves.step(take(ours[0], spoiled, copies), rates, of(device, 1.0), of(device, torch.nan))
    for now, then in zip([*ours[0], *copies], [*before[0], *before[1]], strict=True):
        assert torch.equal(now.detach(), then)
    for weight in ours[0]:
        assert all(not value.any() for value in ours[1].state[weight].values())
    for grads in (first, second):
        moves.step(take(ours[0], grads, copies), rates, of(device, 0.0))
        torchs_step(theirs[1], theirs[0], grads)
    after = [weight.detach().clone() for weight in ours[0]]
    moves.step(take(ours[0], spoiled, copies), rates, of(device, 1.0))
    assert all(torch.equal(weight.detach(), then) for weight, then in zip(ours[0], after, strict=True))
    check_same(ours, theirs)
    check_copies(ours[0], copies)


@pytest.mark.parametrize("device", DEVICES)
def test_wherever_gradients_lie(device: str) -> None:
    """In the middle of other tensors, and in another order than the weights."""
    ours, theirs = make(device), make(device)
    (grads,) = gradients(device, 1)
    odd: list[Tensor | None] = []
    for k, gradient in enumerate(grads):
        assert gradient is not None
        shifted = torch.cat([gradient.flatten()[:1].repeat(1 + k % 3), gradient.flatten()])[1 + k % 3 :]
        odd.append(gradient.T.contiguous().T if gradient.ndim == 2 else shifted.view(gradient.shape))
    for (weights, optimizer), given in ((ours, odd), (theirs, grads)):
        AdamWUpdate(optimizer).step(take(weights, given), rates_of(optimizer, device), of(device, 0.0))
    for one, two in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(one, two, **NEAR)


@pytest.mark.parametrize("device", DEVICES)
def test_how_tensors_are_cut_changes_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for piece, tile, rows in ((2048, 512, 128), (256, 64, 2), (4096, 16, 4)):
        monkeypatch.setattr(one_pass, "PIECE", piece)
        monkeypatch.setattr(one_pass, "TILE", tile)
        monkeypatch.setattr(one_pass, "ROWS", rows)
        weights, optimizer = make(device)
        (grads,) = gradients(device, 1)
        AdamWUpdate(optimizer).step(take(weights, grads), rates_of(optimizer, device), of(device, 0.0))
        ends.append(weights)
    for other in ends[1:]:
        for one, two in zip(ends[0], other, strict=True):
            torch.testing.assert_close(one, two, **NEAR)


@pytest.mark.parametrize("device", DEVICES)
def test_torch_can_go_on_and_be_gone_on_from(device: str) -> None:
    """The state is torch's: through its `step` and back, and through a state dictionary into a new optimizer."""
    ours, theirs = make(device), make(device)
    moves = AdamWUpdate(ours[1])
    for step, grads in enumerate(gradients(device, 6)):
        if step == 4:
            weights, optimizer = make(device)
            optimizer.load_state_dict(ours[1].state_dict())
            with torch.no_grad():
                for new, old in zip(weights, ours[0], strict=True):
                    new.copy_(old)
            ours, moves = (weights, optimizer), AdamWUpdate(optimizer)
        if step % 2:
            torchs_step(ours[1], ours[0], grads)
        else:
            moves.step(take(ours[0], grads), rates_of(ours[1], device), of(device, 0.0))
        torchs_step(theirs[1], theirs[0], grads)
    check_same(ours, theirs)


def test_the_norm_of_tensors_of_two_dtypes_is_in_float32() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1000), torch.randn(20, 30).bfloat16(), torch.tensor(3.0), torch.randn(7).bfloat16()]
    wanted = torch.cat([t.double().flatten() for t in tensors]).norm()
    torch.testing.assert_close(norm_of(tensors).double(), wanted, rtol=1e-6, atol=0)


def test_which_optimizers_have_an_update() -> None:
    weights = [torch.zeros(3, requires_grad=True)]
    assert update_for(torch.optim.AdamW(weights, fused=True)) is None, "not on the CPU"
    assert update_for(torch.optim.SGD(weights)) is None
    if torch.cuda.is_available() and not INTERPRETED:
        there = [torch.zeros(3, device="cuda", requires_grad=True)]
        for name, make_optimizer in OPTIMIZERS.items():
            assert (update_for(make_optimizer(there)) is not None) == TRITON, name
        assert (update_for(torch.optim.AdamW(there, fused=True)) is not None) == TRITON
        assert update_for(torch.optim.AdamW(there)) is None
        assert update_for(torch.optim.AdamW(there, fused=True, amsgrad=True)) is None
        assert update_for(torch.optim.Adam(there, fused=True)) is None
        assert update_for(torch.optim.AdamW([there[0].detach().double()], fused=True)) is None
        assert update_for(OPTIMIZERS["lion"]([there[0], torch.zeros(3)])) is None


class Slower(FusedAdamW):
    """A step of its own."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["lr"] *= 0.5
        return super().step(closure)


class Renamed(FusedAdamW):
    """No step of its own, and says so."""

    plain_adamw = True


def test_a_subclass_does_not_inherit_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytask.kernels.updates.kernels_run", lambda _: True)
    weights = [torch.zeros(3, requires_grad=True)]
    for optimizer in (FusedAdamW(weights), torch.optim.AdamW(weights, fused=True), Renamed(weights)):
        assert isinstance(update_for(optimizer), AdamWUpdate)
    assert update_for(Slower(weights)) is None
    for method in OPTIMIZERS.values():
        assert isinstance(method, type)
        assert type(update_for(method(weights))) is UPDATES[method]
        assert isinstance(update_for(method(weights), kernels=False), PlainUpdate)
        subclass = type("Subclass", (method,), {})
        assert update_for(subclass(weights)) is None
        assert update_for(subclass(weights), kernels=False) is None


def test_adamw_keeps_its_update_when_it_loads_a_state_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_state_dict` replaces the groups' options: torch's own AdamW is not fused by default."""
    monkeypatch.setattr("polytask.kernels.updates.kernels_run", lambda _: True)
    weights = [torch.zeros(3, requires_grad=True)]
    for name, fits in (("adamw", True), ("fused_adamw", False)):
        optimizer = OPTIMIZERS[name](weights)
        optimizer.load_state_dict(torch.optim.AdamW(weights).state_dict())
        assert (update_for(optimizer) is not None) == fits


FORMULAS: dict[str, tuple[Any, int, bool, bool]] = {
    "adamw": (adamw.adamw, 2, True, True),
    "adamax": (adamax.adamax, 2, True, True),
    "qhadam": (qh.qhadam, 2, True, True),
    "lion": (lion.lion, 1, True, True),
    "lamb's moments": (lamb.lamb_moments, 2, True, False),
    "lamb's weights": (lamb.lamb_weights, 2, False, True),
}
KINDS = {"table": "*i64", "chosen": "*fp64", "tensors": "i32", "pieces": "*i32", "firsts": "*i32", "count": "i32"}
SHAPE = {"COLUMNS": one_pass.COLUMNS, "NUMBERS": one_pass.NUMBERS}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_compile_to_wide_loads(ptx: Any, name: str) -> None:
    """Needs no device. The interpreter ignores types and hints."""
    formula, states, moments, weight = FORMULAS[name]
    options = {"STATES": states, "MOMENTS": moments, "WEIGHT": weight, "PIECE": one_pass.PIECE, "TILE": one_pass.TILE}
    code = ptx(kernel.update_pieces, KINDS, num_warps=one_pass.WARPS, FORMULA=formula, **options, **SHAPE)
    fours = one_pass.PIECE // (32 * one_pass.WARPS) // 4
    # Weight, states and the gradient in float32; the gradient in bf16.
    assert len(re.findall(r"ld\.global\.v4\.b32", code)) == (1 + states + moments) * fours
    assert len(re.findall(r"ld\.global\.v2\.b32", code)) == moments * fours
    assert len(re.findall(r"st\.global\.v4\.b32", code)) == (weight + moments * states) * fours
    assert len(re.findall(r"st\.global\.v2\.b32", code)) == weight * fours
    moves_between_threads = "shared" in code.replace(".shared::", "")
    assert moves_between_threads == (not weight), "only sums need the other threads' numbers"


def test_the_other_kernels_compile(ptx: Any) -> None:
    sizes = {"OPTIONS": one_pass.OPTIONS, "EXTRAS": one_pass.EXTRAS, "ROWS": one_pass.ROWS}
    ptx(kernel.count_steps, KINDS, num_warps=4, DIVIDES=True, **sizes, **SHAPE)
    ptx(lamb.ratios, KINDS, num_warps=8, BLOCK=lamb.BLOCK, **SHAPE)


class Recording(TorchDispatchMode):
    """Records operations on the CPU, and repeats them on the same memory without running any Python of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default, "a value is read"
        result = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for function, args, kwargs, result in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if old is not new:
                    old.copy_(new)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_recorded_plain_update_follows_rates_and_found_inf(name: str) -> None:
    ends = []
    for record in (False, True):
        weights = [torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), torch.ones(5, requires_grad=True)]
        optimizer = OPTIMIZERS[name]([{"params": weights[:1]}, {"params": weights[1:]}])
        update = update_for(optimizer, kernels=False)
        assert update is not None
        learned = [Learned(weight, torch.zeros_like(weight), weight.detach().bfloat16()) for weight in weights]
        rates, found_inf, divisor = torch.zeros(2), torch.tensor(0.0), torch.tensor(1.0)
        recording = Recording()
        generator = torch.Generator().manual_seed(0)
        for step in range(6):
            for one in learned:
                one.gradient.copy_(torch.randn(one.gradient.shape, generator=generator))
            rates.copy_(torch.tensor([0.1, 0.2]) / (step + 1))
            found_inf.fill_(step == 4)
            divisor.fill_(1 + step / 2)
            if recording.calls:
                with torch.no_grad():
                    recording.replay()
            elif record and step == 1:
                with recording:
                    update.step(learned, rates, found_inf, divisor, update.table())
            else:
                update.step(learned, rates, found_inf, divisor)
        ends.append([*weights, *(one.copy for one in learned), *(optimizer.state[w]["step"] for w in weights)])
    assert float(ends[0][-1]) == 5
    for one, two in zip(*ends, strict=True):
        assert torch.equal(one, two)


def recorded(run: Callable[[], None]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@on_cuda
def test_a_graph_replays_it_with_other_numbers() -> None:
    ours, theirs = make("cuda"), make("cuda")
    moves, copies = AdamWUpdate(ours[1]), copies_of(ours[0])
    rates, found, divisor = rates_of(ours[1], "cuda"), of("cuda", 0.0), of("cuda", 1.0)
    steps = [grads for grads in gradients("cuda", 9) if grads[1] is not None]
    given = [torch.zeros_like(gradient) for gradient in steps[0] if gradient is not None]

    def step(grads: list[Tensor | None], value: float, stays: bool, scale: float) -> None:
        for into, gradient in zip(given, grads, strict=True):
            assert gradient is not None
            into.copy_(gradient)
        rates.fill_(value)
        found.fill_(stays)
        divisor.fill_(scale)
        if not stays:
            for group in theirs[1].param_groups:
                group["lr"] = value
            torchs_step(theirs[1], theirs[0], [None if g is None else g.float() / scale for g in grads])

    step(steps[0], 1e-2, False, 1.0)
    moves.step(take(ours[0], list(given), copies), rates, found, divisor)  # the first one is never captured
    check_same(ours, theirs)
    table = moves.table()
    # What is made in a graph is known there alone: here, gradients, as in a step.
    graph = recorded(lambda: moves.step(take(ours[0], [g * 1 for g in given], copies), rates, found, divisor, table))
    table.send()
    check_same(ours, theirs)  # capturing moves nothing
    for grads, options in zip(steps[1:], [(1e-3, False, 1.0), (5e-3, True, 1.0), (5e-3, False, 3.0)] * 2, strict=False):
        step(grads, *options)
        graph.replay()
        check_same(ours, theirs)
        check_copies(ours[0], copies)


@on_cuda
def test_what_moves_for_the_first_time_is_not_captured() -> None:
    weights, optimizer = make("cuda")
    moves = AdamWUpdate(optimizer)
    (grads,) = gradients("cuda", 1)
    rates, found, table = rates_of(optimizer, "cuda"), of("cuda", 0.0), moves.table()
    with pytest.raises(RuntimeError, match="before a step that updates the same tensors"):
        recorded(lambda: moves.step(take(weights, grads), rates, found + 0, None, table))
    assert not optimizer.state
