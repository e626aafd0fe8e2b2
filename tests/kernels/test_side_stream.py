"""Gradients on the side stream: the same ones, and only where nothing uses them before they are there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytask.kernels.one_product import one_product
from polytask.kernels.side_stream import Branch, SideStream

CUDA = torch.device("cuda")


class FakeStream:
    """Records which stream waits for which, without CUDA."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: "FakeStream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def __enter__(self) -> None:
        self.log.append(f"on {self.name}")

    def __exit__(self, *_: Any) -> None:
        self.log.append(f"off {self.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    main = FakeStream("main", lines)
    names = iter(["side", "branch"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream(next(names), lines))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    return lines


def product(x: Tensor, *maps: nn.Linear) -> Tensor:
    return one_product(x, [m.weight for m in maps], [m.bias for m in maps])


def two_layers() -> tuple[nn.Linear, nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(8, 8), nn.Linear(8, 8), torch.randn(5, 8)


def test_gradients_of_weights_are_deferred_and_waited_for_at_the_end(log: list[str]) -> None:
    one, two, x = two_layers()
    parameters = [*one.parameters(), *two.parameters()]
    expected = torch.autograd.grad(product(product(x, one), two).square().sum(), parameters)
    assert log == []
    with SideStream(CUDA).open(True):
        product(product(x, one), two).square().sum().backward()
    deferred = ["side waits for main", "on side", "off side"]
    assert log == [*deferred, *deferred, "main waits for side"]
    assert all(torch.equal(p.grad, g) for p, g in zip(parameters, expected, strict=True))


def test_a_backward_pass_after_the_end_is_not_deferred(log: list[str]) -> None:
    one, _, x = two_layers()
    with SideStream(CUDA).open(True):
        loss = product(x, one).sum()
    loss.backward()
    assert log == []
    assert one.weight.grad is not None


def test_frozen_weights_defer_nothing(log: list[str]) -> None:
    one, two, x = two_layers()
    two.requires_grad_(False)
    with SideStream(CUDA).open(True):
        product(product(x, one), two).sum().backward()
    assert log.count("on side") == 1


def test_a_weight_that_is_used_twice_is_waited_for(log: list[str]) -> None:
    one, _, x = two_layers()
    with SideStream(CUDA).open(True):
        product(product(x, one), one).square().sum().backward()
    assert log == ["side waits for main", "on side", "off side", "main waits for side", "main waits for side"]


def test_the_gradient_of_a_weight_that_is_not_a_leaf_is_not_deferred(log: list[str]) -> None:
    one, two, x = two_layers()
    weight = one.weight
    del one.weight
    one.weight = weight * 2  # its gradient is used right away
    with SideStream(CUDA).open(True):
        (product(x, one).sum() + product(x, two).sum()).backward()
    assert log.count("on side") == 1


@pytest.mark.parametrize("maps", [1, 3])
def test_a_gradient_becomes_the_weights_gradient_without_a_copy(monkeypatch: pytest.MonkeyPatch, maps: int) -> None:
    """A copy would be made on the main stream before the gradient is computed."""
    linears = [nn.Linear(8, 8) for _ in range(maps)]
    computed: list[int] = []

    def keep(side: Any, weights: Any, run: Any, *_: Any) -> Any:
        grads = run()
        computed.extend(g.data_ptr() for g in grads)
        return grads

    monkeypatch.setattr("polytask.kernels.one_product.defer_gradients", keep)
    product(torch.randn(5, 8, requires_grad=True), *linears).sum().backward()
    parameters = [*(m.weight for m in linears), *(m.bias for m in linears)]
    assert [p.grad.data_ptr() for p in parameters if p.grad is not None] == computed


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_gradients_are_bit_identical() -> None:
    torch.manual_seed(0)
    maps = [nn.Linear(768, 768, device=CUDA) for _ in range(12)]
    x = torch.randn(900, 768, device=CUDA)
    side = SideStream(CUDA)

    def run(worth_it: bool) -> list[Tensor]:
        h = x
        with side.open(worth_it):
            for m in maps:
                m.zero_grad()
                h = product(h, m).tanh()
            h.square().sum().backward()
        return [p.grad.clone() for m in maps for p in m.parameters() if p.grad is not None]

    expected = run(False)
    for _ in range(5):
        assert all(torch.equal(one, two) for one, two in zip(run(True), expected, strict=True))


def test_a_branch_is_started_joined_and_waited_for(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x, side = torch.zeros(3), SideStream(CUDA)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with side.open(True):
        branch = Branch(worth_it=True)
        assert branch.run(lambda: x + 1) is not None
        log.append("the layer")
        branch.join()
        plain = Branch(worth_it=False)
        plain.run(lambda: None)
        plain.join()
    started = ["branch waits for main", "on branch", "off branch"]
    assert log == [*started, "the layer", "main waits for branch", "main waits for branch"]
    log.clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with side.open(True):
        Branch(worth_it=True).run(lambda: None)
    Branch(worth_it=True).run(lambda: None)
    assert log == []


def test_a_pass_that_fails_leaves_nothing_behind(log: list[str]) -> None:
    """Its weights do not count as used before."""
    one, two, x = two_layers()
    side = SideStream(CUDA)

    def failing() -> None:
        with side.open(True):
            product(product(x, one), two).sum().backward()
            raise RuntimeError("no graph")

    with pytest.raises(RuntimeError, match="no graph"):
        failing()
    log.clear()
    with side.open(True):
        product(product(x, one), two).sum().backward()
    assert log.count("on side") == 2


def test_a_stream_without_work_is_not_waited_for(log: list[str]) -> None:
    """A graph that is being captured would refuse it."""
    with SideStream(CUDA).open(True):
        pass
    assert log == []


def test_where_it_is_not_worth_it_nothing_happens(log: list[str]) -> None:
    one, _, x = two_layers()
    for device, worth_it in ((torch.device("cpu"), True), (CUDA, False)):
        with SideStream(device).open(worth_it):
            product(x, one).sum().backward()
    assert log == []
