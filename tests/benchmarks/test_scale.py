"""The simulation of steps with many workers: its arithmetic, its workers from measurements, and the bytes of a step."""

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
TINY = ["encoder={layers: 1, hidden: 24, heads: 4, ffn: 48, positions: 32}", "max_length=16"]


@pytest.fixture(scope="module", autouse=True)
def _paths() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield


def module(name: str) -> Any:
    return importlib.import_module(name)


def link(latency: float = 1e-3, bandwidth: float = 1e9) -> Any:
    return module("scale_step").Link(latency, bandwidth)


# --- all-reduces ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("count", "seconds"), [(1, 0.0), (2, 1.002), (4, 1.506)])
def test_a_ring_as_computed_by_hand(count: int, seconds: float) -> None:
    assert module("scale_step").ring(link())(count, 1e9) == pytest.approx(seconds)


def test_the_bytes_of_a_ring_take_at_most_twice_as_long_as_the_tensor() -> None:
    reduce = module("scale_step").ring(link(latency=0))
    assert reduce(10**6, 1e9) == pytest.approx(2.0, rel=1e-5)
    assert reduce(2, 1e9) < reduce(8, 1e9) < reduce(512, 1e9) < 2.0


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.0), (2, 2.002), (8, 2.006), (9, 2.008)])
def test_a_tree_as_computed_by_hand(count: int, seconds: float) -> None:
    assert module("scale_step").tree(link())(count, 1e9) == pytest.approx(seconds)


def test_small_tensors_take_the_tree_and_large_ones_the_ring() -> None:
    step = module("scale_step")
    assert step.quickest(link())(512, 64) == step.tree(link())(512, 64)
    assert step.quickest(link())(8, 1e11) == step.ring(link())(8, 1e11)


def test_groups_are_summed_inside_and_then_between_machines() -> None:
    step = module("scale_step")
    fast, slow = link(1e-6, 1e11), link(1e-5, 1e9)
    grouped = step.in_groups(fast, slow, group=8)
    assert grouped(8, 1e8) == step.quickest(fast)(8, 1e8)
    assert grouped(16, 1e8) == pytest.approx(step.quickest(fast)(8, 1e8) + step.quickest(slow)(2, 1e8))
    assert grouped(512, 1e8) < step.ring(slow)(512, 1e8)


# --- parts and steps --------------------------------------------------------------------------------------------------
def test_the_longest_part() -> None:
    longest = module("scale_step").longest_part
    assert longest([1] * 8, 4) == 2
    assert longest([3, 1, 1, 1], 2) == 3
    assert longest([5, 7, 2], 1) == 14
    assert longest([5, 7, 2], 64) == 7
    lengths = [(7 * i) % 23 + 3 for i in range(200)]
    parts = [longest(lengths, count) for count in (1, 2, 8, 64, 200)]
    assert parts == sorted(parts, reverse=True)
    assert all(math.ceil(sum(lengths) / n) <= p for n, p in zip((1, 2, 8, 64, 200), parts, strict=True))


AT_ONCE = [(1.0, 1e8)]
"""All gradients in one message at the end of the backward pass."""


def test_one_worker_exchanges_nothing() -> None:
    step = module("scale_step")
    one = step.step_of(step.Worker(0.01, 1e-4, copy=1.0), step.ring(link()), 1, 1000, AT_ONCE)
    assert one.total == one.compute == pytest.approx(0.11)


def test_a_step_of_two_workers_as_computed_by_hand() -> None:
    step = module("scale_step")
    two = step.step_of(step.Worker(0.01, 1e-4, copy=1e-9), step.ring(link()), 2, 500, AT_ONCE)
    assert two.compute == pytest.approx(0.06)
    assert two.copy == pytest.approx(0.1)
    assert two.waiting == pytest.approx(0.102)
    assert two.small == pytest.approx(3 * 0.002, rel=1e-3)
    assert two.total == pytest.approx(0.06 + 0.1 + 0.102 + 0.006, rel=1e-3)


