"""Functions by key: on a CPU they run; second passes draw the numbers of the first."""

from typing import Any

import pytest
import torch
from torch import Tensor

from polytask.kernels.graphs import Graphs, SecondPassStates
from polytask.seeds import RandomState

CPU = torch.device("cpu")


def doubled(inputs: list[Tensor], table: Any, capturing: bool) -> Tensor:
    return 2 * inputs[0]


def test_on_a_cpu_every_call_runs() -> None:
    graphs = Graphs(CPU)
    for number in range(4):
        assert graphs.run("key", [torch.tensor(float(number))], doubled).item() == 2 * number
    assert graphs.reason is None
    assert [entry.graph for entry in graphs.entries.values()] == [None]
    graphs.clear()
    assert not graphs.entries


def test_second_passes_are_counted_and_draw_the_same_numbers() -> None:
    def body(inputs: list[Tensor], table: Any, capturing: bool) -> Tensor:
        before = RandomState(CPU)
        first = torch.rand(3)
        for _ in range(2):
            with before.replay():
                assert torch.equal(torch.rand(3), first)
        return torch.cat([first, torch.rand(3)])

    graphs = Graphs(CPU)
    torch.manual_seed(1)
    found = graphs.run("key", [], body)
    torch.manual_seed(1)
    assert torch.equal(found, torch.rand(6))  # a second pass leaves the generator where it was
    assert [entry.second_passes for entry in graphs.entries.values()] == [2]


def test_only_the_first_pass_of_a_captured_function_can_be_repeated() -> None:
    states = SecondPassStates(CPU)
    with states.open(capturing=True):
        RandomState(CPU)
        later = RandomState(CPU)
        with pytest.raises(RuntimeError, match="only the first pass"), later.replay():
            pass


def test_after_a_clear_graphs_have_a_pool_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch refuses a capture into a pool whose graphs are gone while a tensor still has memory of it."""
    handles = iter(range(5))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    graphs = Graphs(torch.device("cuda"))
    before = graphs._pool
    graphs.clear()
    assert graphs._pool != before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_after_a_clear_functions_are_captured_anew_while_a_result_lives() -> None:
    graphs = Graphs(torch.device("cuda"))
    kept = []
    for _ in range(2):
        for number in range(4):
            kept.append(graphs.run("key", [torch.tensor(float(number))], doubled))
            assert kept[-1].item() == 2 * number
        assert graphs.reason is None
        assert graphs.entries["key"].graph is not None
        graphs.clear()
