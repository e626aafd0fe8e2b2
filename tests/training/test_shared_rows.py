"""Tasks that share rows: one pass of the encoder, losses and gradients over labelled rows only, resuming, refusals."""

import csv
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from polytask import Recipe, Running, UserError, add_task, evaluate_run, prepare, start_training
from polytask.evaluation.evaluate import split_outputs
from polytask.model import MultiTaskModel
from polytask.pretrained.weights import save_encoder
from polytask.recipe.reading import recipe_from
from polytask.runs.bundle import load_bundle
from polytask.stream import Stream
from polytask.tasks.shared_rows import SharedRows
from polytask.text.packing import InputFormat
from polytask.training.captured import CapturedSteps
from polytask.training.step import summed_gradient
from polytask.types import NO_LABEL, Draw, has_label

from .attention_by_borders import use_on_cpu
from .recorded_graphs import RecordedGraphs

WORDS = ["red", "blue", "late", "broken", "angry", "happy", "box", "card", "login", "refund", "pay", "slow", "lamp"]
KINDS: dict[str, dict[str, Any]] = {
    "team": {"kind": "classes"},
    "urgent": {"kind": "yes_no"},
    "mood": {"kind": "score", "range": [1, 5]},
    "topics": {"kind": "multilabel"},
}
TASKS = tuple(KINDS)
HEAD = {"name": "linear", "dropout": 0.0}

MakeRecipe = Callable[..., Recipe]


