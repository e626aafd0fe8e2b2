"""The bytes that a process sends into the sums of a training step, counted on real models. Exchanges nothing."""

import itertools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polytask import prepare, read_recipe
from polytask.build import make_model
from polytask.encoders.bert import Bert, BertShape
from polytask.kernels.overlapped_sums import sums_of_gradients
from polytask.model import MultiTaskModel
from polytask.processes import Processes
from polytask.runs.prepare import Prepared
from polytask.runs.session import make_feed, make_objective, make_policy
from polytask.settings import MethodChoice, TrainSettings
from polytask.training.groups import freeze
from polytask.training.step import differentiate, summed_parameters
from polytask.types import Draw, UserError

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"
HEADS = ["tasks.question.head=cross", "tasks.similarity.head=cross"]
SHAPES = {"MiniLM": BertShape(layers=6, hidden=384, heads=12, ffn=1536), "BERT-base": BertShape()}
ADAPTERS = (
    *("none", "pal", "houlsby", "lora", "conditional_norm", "lhuc", "low_rank", "prefix", "ia3", "bitfit"),
    "own_encoder",
)
POLICIES = ("sum", "pcgrad", "mgda", "cagrad")


@dataclass(frozen=True)
class Counted(Processes):
    """The first of two processes that send nothing and count the bytes of what they would send."""

    rank: int = 0
    count: int = 2
    sent: list[int] = field(default_factory=list)

    def add_up(self, tensor: Tensor) -> Tensor:
        self.sent.append(tensor.nbytes)
        return tensor

    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]:
        self.add_up(tensor)
        return lambda: None


def prepared_recipe(settings: Sequence[str] = ()) -> Prepared:
    """Three tasks whose heads have parameters, and MiniLM."""
    return prepare(read_recipe(RECIPE, [*HEADS, *settings]))


def model_of(prepared: Prepared, shape: BertShape, adapter: str, parts: Any = "all") -> MultiTaskModel:
    labels = {name: task.labels for name, task in prepared.tasks.items()}
    model = make_model(prepared.recipe.tasks, labels, MethodChoice(adapter), lambda: Bert(shape))
    freeze(model, TrainSettings(parts=parts))
    return model


def sent_bytes(model: MultiTaskModel, tasks: Container[str]) -> list[int]:
    """The bytes of each message with gradients of a step with these tasks, in the order of sending."""
    counted = Counted()
    with sums_of_gradients(summed_parameters(model, tasks), counted):
        pass  # without a backward pass, gradients are sent as zeros
    return counted.sent


def gradient_bytes(model: MultiTaskModel, tasks: Container[str]) -> int:
    return sum(sent_bytes(model, tasks))


def messages(model: MultiTaskModel, tasks: Container[str]) -> list[tuple[float, float]]:
    """When each message can be sent, as a share of the backward pass, and its bytes.

    Layers take the same time, and their gradients come first; those of the embeddings are complete at the end.
    """
    of_layers = 4 * sum(p.numel() for p in model.encoder.layers.parameters() if p.requires_grad)
    sent = sent_bytes(model, tasks)
    ends = itertools.accumulate(sent)
    return [(end / of_layers if end <= of_layers else 1.0, size) for end, size in zip(ends, sent, strict=True)]


def policy_bytes(policy: str, shape: BertShape, batch: int, settings: Sequence[str] = ()) -> tuple[int, int]:
    """All bytes of a step with `batch` examples of each task, and the number of sums: a gradient for each task."""
    prepared = prepared_recipe([f"policy={policy}", *settings])
    model = model_of(prepared, shape, "none")
    prepared = replace(prepared, model=model)
    chosen = make_policy(prepared.recipe, dict.fromkeys(model.tasks, 1.0), prepared.steps_per_epoch)
    feed, objective = make_feed(prepared, chosen), make_objective(prepared, chosen, {}, {}, {})
    drawn = feed.next_batch([Draw(task, batch) for task in model.tasks], chosen.needs_task_gradients)
    counted = Counted()
    with torch.random.fork_rng():
        differentiate(model, objective, replace(prepared.recipe.train, precision="float32"), [drawn], 0.0, counted)
    return sum(counted.sent), len(counted.sent)


def all_messages() -> dict[str, list[tuple[float, float]]]:
    """The messages of all gradients by shape, and those of LoRA on a frozen BERT-base."""
    prepared = prepared_recipe()
    tasks = list(prepared.tasks)
    found = {name: messages(model_of(prepared, shape, "none"), tasks) for name, shape in SHAPES.items()}
    return {**found, "lora": messages(model_of(prepared, SHAPES["BERT-base"], "lora", "adapters"), tasks)}


def print_bytes() -> None:
    prepared = prepared_recipe()
    tasks, first = list(prepared.tasks), next(iter(prepared.tasks))
    columns = ("everything, 3 tasks", "adapters, 3 tasks", "adapters, 1 task", "heads, 3 tasks")
    for name, shape in SHAPES.items():
        print(f"\nMB a step, {name}'s shape ({', '.join(tasks)}; one task: {first})\n")
        print("| adapter | " + " | ".join(columns) + " | everything / adapters |\n|---|" + "---:|" * 5)
        for adapter in ADAPTERS:
            try:
                made = {parts: model_of(prepared, shape, adapter, parts) for parts in ("all", "adapters", "heads")}
            except UserError as error:
                print(f"| {adapter} | {error} |")
                continue
            sizes = [gradient_bytes(made[parts], tasks) for parts in ("all", "adapters")]
            sizes += [gradient_bytes(made["adapters"], [first]), gradient_bytes(made["heads"], tasks)]
            cells = [f"{size / 1e6:,.3f}" for size in sizes]
            print(f"| {adapter} | {' | '.join(cells)} | {sizes[0] / sizes[1]:,.0f} |")
    print("\nMB a step with a gradient for each of 3 tasks, 32 examples of each, everything trained\n")
    print("| policy | " + " | ".join(f"{name} | sums" for name in SHAPES) + " |\n|---|" + "---:|" * 2 * len(SHAPES))
    for policy in POLICIES:
        found = [policy_bytes(policy, shape, 32) for shape in SHAPES.values()]
        print(f"| {policy} | " + " | ".join(f"{size / 1e6:,.1f} | {sums}" for size, sums in found) + " |")
