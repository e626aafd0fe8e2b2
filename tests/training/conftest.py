"""A tiny model of two tasks and random examples: trained by the tests of the loop."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from polytask.build import make_adapter
from polytask.encoders.bert import Bert, BertShape
from polytask.evaluation.evaluate import evaluate, split_outputs
from polytask.heads import HEADS
from polytask.model import MultiTaskModel, TagEmbedding
from polytask.optim import OPTIMIZERS
from polytask.policies import WeightedSum
from polytask.policies.base import PolicyContext
from polytask.recipe.records import Recipe
from polytask.runs.run import start_training
from polytask.samplers import SAMPLERS
from polytask.samplers.base import SamplerContext
from polytask.settings import MethodChoice, TaskSpec, TrainSettings
from polytask.text.packing import Packer
from polytask.text.texts import Texts
from polytask.training.checkpoint import optimizer_tensors
from polytask.training.feed import Feed
from polytask.training.groups import freeze, parameter_groups
from polytask.training.journal import Journal
from polytask.training.loop import Session
from polytask.training.objective import Objective
from polytask.types import YES_NO, LabelSpace

SHAPE = BertShape(layers=2, hidden=32, heads=4, ffn=64, vocabulary=60, positions=32)
TAGS = 5


def assert_resumes_with_the_same_bits(recipe: Recipe, folder: Path) -> None:
    """A run that saves every two steps and is stopped after the third ends with the same bits as one that is not."""
    straight = start_training(recipe, folder / "straight")
    list(straight.steps())
    list(itertools.islice(start_training(recipe, folder / "stopped").steps(), 3))
    resumed = start_training(recipe, folder / "stopped", resume=True)
    assert resumed.session.step == 2
    list(resumed.steps())
    one, other = (
        {**r.session.model.state_dict(), **optimizer_tensors(r.session.optimizer)} for r in (straight, resumed)
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


class Examples:
    """Random ids; the label depends on the first token."""

    def __init__(self, count: int, seed: int, kind: str) -> None:
        rng = np.random.default_rng(seed)
        self._tokens = [(rng.integers(5, 60, rng.integers(2, 12)),) for _ in range(count)]
        high = np.array([ids[0] >= 32 for (ids,) in self._tokens])
        self.labels: npt.NDArray[Any] = high.astype(np.int64 if kind == "classes" else np.float32)

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return self._tokens[index]


class TaggedExamples(Examples):
    """The same, with a tag for each token."""

    def gather(self, indices: npt.NDArray[np.integer]) -> Texts:
        texts = Texts.of([self.tokens(i) for i in indices.tolist()])
        return replace(texts, tags=texts.ids % TAGS)


MakeSession = Callable[..., Session]


@pytest.fixture
def make_session(tmp_path: Path) -> MakeSession:
    """make_session(folder, resumed_at, regularizers, optimizer, sampler, adapter, tagged, **TrainSettings)."""

    def make(
        folder: str = "run",
        resumed_at: int = 0,
        regularizers: dict[str, Any] | None = None,
        optimizer: str = "adamw",
        sampler: str = "proportional",
        adapter: MethodChoice | None = None,
        tagged: bool = False,
        **settings: Any,
    ) -> Session:
        train = TrainSettings(**{"epochs": 2, "steps_per_epoch": 6, "batch_size": 4, **settings})
        torch.manual_seed(0)
        labels = {"one": LabelSpace("classes", ("low", "high")), "two": YES_NO}
        heads = {task: HEADS["linear"](task, space, SHAPE.hidden) for task, space in labels.items()}
        parts = make_adapter(adapter or MethodChoice("none"), tuple(labels), SHAPE)
        model = MultiTaskModel(Bert(SHAPE), parts, heads, TagEmbedding(TAGS, SHAPE.hidden) if tagged else None)
        freeze(model, train)
        model.to("cpu" if train.device == "auto" else train.device)
        packer = Packer(tuple(labels), 2, 3, 16, tagged=tagged)
        kind = TaggedExamples if tagged else Examples
        examples = {"one": kind(40, 1, "classes"), "two": kind(20, 2, "yes_no")}
        dev = {"one": kind(20, 3, "classes"), "two": kind(20, 4, "yes_no")}
        sizes = {task: len(part) for task, part in examples.items()}
        specs = {task: TaskSpec(task, space.kind, ("text",), "label", "", "") for task, space in labels.items()}
        run = tmp_path / folder
        run.mkdir(exist_ok=True)
        policy = WeightedSum(PolicyContext(dict.fromkeys(labels, 1.0), {t: s.kind for t, s in labels.items()}, 6))
        return Session(
            model=model,
            optimizer=OPTIMIZERS[optimizer](parameter_groups(model, train, 1e-3, 0.01, policy)),
            objective=Objective(policy, regularizers or {}),
            sampler=SAMPLERS[sampler](SamplerContext(sizes, train.batch_size, 5, 6, train.epochs)),
            feed=Feed(examples, packer, 5),
            settings=train,
            steps_per_epoch=6,
            seed=5,
            evaluate=lambda step: evaluate(model, split_outputs(model, dev, packer), dev, specs, "dev", step),
            journal=Journal(run / "metrics.jsonl", run / "tensorboard", resumed_at),
            checkpoints=run / "checkpoints",
        )

    return make