def write(path: Path, rows: int, blanks: float, seed: int) -> None:
    """Texts of random words; every label depends on the words and is blank with this probability."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["message", *TASKS])
        for number in range(rows):
            words = [*rng.choices(WORDS, k=rng.randint(3, 9)), str(number)]
            labels: list[Any] = [
                "ship" if "box" in words else "soft" if "login" in words else "pay",
                "yes" if "broken" in words else "no",
                1 + 4 * ("happy" in words),
                "|".join(word for word in ("red", "blue", "late", "slow") if word in words) or "[]",
            ]
            table.writerow([" ".join(words), *("" if rng.random() < blanks else label for label in labels)])


@pytest.fixture
def make_recipe(tmp_path: Path) -> MakeRecipe:
    """make_recipe(blanks, tasks, **fields): a tiny run of tasks that share rows."""

    def make(blanks: float = 0.5, tasks: tuple[str, ...] = TASKS, **fields: Any) -> Recipe:
        files = {part: str(tmp_path / f"{part}-{blanks}.csv") for part in ("train", "dev")}
        for seed, (part, file) in enumerate(files.items()):
            write(Path(file), 40 if part == "train" else 20, blanks, seed)
        about = {"text": "message", "share_rows": "inbox", "head": HEAD, **files}
        content: dict[str, Any] = {
            "tasks": {task: {**about, **KINDS[task], "label": task} for task in tasks},
            "encoder": {"layers": 2, "hidden": 32, "heads": 4, "ffn": 64, "positions": 64},
            "max_length": 32,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "optimizer": {"name": "adamw", "lr": 1e-3},
            **fields,
        }
        content["train"] = {"epochs": 2, "steps_per_epoch": 3, "batch_size": 8, "threads": 1, **fields.get("train", {})}
        return recipe_from(content, where="test")

    return make


def start(recipe: Recipe, folder: Path) -> Running:
    return start_training(recipe, folder)


def stream_of(running: Running, count: int = 8) -> Stream:
    return running.session.feed.next_batch([Draw("inbox", count)]).together


def shared(running: Running) -> SharedRows:
    rows = running.prepared.drawn_rows["inbox"]
    assert isinstance(rows, SharedRows)
    return rows


def gradients(model: MultiTaskModel, total: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# --- the loss and its gradient ----------------------------------------------------------------------------------------
def test_the_gradient_of_fully_labelled_rows_is_the_sum_of_the_tasks_gradients(
    make_recipe: MakeRecipe, tmp_path: Path
) -> None:
    running = start(make_recipe(blanks=0.0), tmp_path / "run")
    model, objective, packer = running.session.model, running.session.objective, running.session.feed.packer
    assert not objective.partly_labelled
    stream = stream_of(running)
    losses = objective.task_losses(model, stream, model(stream), 0.0)
    assert tuple(losses) == TASKS
    together = gradients(model, objective.policy.weigh(losses))
    indices = np.array(running.session.feed.order.indices("inbox", 0, 8))
    total: dict[str, Tensor] = {}
    for task in TASKS:
        labels = shared(running).labels_of[task][indices]
        part = packer.part(task, shared(running).gather(indices), InputFormat(), labels)
        alone = packer.pack([part])
        own = objective.policy.weigh(objective.task_losses(model, alone, model(alone), 0.0))
        for name, gradient in gradients(model, own).items():
            total[name] = total[name] + gradient if name in total else gradient
    assert together.keys() == total.keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, total[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_a_blank_label_has_no_influence(make_recipe: MakeRecipe, tmp_path: Path, task: str) -> None:
    running = start(make_recipe(), tmp_path / "run")
    model, objective = running.session.model, running.session.objective
    stream = stream_of(running, 16)
    labels = stream.labels[task]
    blank = ~has_label(labels)
    assert 0 < blank.sum() < len(blank)
    outputs = {name: out.detach().requires_grad_() for name, out in model(stream).items()}
    loss = objective.task_losses(model, stream, outputs, 0.0)[task]
    (gradient,) = torch.autograd.grad(loss, outputs[task])
    assert not gradient[blank].any()
    assert gradient[~blank].any()
    # Whatever the outputs of the rows without a label are, loss and gradient are bit-identical.
    other = {**outputs, task: torch.where(blank.view(-1, *[1] * (gradient.dim() - 1)), 7.0, outputs[task])}
    changed = objective.task_losses(model, stream, other, 0.0)[task]
    (changed_gradient,) = torch.autograd.grad(changed, outputs[task])
    assert changed.equal(loss)
    assert changed_gradient.equal(gradient)


def test_scores_below_the_mean_count_if_there_is_no_range(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    """Without a range, what heads learn of a score is negative below the mean, as NO_LABEL is."""
    recipe = make_recipe()
    tasks = {name: replace(spec, range=None if name == "mood" else spec.range) for name, spec in recipe.tasks.items()}
    running = start(replace(recipe, tasks=tasks), tmp_path / "run")
    model, objective = running.session.model, running.session.objective
    stream = stream_of(running, 16)
    labels = stream.labels["mood"]
    known = has_label(labels)
    assert not known.all()
    assert labels[known].min() < 0
    outputs = torch.randn(len(labels))
    loss = objective.task_losses(model, stream, {"mood": outputs}, 0.0)["mood"]
    assert loss.item() == pytest.approx(F.mse_loss(outputs[known], labels[known]).item(), rel=1e-5)


def test_the_cell_of_another_column_has_no_influence(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    """The gradient of one task is bit-identical if the labels of the others are erased."""
    running = start(make_recipe(), tmp_path / "run")
    model, objective = running.session.model, running.session.objective
    stream = stream_of(running)
    erased = {task: own if task == "team" else torch.full_like(own, NO_LABEL) for task, own in stream.labels.items()}
    found = [
        objective.task_losses(model, one, model(one), 0.0)["team"] for one in (stream, replace(stream, labels=erased))
    ]
    one, other = (gradients(model, loss) for loss in found)
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)


def test_a_batch_without_any_label_of_a_task_has_a_loss_of_zero(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    running = start(make_recipe(), tmp_path / "run")
    model, objective = running.session.model, running.session.objective
    stream = stream_of(running)
    none = {task: torch.full_like(own, NO_LABEL) for task, own in stream.labels.items()}
    losses = objective.task_losses(model, replace(stream, labels=none), model(stream), 0.0)
    assert all(loss.item() == 0 for loss in losses.values())
    found = gradients(model, objective.policy.weigh(losses))
    assert all(gradient.isfinite().all() and not gradient.any() for gradient in found.values())


def test_the_loss_is_that_of_transformers_and_plain_pytorch(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    weights = {"team": 2.0, "urgent": 0.5, "mood": 1.0, "topics": 3.0}
    recipe = make_recipe(train={"loss_scale": "none"})
    tasks = {name: replace(spec, weight=weights[name]) for name, spec in recipe.tasks.items()}
    running = start(replace(recipe, tasks=tasks), tmp_path / "run")
    session, model = running.session, running.session.model
    batch = session.feed.next_batch([Draw("inbox", 8)])
    totals = summed_gradient(model, session.objective, session.settings, [batch], 0.0)
    save_encoder(model.encoder, tmp_path)
    theirs = transformers.BertModel.from_pretrained(tmp_path).eval()
    rows = shared(running)
    indices = np.array(session.feed.order.indices("inbox", 0, 8))
    special = session.feed.packer.cls_id, session.feed.packer.sep_id
    texts = [torch.tensor([special[0], *rows.tokens(i)[0].tolist(), special[1]]) for i in indices]
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(text)) for text in texts], batch_first=True)
    encoded = theirs(ids, attention_mask=mask)
    total = torch.zeros(())
    for task in TASKS:
        head: Any = model.head(task)
        pooled = {"first": encoded.last_hidden_state[:, 0], "pooler": encoded.pooler_output}
        pooled["mean"] = (encoded.last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        outputs = F.linear(pooled[head.pooling], head.output.weight.detach(), head.output.bias.detach()).squeeze(-1)
        if head.labels.standardized_by is not None:
            mean, deviation = head.labels.standardized_by
            outputs = (mean + deviation * outputs - 1) / 4
        own = rows.indices[task][indices]
        known = torch.tensor([row for row, index in enumerate(own) if index >= 0])
        gold = torch.from_numpy(rows.splits[task].labels)[own[own >= 0]]
        criterion: Any = {"team": F.cross_entropy, "mood": F.mse_loss}.get(task, F.binary_cross_entropy_with_logits)
        loss = criterion(outputs[known], gold)
        assert totals.losses[task][0].item() == pytest.approx(loss.item(), rel=1e-5)
        total = total + weights[task] * loss
    total.backward()
    wanted = theirs.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(model.encoder.words.weight.grad, wanted, atol=1e-6, rtol=1e-3)


# --- one pass ---------------------------------------------------------------------------------------------------------
def test_the_encoder_runs_once_for_a_batch_and_once_for_the_dev_rows(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    running = start(make_recipe(train={"evaluate_every": 6}), tmp_path / "run")
    passes: list[int] = []
    """The tokens of every pass of the encoder."""
    running.session.model.encoder.words.register_forward_pre_hook(lambda _, given: passes.append(given[0].numel()))
    reports = running.steps()
    first = next(reports)
    dev = running.prepared.shared_rows("dev")["inbox"]
    dev_tokens = int((dev.lengths() + 2).sum())
    assert passes[0] == dev_tokens
    assert passes[-1] == first.tokens
    assert first.examples == 8
    passes.clear()
    later = list(reports)
    assert passes == [*(report.tokens for report in later), dev_tokens]
    assert all(report.examples == 8 and set(report.losses) == set(TASKS) for report in later)


@pytest.mark.parametrize(
    "fields",
    [{"adapter": {"name": "pal", "size": 8, "heads": 2}}, {"policy": "pcgrad"}, {"policy": "gem"}],
    ids=["pal", "pcgrad", "gem"],
)
def test_passes_of_single_tasks_have_their_labelled_rows_only(
    make_recipe: MakeRecipe, tmp_path: Path, fields: Any
) -> None:
    """The losses are those of the pass that all tasks share."""
    recipes = make_recipe(), make_recipe(**fields)
    once, alone = (start(recipe, tmp_path / str(number)) for number, recipe in enumerate(recipes))
    per_task = alone.session.objective.policy.needs_task_gradients
    one = once.session.feed.next_batch([Draw("inbox", 8)])
    other = alone.session.feed.next_batch([Draw("inbox", 8)], per_task)
    streams = list(other.by_task()) if per_task else [other.together]
    alone.session.model.load_state_dict(once.session.model.state_dict(), strict=False)
    model = once.session.model
    wanted = once.session.objective.task_losses(model, one.together, model(one.together), 0.0)
    found: dict[str, Tensor] = {}
    for stream in streams:
        found |= alone.session.objective.task_losses(alone.session.model, stream, alone.session.model(stream), 0.0)
        assert all(has_label(labels).all() for labels in stream.labels.values())
    assert found.keys() == wanted.keys()
    if "policy" in fields:
        for task, loss in wanted.items():
            torch.testing.assert_close(found[task], loss, rtol=1e-4, atol=1e-6)
    assert sum(len(stream.labels[t]) for stream in streams for t in stream.labels) == sum(
        int(has_label(labels).sum()) for labels in one.together.labels.values()
    )


@pytest.mark.parametrize("static_shape", [False, True])
@pytest.mark.parametrize(
    "adapter",
    [
        {"name": "shared", "adapter": {"name": "pal", "size": 8, "heads": 2}},
        {"name": "shared", "adapter": "prefix"},
        {"name": "shared", "adapter": "lora"},
        {"name": "shared", "adapter": {"name": "stack", "adapters": ["lora", "prefix"]}},
    ],
    ids=["pal", "prefix", "lora", "stack"],
)
def test_outputs_of_one_pass_with_an_adapter_that_tasks_share(
    make_recipe: MakeRecipe, tmp_path: Path, adapter: Any, static_shape: bool
) -> None:
    """They are those of each task in a stream of its own, beside a task that shares no rows."""
    recipe = make_recipe(adapter=adapter)
    extra = replace(recipe.tasks["team"], name="extra", share_rows=None, blank_labels="skip")
    running = start(replace(recipe, tasks={"extra": extra, **recipe.tasks}), tmp_path / "run")
    model, feed = running.session.model.eval(), running.session.feed
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.adapter.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    stream = feed.next_batch([Draw("inbox", 8), Draw("extra", 4)], static_shape=static_shape).together
    found = model(stream)
    assert list(found) == ["extra", *TASKS]
    assert stream.layout.num_examples(found.values()) == 12
    indices = np.array(feed.order.indices("inbox", 0, 8))
    assert stream.layout.real_tokens == sum(
        int((rows.lengths()[feed.order.indices(name, 0, count)] + 2).sum())
        for name, count, rows in (("inbox", 8, shared(running)), ("extra", 4, running.prepared.drawn_rows["extra"]))
    )
    for task in TASKS:
        alone = feed.packer.pack([feed.packer.part(task, shared(running).gather(indices), InputFormat())])
        torch.testing.assert_close(found[task], model(alone)[task], atol=1e-5, rtol=1e-4)


def test_a_task_without_a_label_in_the_batch_is_not_in_the_step(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    running = start(make_recipe(blanks=0.8, train={"batch_size": 1}), tmp_path / "run")
    before = {task: running.session.model.head(task).output.weight.clone() for task in TASKS}  # type: ignore[union-attr,operator]
    report = next(running.steps())
    assert 0 < len(report.losses) < len(TASKS)
    for task in TASKS:
        changed = not before[task].equal(running.session.model.head(task).output.weight)  # type: ignore[union-attr,arg-type]
        assert changed == (task in report.losses)
    assert report.examples == 1


def test_other_tasks_can_be_in_the_same_step(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe(sampler="mixed")
    extra = replace(recipe.tasks["team"], name="extra", share_rows=None, blank_labels="skip")
    running = start(
        replace(recipe, tasks={"team": recipe.tasks["team"], "extra": extra, **recipe.tasks}), tmp_path / "run"
    )
    assert running.prepared.training_sizes == {
        "inbox": len(shared(running)),
        "extra": len(shared(running).places("team")),
    }
    reports = list(running.steps())
    assert all(report.examples == 8 for report in reports)
    assert set().union(*(report.losses for report in reports)) == {*TASKS, "extra"}


@pytest.mark.parametrize("fields", [{}, {"policy": "pcgrad"}, {"adapter": {"name": "pal", "size": 8, "heads": 2}}])
def test_captured_steps_learn_the_same(
    make_recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: Any
) -> None:
    """In streams of static shape, where blank labels are masked. On the CPU, steps are recorded."""
    use_on_cpu(monkeypatch)
    recipe = make_recipe(**{**fields, "optimizer": "fused_adamw"}, train={"steps_per_epoch": 8})
    plain, swift = (start(recipe, tmp_path / name) for name in ("plain", "swift"))
    session = swift.session
    session.captured = CapturedSteps(session.model, session.optimizer, session.objective, session.settings)
    session.captured.graphs = RecordedGraphs(session.captured.graphs)  # type: ignore[assignment]
    wanted, found = list(plain.session.fit()), list(session.fit())
    assert session.captured.reason is None
    for one, other in zip(wanted, found, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-3, abs=1e-5)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-2)


# --- runs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"adapter": {"name": "shared", "adapter": {"name": "houlsby", "size": 8}}, "regularizers": ["smart"]},
        {"adapter": {"name": "pal", "size": 8, "heads": 2}, "sampler": "round_robin"},
        {"policy": {"name": "gem"}},
        {"policy": "uncertainty", "sampler": "mixed"},
    ],
    ids=["plain", "shared", "pal", "gem", "uncertainty"],
)
def test_a_resumed_run_ends_with_the_same_bits(make_recipe: MakeRecipe, tmp_path: Path, fields: Any) -> None:
    recipe = make_recipe(**fields, dropout=0.1, train={"save_every": 2})
    whole = start(recipe, tmp_path / "whole").complete()
    list(itertools.islice(start(recipe, tmp_path / "cut").steps(), 3))
    resumed = start_training(recipe, tmp_path / "cut", resume=True).complete()
    one, other = (load_bundle(run.folder / "model").model.state_dict() for run in (whole, resumed))
    assert all(one[name].equal(other[name]) for name in one)
    journals = [_losses(run.folder) for run in (whole, resumed)]
    assert journals[0] == journals[1]


def _losses(folder: Path) -> list[Any]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["losses"] for line in lines if "losses" in line]


def test_scores_are_those_of_the_labelled_rows(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    recipe = make_recipe()
    finished = start(recipe, tmp_path / "run").complete()
    splits = prepare(recipe).splits("dev")
    assert {task: score.examples for task, score in finished.evaluations["dev"].tasks.items()} == {
        task: len(split) for task, split in splits.items()
    }
    again = evaluate_run(finished.folder)
    assert again.blank == {task: 20 - len(split) for task, split in splits.items()}
    for task, split in splits.items():
        assert again.tasks[task].value == finished.evaluations["dev"].tasks[task].value
        lines = (finished.folder / "predictions" / f"{task}-dev.jsonl").read_text().splitlines()
        assert [json.loads(line)["row"] for line in lines] == split.rows.tolist()


def test_outputs_of_shared_rows_are_those_of_each_task(make_recipe: MakeRecipe) -> None:
    prepared = prepare(make_recipe())
    splits, shared = prepared.splits("dev"), prepared.shared_rows("dev").values()
    one = split_outputs(prepared.model, splits, prepared.packer)
    other = split_outputs(prepared.model, splits, prepared.packer, shared=shared)
    assert list(one) == list(other)
    for task in one:
        torch.testing.assert_close(one[task], other[task], atol=1e-5, rtol=1e-4)


def test_tasks_that_share_rows_are_added_to_a_run(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    old = start(make_recipe(tasks=("team",)), tmp_path / "old").complete()
    new = make_recipe(tasks=("urgent", "mood"))
    fields = ("kind", "text", "label", "train", "dev", "share_rows", "range")
    tasks = {name: {f: v for f in fields if (v := getattr(spec, f)) is not None} for name, spec in new.tasks.items()}
    finished = add_task(old.folder, {"tasks": tasks, "train": {"epochs": 1}}, tmp_path / "new")
    assert set(finished.evaluations["dev"].tasks) == {"team", "urgent", "mood"}
    assert _losses(finished.folder)[0].keys() <= {"urgent", "mood"}


def test_the_number_of_steps_and_the_tokens_are_those_of_the_rows(make_recipe: MakeRecipe) -> None:
    prepared = prepare(make_recipe(train={"steps_per_epoch": None, "batch_size": 32, "batch_tokens": 100}))
    rows = prepared.drawn_rows["inbox"]
    mean = (rows.lengths().sum(1) + 2).mean()
    assert prepared.batch_sizes == {"inbox": round(100 / mean)}


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sampler": "in_order"}, "team.share_rows: cannot be combined with the sampler in_order"),
        ({"sampler": {"name": "weights", "weights": {"team": 1}}}, "no trained task or group 'team'. Valid: inbox"),
        (
            {"regularizers": [{"name": "r_drop", "both_losses": True}]},
            "share_rows: the regularizer r_drop with these options needs labels for all rows",
        ),
    ],
)
def test_what_cannot_be_combined(make_recipe: MakeRecipe, tmp_path: Path, fields: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        start(make_recipe(**fields), tmp_path / "run")
