"""Gradients made beside a backward pass: the same ones, and only where nothing uses them before they are there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polytask.kernels import side_stream as beside
from polytask.kernels.one_product import one_product
from polytask.kernels.side_stream import Branch, side_stream


class FakeStream:
    """Writes down who waits for whom, where there is no CUDA."""

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
    found: list[str] = []
    here = FakeStream("here", found)
    names = iter(["side", "branch"])
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream(next(names), found))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: here)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(beside, "_sides", {})
    return found


def of(x: Tensor, *maps: nn.Linear) -> Tensor:
    return one_product(x, [m.weight for m in maps], [m.bias for m in maps])


def two_layers() -> tuple[nn.Linear, nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(8, 8), nn.Linear(8, 8), torch.randn(5, 8)


def test_weights_gradients_are_left_aside_and_waited_for_at_the_end(log: list[str]) -> None:
    one, two, x = two_layers()
    loss = of(of(x, one), two).square().sum()
    expected = torch.autograd.grad(loss, [*one.parameters(), *two.parameters()], retain_graph=True)
    with side_stream(torch.device("cuda"), True):
        loss.backward()
    left = ["side waits for here", "on side", "off side"]
    assert log == [*left, *left, "here waits for side"]
    assert all(torch.equal(p.grad, g) for p, g in zip([*one.parameters(), *two.parameters()], expected, strict=True))


def test_what_does_not_learn_leaves_nothing(log: list[str]) -> None:
    one, two, x = two_layers()
    two.requires_grad_(False)
    with side_stream(torch.device("cuda"), True):
        of(of(x, one), two).sum().backward()
    assert log.count("on side") == 1


def test_a_weight_used_twice_is_waited_for(log: list[str]) -> None:
    one, _, x = two_layers()
    loss = of(of(x, one), one).square().sum()
    with side_stream(torch.device("cuda"), True):
        loss.backward()
    assert log == ["side waits for here", "on side", "off side", "here waits for side", "here waits for side"]


def test_what_goes_on_from_a_weight_is_not_left_aside(log: list[str]) -> None:
    one, two, x = two_layers()
    loss = of(x, one).sum()
    weight = one.weight
    del one.weight
    one.weight = weight * 2  # whose gradient is used right away
    loss = of(x, one).sum() + of(x, two).sum()
    with side_stream(torch.device("cuda"), True):
        loss.backward()
    assert log.count("on side") == 1


@pytest.mark.parametrize("maps", [1, 3])
def test_a_gradient_becomes_the_weights_as_it_is(monkeypatch: pytest.MonkeyPatch, maps: int) -> None:
    """Were it copied, the copy would be made on the wrong stream before the gradient is there."""
    linears = [nn.Linear(8, 8) for _ in range(maps)]
    made: list[int] = []

    def kept(weights: Any, run: Any, *_: Any) -> Any:
        grads = run()
        made.extend(g.data_ptr() for g in grads)
        return grads

    monkeypatch.setattr("polytask.kernels.one_product.defer_gradients", kept)
    of(torch.randn(5, 8, requires_grad=True), *linears).sum().backward()
    parameters = [*(m.weight for m in linears), *(m.bias for m in linears)]
    assert [p.grad.data_ptr() for p in parameters if p.grad is not None] == made


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_same_bits_as_without() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    maps = [nn.Linear(768, 768, device=device) for _ in range(12)]
    x = torch.randn(900, 768, device=device)

    def run(worth_it: bool) -> list[Tensor]:
        h = x
        for m in maps:
            m.zero_grad()
            h = of(h, m).tanh()
        with side_stream(device, worth_it):
            h.square().sum().backward()
        return [p.grad.clone() for m in maps for p in m.parameters() if p.grad is not None]

    expected = run(False)
    for _ in range(5):
        assert all(torch.equal(one, two) for one, two in zip(run(True), expected, strict=True))


def test_a_branch_is_begun_joined_and_waited_for(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with side_stream(torch.device("cuda"), True):
        branch = Branch(x, worth_it=True)
        assert branch.run(lambda: x + 1) is not None
        log.append("the layer")
        branch.joined()
        plain = Branch(x, worth_it=False)
        plain.run(lambda: None)
        plain.joined()
    begun = ["branch waits for here", "on branch", "off branch"]
    assert log == [*begun, "the layer", "here waits for branch", "here waits for branch"]
    log.clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with side_stream(torch.device("cuda"), True):
        Branch(x, worth_it=True).run(lambda: None)
    Branch(x, worth_it=True).run(lambda: None)
    assert log == []


def test_a_pass_that_fails_leaves_nothing_behind(log: list[str]) -> None:
    """Its weights are not taken for ones that were used before."""
    one, two, x = two_layers()

    def failing() -> None:
        with side_stream(torch.device("cuda"), True):
            of(of(x, one), two).sum().backward()
            raise RuntimeError("no graph")

    with pytest.raises(RuntimeError, match="no graph"):
        failing()
    log.clear()
    with side_stream(torch.device("cuda"), True):
        of(of(x, one), two).sum().backward()
    assert log.count("on side") == 2


def test_where_nothing_was_left_aside_nothing_is_waited_for(log: list[str]) -> None:
    """A graph that is being captured would not take it."""
    with side_stream(torch.device("cuda"), True):
        pass
    assert log == []


def test_where_it_is_not_worth_it_nothing_happens(log: list[str]) -> None:
    one, _, x = two_layers()
    for device, worth_it in ((torch.device("cpu"), True), (torch.device("cuda"), False)):
        with side_stream(device, worth_it):
            of(x, one).sum().backward()
    assert log == []
