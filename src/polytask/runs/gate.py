"""The old tasks of a run that adds tasks, before and after: whether the new model may be saved."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import torch
from torch import Tensor

from polytask.evaluation.evaluate import evaluate, split_outputs
from polytask.evaluation.forgetting import OldTask, before_and_after
from polytask.runs.bundle import task_tensors
from polytask.runs.finish import Verdict
from polytask.runs.grown import GrownTask
from polytask.runs.joining import OldRun
from polytask.runs.prepare import Prepared
from polytask.runs.score import SplitScores
from polytask.runs.summary import Added
from polytask.settings import AddSettings
from polytask.types import UserError


def judge_old_tasks(old: OldRun, prepared: Prepared, scores: Mapping[str, SplitScores]) -> Verdict:
    """Compares the old tasks before and after, by split.

    With `guarantee: frozen` any difference is an error; with `measured`, and for a task that gets a new class, a drop
    of more than `max_drop` points on dev refuses the model.
    """
    add = prepared.recipe.add
    assert add is not None
    compared = {split: _compare(old, prepared, split, scored) for split, scored in scores.items()}
    if add.guarantee == "frozen":
        check_nothing_moved(old, prepared, compared)
    added = _added(old, prepared, add, compared["dev"])
    if prepared.grown is not None:
        grown = GrownTask(old, prepared, "dev", scores["dev"].outputs[prepared.grown])
        old_rows = grown.compare()
        compared["dev"] |= {} if old_rows is None else {prepared.grown: old_rows}
        by_task = {name: asdict(compared["dev"][name]) for name in old.tasks if name in compared["dev"]}
        added = replace(added, old=by_task, new_class=add.new_class, classes=grown.classes(), max_drop=add.max_drop)
    # A head that was never trained has no skill to lose, so its score may change by any amount.
    trained = {name: task for name, task in compared["dev"].items() if prepared.recipe.tasks[name].trained}
    return Verdict(added, drop_message(trained, add))


def _added(old: OldRun, prepared: Prepared, add: AddSettings, dev: Mapping[str, OldTask]) -> Added:
    return Added(
        run=str(old.folder),
        tasks=prepared.drawn,
        guarantee=add.guarantee,
        max_drop=None if add.guarantee == "frozen" else add.max_drop,
        old={name: asdict(task) for name, task in dev.items()},
    )


def _compare(old: OldRun, prepared: Prepared, split: str, scored: SplitScores) -> dict[str, OldTask]:
    """The old tasks on a split with the old model and with the new one, on the same device and in the same batches."""
    bundle, specs = old.bundle, prepared.recipe.tasks
    kept = [name for name in old.tasks if name != prepared.grown]
    splits = {name: data for name, data in prepared.splits(split).items() if name in kept}
    model = bundle.model.to(prepared.model.device)
    before = split_outputs(model, splits, bundle.packer, prepared.bf16)
    model.cpu()
    report = evaluate(model, before, splits, specs, split, 0)
    heads = {name: model.head(name) for name in splits}
    labels = {name: data.labels for name, data in splits.items()}
    return before_and_after(heads, labels, (report, before), (scored.report, scored.outputs), specs)


def check_nothing_moved(old: OldRun, prepared: Prepared, compared: Mapping[str, Mapping[str, OldTask]]) -> None:
    """Compares weights as well as outputs: texts that are in no file must get the same answers too."""
    before, after = old.bundle.model, prepared.model
    weights = [("the encoder", before.encoder.state_dict(), after.encoder.state_dict())]
    weights += [(f"task {name}", task_tensors(before, name), task_tensors(after, name)) for name in old.tasks]
    moved = [f"weights of {what}" for what, a, b in weights if any(not _same(a[k], b[k]) for k in a)]
    moved += [
        f"answers of {name} on {split}"
        for split, tasks in compared.items()
        for name, task in tasks.items()
        if not task.identical
    ]
    if moved:
        raise UserError(f"add.guarantee: frozen was not kept, so no model is saved: {', '.join(moved)} have changed")


def _same(before: Tensor, after: Tensor) -> bool:
    """Whether weights are bit-identical, apart from the row of a new class."""
    return torch.equal(before, (after[:-1] if before.shape != after.shape else after).cpu())


def drop_message(old: Mapping[str, OldTask], add: AddSettings) -> str | None:
    """Why the model is not saved; None if no old task dropped too far, or any drop is allowed."""
    if add.max_drop is None:
        return None
    dropped = [
        f"{name} fell by {task.fell_by():.2f} points ({task.metric} {task.before.value:.3f} before, "
        f"{task.after.value:.3f} after; the 95 % interval of the difference is {100 * task.difference.low:+.1f} to "
        f"{100 * task.difference.high:+.1f} points)"
        for name, task in old.items()
        if task.too_far(add.max_drop)
    ]
    return f"{'; '.join(dropped)}, and add.max_drop allows {add.max_drop:g}" if dropped else None