def test_messages_travel_during_the_backward_pass() -> None:
    step = module("scale_step")
    worker = step.Worker(0.03, 1e-4, update=0.03)  # 600 tokens: 60 ms, of which the backward pass takes 40
    reduce, sent = step.ring(link(0, 1e9)), [(0.5, 1e7), (0.75, 1e7), (1.0, 5e6)]  # 10, 10 and 5 ms
    assert step.step_of(worker, reduce, 2, 600, sent).waiting == pytest.approx(0.005)
    slow = step.ring(link(0, 2.5e8))  # 40, 40 and 20 ms, one after another from the middle of the backward pass on
    assert step.step_of(worker, slow, 2, 600, sent).waiting == pytest.approx(0.02 + 0.1 - 0.04)
    at_the_end = step.Worker(0.03, 1e-4, update=0.03, sends_meanwhile=False)
    assert step.step_of(at_the_end, reduce, 2, 600, sent).waiting == pytest.approx(0.025)


def test_a_step_is_not_faster_than_its_launches() -> None:
    step = module("scale_step")
    worker = step.Worker(0.01, 1e-4, floor=0.05)
    assert worker.compute(100) == 0.05
    assert worker.compute(1000) == pytest.approx(0.11)


def test_with_an_infinite_link_speed_only_the_longest_part_counts() -> None:
    step = module("scale_step")
    steps = [step.step_of(step.Worker(0.0, 1e-4), step.ring(link(0, 1e30)), n, 6400 / n, AT_ONCE) for n in (1, 8, 64)]
    assert [steps[0].total / one.total for one in steps] == pytest.approx([1, 8, 64])


def test_slower_links_and_more_bytes_make_steps_longer() -> None:
    step = module("scale_step")
    worker = step.Worker(0.01, 1e-4, copy=1e-10)
    by_link = [step.step_of(worker, step.quickest(link(1e-5, b)), 8, 500, AT_ONCE).total for b in (1e8, 1e9, 1e10)]
    by_size = [step.step_of(worker, step.quickest(link()), 8, 500, [(1.0, size)]).total for size in (1e5, 1e7, 1e9)]
    assert by_link == sorted(by_link, reverse=True)
    assert by_size == sorted(by_size)


# --- workers ----------------------------------------------------------------------------------------------------------
def test_the_captured_worker_goes_through_its_measured_steps() -> None:
    worker = module("scale_workers").h200("BERT-base, captured")
    assert worker.compute(32 * 29) == pytest.approx(32 / 10231)
    assert worker.compute(256 * 29) == pytest.approx(256 / 23085.5)


def test_a_worker_launched_kernel_by_kernel_is_slower_than_the_captured_one() -> None:
    workers = module("scale_workers")
    captured, launched = (workers.h200(f"MiniLM, {how}") for how in ("captured", "kernel by kernel"))
    assert launched.compute(928) > 10 * captured.compute(928)
    assert launched.compute(10**7) == captured.compute(10**7)


