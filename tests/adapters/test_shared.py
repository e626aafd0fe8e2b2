"""One adapter for all tasks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import polytask
from polytask.adapters import ADAPTERS
from polytask.adapters.base import Adapter, AdapterContext
from polytask.adapters.shared import Shared
from polytask.encoders.bert import Bert
from polytask.settings import MethodChoice
from polytask.stream import Stream
from polytask.types import UserError

OPTIONS: dict[str, dict[str, Any]] = {
    "houlsby": {"size": 3},
    "low_rank": {"size": 3},
    "pal": {"size": 4, "heads": 2},
    "prefix": {"length": 2},
}
INNER = sorted({*ADAPTERS} - {"none", "own_encoder", "shared", "stack"})
TINY = ["encoder={layers: 2, hidden: 32, heads: 2, ffn: 64, vocabulary: 30522}", "train.epochs=1"]
QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@pytest.fixture
def with_make(context: AdapterContext) -> AdapterContext:
    def with_tasks(own: tuple[str, ...]) -> AdapterContext:
        def make(choice: MethodChoice, tasks: tuple[str, ...] | None = None, /) -> Adapter:
            return ADAPTERS[choice.name](with_tasks(tasks or own), **choice.options)

        return replace(context, tasks=own, make=make)

    return with_tasks(context.tasks)


@pytest.mark.parametrize("name", INNER)
def test_all_tasks_have_the_parameters_of_one(
    name: str, with_make: AdapterContext, stream: Stream, shaken: Callable[[Adapter], Adapter], twins: Any
) -> None:
    """The hidden states are those of the adapter itself, if each task's parameters have the same values."""
    encoder: Bert = twins.encoder
    shared = shaken(Shared(with_make, adapter=MethodChoice(name, OPTIONS.get(name, {})))).eval()
    separate = ADAPTERS[name](with_make, **OPTIONS.get(name, {})).eval()
    with torch.no_grad():
        values = {key.replace(".inner.", ".").removeprefix("shared."): p for key, p in shared.named_parameters()}
        for task in with_make.tasks:
            for key, parameter in separate.task_state(task).items():
                parameter.copy_(values[f"{key}.0"])
        torch.testing.assert_close(encoder.encode(stream, shared), encoder.encode(stream, separate))


def test_no_parameter_belongs_to_one_task(with_make: AdapterContext) -> None:
    shared = Shared(with_make, adapter=MethodChoice("pal", OPTIONS["pal"]))
    assert not any(map(shared.task_parameters, ("a", "b")))
    single = ADAPTERS["pal"](replace(with_make, tasks=("a",)), **OPTIONS["pal"])
    counts = [sum(p.numel() for p in one) for one in (shared.shared_state().values(), single.parameters())]
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("name", ["none", "own_encoder", "shared"])
def test_adapters_that_cannot_be_shared(name: str, with_make: AdapterContext) -> None:
    with pytest.raises(UserError, match=f"needs an adapter such as pal, .* found {name}"):
        Shared(with_make, adapter=MethodChoice(name))


def test_a_stack_is_shared_as_a_whole(with_make: AdapterContext) -> None:
    with pytest.raises(UserError, match="a stack itself can be shared"):
        ADAPTERS["stack"](with_make, adapters=(MethodChoice("shared"), MethodChoice("lhuc")))
    stack = MethodChoice("stack", {"adapters": (MethodChoice("lhuc"), MethodChoice("conditional_norm"))})
    assert Shared(with_make, adapter=stack).shared_state()


def test_a_policy_that_compares_gradients_is_refused(tmp_path: Path) -> None:
    settings = [*TINY, "adapter={name: shared, adapter: lhuc}", "policy=pcgrad"]
    with pytest.raises(UserError, match=r"policy: pcgrad combines .* use policy: sum, or another adapter"):
        polytask.train(QUICKSTART, tmp_path / "run", settings)


def test_no_task_is_added_or_exported(tmp_path: Path) -> None:
    """A new task would change the answers of the old ones, and a task's file would not hold all that it needs."""
    settings = [*TINY, "adapter={name: shared, adapter: {name: houlsby, size: 4}}", "train.steps_per_epoch=3"]
    run = polytask.train(QUICKSTART, tmp_path / "run", settings)
    with pytest.raises(UserError, match="the tasks share parts of the adapter shared"):
        polytask.add_task(run.folder, QUICKSTART, tmp_path / "new")
    with pytest.raises(UserError, match="the tasks share parameters of the adapter shared"):
        polytask.export_adapter(run.folder, "opinion", tmp_path / "opinion.safetensors")
    assert polytask.load(run.folder).predict("opinion", ["fine"])