def synthetic() -> dict[str, Any]:
    """Measurements of a machine that is exactly as the simulation says: 10 ms + 100 us a token, 1 ms, 1 GB/s."""
    parts = [(400, 350), (300, 310), (200, 160)]
    size = 4_000_000
    exchange = 2 * 1e-3 + size / 1e9 + 3 * (2 * 1e-3 + 64 / 1e9)

    def taken(tokens: list[int], more: float = 0.0) -> dict[str, Any]:
        return {"steps": [(0.01 + 1e-4 * t + more, t) for t in tokens]}

    ranks = [[pair[rank] for pair in parts] for rank in (0, 1)]
    both = [{"steps": [(0.012 + 1e-4 * max(p) + exchange, p[rank]) for p in parts]} for rank in (0, 1)]
    rounds = [
        {
            "1 x 1": [taken([sum(p) for p in parts])],
            "apart": [taken(own, 0.002) for own in ranks],
            "2 x 1": both,
            "at the end": both,
        }
    ]
    reduced = {str(n): [2 * 1e-3 + n / 1e9] for n in (0, size)}
    copies = {where: {"copy": [0.002], "update": [0.004]} for where in ("one", "both")}
    return {"parameters": size // 4, "steps": {"16": rounds}, "parts": [{"reduce": reduced, **copies}]}


def test_a_machine_is_recovered_from_its_measurements() -> None:
    workers, measured = module("scale_workers"), synthetic()
    assert workers.fitted(measured, "1 x 1") == pytest.approx((0.01, 1e-4))
    found = workers.measured_link(measured)
    assert (found.latency, found.bandwidth) == pytest.approx((1e-3, 1e9))
    assert workers.measured_copy(measured) * 4_000_000 == pytest.approx(0.002)
    assert workers.cpu_worker(measured).compute(100) == pytest.approx(0.02)


def test_the_check_finds_no_error_on_a_machine_that_is_as_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"heading": "synthetic", **synthetic()}), encoding="utf-8")
    module("scale").check([file], [(1.0, 4e6)])
    cells = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert cells[1] == cells[2]
    assert cells[3:5] == cells[6:8]
    assert cells[3] == cells[4]
    assert {cells[5].strip("+-"), cells[8].strip("+-")} == {"0.0%"}


# --- bytes ------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def prepared() -> Any:
    return module("scale_bytes").prepared_recipe(TINY)


def made(prepared: Any, adapter: str, parts: str) -> Any:
    shape = module("polytask.encoders.bert").BertShape(
        layers=1, hidden=24, heads=4, ffn=48, vocabulary=100, positions=32
    )
    return module("scale_bytes").model_of(prepared, shape, adapter, parts)


def test_everything_sends_every_parameter_once_and_which_have_gradients(prepared: Any) -> None:
    model = made(prepared, "lora", "all")
    parameters = list(model.parameters())
    expected = 4 * (sum(p.numel() for p in parameters) + len(parameters))
    assert module("scale_bytes").gradient_bytes(model, prepared.tasks) == expected


def test_messages_are_sent_in_the_order_of_the_backward_pass_and_the_last_ones_at_its_end() -> None:
    bytes_of = module("scale_bytes")
    model = bytes_of.model_of(bytes_of.prepared_recipe(TINY), bytes_of.SHAPES["MiniLM"], "none")
    sent = bytes_of.messages(model, list(model.tasks))
    shares = [share for share, _ in sent]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 1
    assert shares[-1] == 1
    words = 4 * model.encoder.words.weight.numel()
    assert sum(size for share, size in sent if share == 1) > words


def test_adapters_only_training_sends_adapters_and_heads(prepared: Any) -> None:
    model = made(prepared, "lora", "adapters")
    sent = [*model.adapter.parameters(), *(p for task in model.tasks for p in model.head(task).parameters())]
    expected = 4 * (sum(p.numel() for p in sent) + len(sent))
    assert module("scale_bytes").gradient_bytes(model, prepared.tasks) == expected


def test_a_step_with_one_task_sends_nothing_of_the_others(prepared: Any) -> None:
    count = module("scale_bytes").gradient_bytes
    model = made(prepared, "houlsby", "adapters")
    each = [count(model, [task]) for task in model.tasks]
    assert sum(each) == count(model, model.tasks)


def test_a_gradient_policy_sends_a_row_per_task() -> None:
    bytes_of = module("scale_bytes")
    shape = module("polytask.encoders.bert").BertShape(layers=2, hidden=24, heads=4, ffn=48)
    sums = {name: bytes_of.policy_bytes(name, shape, 2, TINY) for name in ("sum", "pcgrad")}
    layers = 4 * sum(p.numel() for p in module("polytask.encoders.bert").Bert(shape).layers.parameters())
    words = 4 * shape.vocabulary * shape.hidden
    assert sums["sum"][0] > words + layers
    assert 3 * layers < sums["pcgrad"][0] < sums["sum"][0] - words + 3 * layers + words
    assert sums["pcgrad"][1] > sums["sum"][1]
