"""New tasks for a run that has finished. Knows runs, their recipes and model folders; training is that of any run.

The new run starts from the old one's model: its encoder, and each old task's head and adapter. `guarantee: frozen`
trains what is new and nothing else; `guarantee: measured` trains the encoder too, measures every old task before and
after, and saves no model where one of them falls too far.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from polytask import seeds
from polytask.build import TABLES, complete, encoder_folder, make, make_model, start_heads
from polytask.disk.cache import cache_folder
from polytask.disk.hashing import sha256
from polytask.disk.records import mapping
from polytask.evaluation.evaluate import evaluate, split_outputs
from polytask.evaluation.forgetting import OldTask, before_and_after
from polytask.export.adapter import task_tensors
from polytask.model import MultiTaskModel
from polytask.policies.base import Policy, PolicyContext
from polytask.pretrained.weights import load_encoder
from polytask.recipe.reading import read_content, read_recipe, recipe_from, with_setting
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.bundle import Bundle, load_bundle, no_model
from polytask.runs.prepare import Prepared, assemble, check_metrics
from polytask.runs.resume import read_environment, recipe_changes
from polytask.runs.run import Finished, Running
from polytask.runs.score import Outputs
from polytask.tasks.task import Split, Task, read_split, read_tasks
from polytask.training.groups import freeze
from polytask.training.objective import Objective
from polytask.types import AddSettings, EvalReport, LabelSpace, Stage, UserError


def add_task(
    run: str | Path,
    recipe: str | Path | Mapping[str, Any],
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
) -> Finished:
    """Adds the tasks of a recipe (a file or a mapping) to a finished run; the result is a run of its own in `folder`.

    `finished.refused` says why no model was saved, where an old task fell by more than `add.max_drop`.
    """
    adding = Adding(run, recipe, folder, settings, resume, allow_change)
    for _ in adding.steps():
        pass
    return adding.finish()


class Adding(Running):
    """Tasks that join a finished run, under way: iterate `steps()`, then `finish()`."""

    def __init__(
        self,
        run: str | Path,
        recipe: str | Path | Mapping[str, Any],
        folder: str | Path | None = None,
        settings: Iterable[str] = (),
        resume: bool = False,
        allow_change: bool = False,
    ) -> None:
        self.old = read_old(Path(run))
        super().__init__(joined(self.old, recipe, settings), folder, resume, allow_change)
        if self.session.step == 0:
            self._begin()
        if self.add.distill:
            self.session.feed.taught = {**self.session.feed.taught, **self._said_of_memories()}

    @property
    def add(self) -> AddSettings:
        assert self.recipe.add is not None
        return self.recipe.add

    @property
    def frozen(self) -> bool:
        return self.add.guarantee == "frozen"

    # --- before the first step ----------------------------------------------------------------------------------------
    def _prepare(self) -> Prepared:
        recipe, tokenizer = self.recipe, self.old.bundle.tokenizer
        new = [spec for name, spec in recipe.tasks.items() if name not in self.old.tasks]
        check_metrics(recipe)
        added = {task.spec.name: task for task in read_tasks(new, tokenizer, cache_folder())}
        wanted_by = self._wants_old_examples()
        tasks = {**{name: self._old_task(name, wanted_by) for name in self.old.tasks}, **added}
        model = self._model({name: task.labels for name, task in tasks.items()})
        return assemble(recipe, tokenizer, tasks, model, tuple(added))

    def _wants_old_examples(self) -> str | None:
        """What asks for training examples of the old tasks, as the recipe names it; None: nothing does."""
        recipe = self.recipe
        specs = recipe.tasks.items()
        context = PolicyContext({n: spec.weight for n, spec in specs}, {n: spec.kind for n, spec in specs}, 1)
        policy: Policy = make("policy", recipe.policy, "recipe: policy", context)
        if not self.frozen and policy.memory is not None:
            return f"policy: {recipe.policy.name}"
        if self.add.distill:
            raise UserError(
                f"recipe: add.distill: the policy {recipe.policy.name} remembers no examples that the old model could "
                "say something of; use replay, gem or a_gem"
            )
        for name in (swap.name for swap in recipe.regularizers):
            if getattr(TABLES["regularizer"].get(name), "needs_examples", False):
                return f"regularizers: {name}"
        return next((f"teachers.{name}" for name in recipe.teachers if name in self.old.tasks), None)

    def _old_task(self, name: str, wanted_by: str | None) -> Task:
        spec, bundle = self.recipe.tasks[name], self.old.bundle
        files = {"dev": spec.dev, "test": spec.test, "train": spec.train if wanted_by else None}
        splits: dict[str, Split] = {}
        for split, file in files.items():
            if file is None:
                continue
            try:
                splits[split] = read_split(spec, bundle.labels[name], file, bundle.tokenizer, cache_folder(), split)
            except UserError as error:
                why = f" for {wanted_by}" if split == "train" else ""
                raise UserError(f"{self.old.folder}: its task {name} needs its {split} file{why}: {error}") from None
        return Task(spec, bundle.labels[name], splits)

    def _model(self, labels: Mapping[str, LabelSpace]) -> MultiTaskModel:
        """Old tasks first, with all their weights; what is new starts from the seed."""
        recipe, bundle = self.recipe, self.old.bundle
        dropout = (recipe.dropout, recipe.attention_dropout)
        model = make_model(
            recipe.tasks, labels, recipe.adapter, lambda: load_encoder(self.old.model, *dropout), seed=recipe.seed
        )
        new = [name for name in model.tasks if name not in self.old.tasks]
        if isinstance(recipe.encoder, str) and any(model.head(name).pretrained for name in new):
            start_heads(model, encoder_folder(recipe.encoder))
        with torch.no_grad():
            for name in self.old.tasks:
                theirs = task_tensors(bundle.model, name)
                for key, tensor in task_tensors(model, name).items():
                    tensor.copy_(theirs[key])
        freeze(model, recipe.train, self.old.tasks if self.frozen else ())
        return model

    def _begin(self) -> None:
        """What the methods of a run that goes on have in its checkpoint."""
        memory = self.session.feed.memory
        if memory is not None and not self.frozen:
            for name in self.old.tasks:
                memory.fill(name, len(self.prepared.tasks[name].splits["train"]))
        torch.manual_seed(seeds.derive(self.recipe.seed, "begin"))
        for regularizer in self.session.objective.regularizers.values():
            regularizer.start(self.session.model)

    def _objective(self, weights: Mapping[str, float], stages: tuple[Stage, ...]) -> Objective:
        objective = super()._objective(weights, stages)
        return (
            replace(objective, say=dict.fromkeys(self.old.tasks, self.add.distill)) if self.add.distill else objective
        )

    def _said_of_memories(self) -> dict[str, torch.Tensor]:
        """The old model's outputs for the remembered examples of its tasks, each at its example's place."""
        memory, found = self.session.feed.memory, {}
        assert memory is not None
        model = self.old.bundle.model.to(self.device)
        for name in self.old.tasks:
            if self.recipe.tasks[name].kind != "text":
                split = self.prepared.tasks[name].splits["train"]
                # A probe of interference may ask of any example.
                asked = memory.kept[name] if self.recipe.train.interference_every is None else list(range(len(split)))
                outputs = model.answer(name, [split.tokens(i) for i in asked], self.old.bundle.packer)
                found[name] = outputs.new_zeros(len(split), *outputs.shape[1:])
                found[name][asked] = outputs
        model.cpu()
        return found

    # --- what a run of this kind says and writes beside others --------------------------------------------------------
    def _evaluated(self) -> tuple[str, ...]:
        return self.prepared.drawn if self.frozen else super()._evaluated()

    def _origin(self) -> dict[str, Any]:
        return {"added_to": str(self.old.folder), "added_to_sha256": self.old.fingerprint}

    def _check_same_recipe(self) -> None:
        changes = recipe_changes(self.folder, self.recipe)
        if not (self.folder / "model").exists() and all(change.startswith("add.max_drop:") for change in changes):
            self.changes += changes  # a model that was refused may be given more room without training again
        else:
            self._note("another recipe", changes)

    def _check_same_data(self) -> None:
        if read_environment(self.folder).get("added_to_sha256") != self.old.fingerprint:
            self._note("another model", [f"add.run: {self.old.folder}: its weights are not those of then"])
        super()._check_same_data()

    def _beside(self, evaluations: Mapping[str, EvalReport], outputs: Mapping[str, Outputs]) -> dict[str, Any]:
        found = {split: self._compared(split, evaluations[split], outputs[split]) for split in evaluations}
        refused = None if self.frozen else refusal(found["dev"], self.add.max_drop)
        if self.frozen:
            self._check_nothing_moved(found)
        return {
            "added": {
                "run": str(self.old.folder),
                "tasks": list(self.prepared.drawn),
                "guarantee": self.add.guarantee,
                "max_drop": None if self.frozen else self.add.max_drop,
                "old": {name: asdict(task) for name, task in found["dev"].items()},
            },
            "saved": refused is None,
            "refused": refused,
        }

    def _compared(self, split: str, report: EvalReport, outputs: Outputs) -> dict[str, OldTask]:
        """The old tasks on a split by the old model and by the new one, on the same device and in the same batches."""
        bundle, recipe = self.old.bundle, self.recipe
        splits = {name: data for name, data in self.prepared.splits(split).items() if name in self.old.tasks}
        model = bundle.model.to(self.device)
        before = split_outputs(model, splits, bundle.packer, recipe.train.precision == "bf16")
        model.cpu()
        scores = evaluate(model, before, splits, recipe.tasks, split, 0)
        heads = {name: model.head(name) for name in splits}
        return before_and_after(heads, splits, (scores, before), (report, outputs), recipe.tasks)

    def _check_nothing_moved(self, found: Mapping[str, Mapping[str, OldTask]]) -> None:
        """Weights too: texts that are in no file must be answered as before."""
        old, new = self.old.bundle.model, self.prepared.model
        pairs = [("the encoder", old.encoder.state_dict(), new.encoder.state_dict())]
        pairs += [(f"task {name}", task_tensors(old, name), task_tensors(new, name)) for name in self.old.tasks]
        moved = [f"weights of {what}" for what, a, b in pairs if any(not torch.equal(a[k], b[k].cpu()) for k in a)]
        moved += [
            f"answers of {name} on {split}"
            for split, tasks in found.items()
            for name, task in tasks.items()
            if not task.identical
        ]
        if moved:
            raise UserError(
                f"add.guarantee: frozen: not kept, so no model is saved: other {', '.join(moved)} than before"
            )


def refusal(old: Mapping[str, OldTask], max_drop: float) -> str | None:
    """Why the model is not saved; None where no old task fell too far."""
    fallen = [
        f"{name} fell by {task.fell_by():.2f} points ({task.metric} {task.before.value:.3f} before, "
        f"{task.after.value:.3f} after; the 95 % interval of the difference is {100 * task.difference.low:+.1f} to "
        f"{100 * task.difference.high:+.1f} points)"
        for name, task in old.items()
        if task.too_far(max_drop)
    ]
    return f"{'; '.join(fallen)}, and add.max_drop allows {max_drop:g}" if fallen else None


# --- the old run and the recipe ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class OldRun:
    """A finished run that tasks are added to."""

    folder: Path
    recipe: Recipe
    bundle: Bundle

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.bundle.specs)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @cached_property
    def fingerprint(self) -> str:
        return " ".join(sha256(self.model / name) for name in ("model.safetensors", "parts.safetensors"))


def read_old(run: Path) -> OldRun:
    if not run.is_dir():
        raise UserError(f"{run}: there is no such run")
    if not (run / "recipe.yaml").is_file():
        raise UserError(f"{run}: this is no run: it has no recipe.yaml")
    if not (run / "model").is_dir():
        raise no_model(run)
    bundle = load_bundle(run / "model")
    if bundle.model.budget()["adapter_shared"]:
        raise UserError(f"{run}: tasks share parts of the adapter {bundle.adapter.name}: none can be added to it")
    recipe = read_recipe(run / "recipe.yaml")
    if recipe.tasks.keys() != bundle.specs.keys():
        raise UserError(
            f"{run}: recipe.yaml has the tasks {', '.join(recipe.tasks)}, and model/tasks.json has "
            f"{', '.join(bundle.specs)}: they are not of one run"
        )
    return OldRun(run.resolve(), recipe, bundle)


def joined(old: OldRun, recipe: str | Path | Mapping[str, Any], settings: Iterable[str] = ()) -> Recipe:
    """The whole recipe of the new run: the old tasks, then the new ones, on the encoder and adapter of the old run."""
    where, folder = "recipe", None
    content = recipe
    if not isinstance(recipe, Mapping):
        where, folder = str(recipe), Path(recipe).resolve().parent
        content = read_content(Path(recipe))
    content = dict(mapping(content, where))
    for setting in settings:
        content = with_setting(content, setting)
    new = content.get("tasks")
    if not isinstance(new, Mapping) or not new:
        raise UserError(
            f"{where}: tasks: at least one new task is needed, as `tasks: {{NAME: {{kind: ..., train: ...}}}}`"
        )
    for name in map(str, new):
        if name in old.tasks:
            raise UserError(f"{where}: tasks.{name}: {old.folder} has a task of this name; give the new one another")
    add = mapping(content.get("add") or {}, f"{where}: add")
    if add.get("run") not in (None, str(old.folder)):
        raise UserError(f"{where}: add.run: the run is {old.folder}, found {add['run']!r}; leave the field out")
    plain = recipe_to_mapping(old.recipe)
    heads = {name: spec.head for name, spec in old.bundle.specs.items()}
    theirs = {
        name: {**plain["tasks"][name], "head": None if head is None else {"name": head.name, **head.options}}
        for name, head in heads.items()
    }
    whole = recipe_from(
        {
            "name": "-".join([old.recipe.name, *map(str, new)]),
            **{field: plain[field] for field in ("encoder", "max_length")},
            # As the model was saved with it: defaults may have changed since the run's recipe was written.
            "adapter": {"name": old.bundle.adapter.name, **old.bundle.adapter.options},
            **content,
            "tasks": {**theirs, **new},
            "add": {**add, "run": str(old.folder)},
        },
        where=where,
        folder=folder,
    )
    _check_fits(whole, old, where)
    return _frozen(whole, old, where) if whole.add and whole.add.guarantee == "frozen" else whole


def _check_fits(recipe: Recipe, old: OldRun, where: str) -> None:
    for field in ("encoder", "max_length"):
        own, theirs = getattr(recipe, field), getattr(old.recipe, field)
        if own != theirs:
            raise UserError(f"{where}: {field}: {old.folder} has {theirs!r}, found {own!r}; leave the field out")
    own, theirs = (complete(swap, f"{where}: adapter") for swap in (recipe.adapter, old.bundle.adapter))
    if own != theirs:
        raise UserError(
            f"{where}: adapter: the tasks of {old.folder} have {_shown(theirs.name, theirs.options)}, found "
            f"{_shown(own.name, own.options)}: one model has one adapter for all its tasks; leave the field out"
        )


def _shown(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} {json.dumps(options)}" if options else name


def _frozen(recipe: Recipe, old: OldRun, where: str) -> Recipe:
    """The recipe of a run that must not touch the encoder and the old tasks."""
    why = "(add.guarantee: frozen)"
    if recipe.train.norms:
        raise UserError(f"{where}: train.norms: the encoder's layer norms must stay as they are {why}")
    if recipe.train.select.partition(".")[0] in old.tasks:
        raise UserError(f"{where}: train.select: an old task's score does not move; choose a new one {why}")
    for name in recipe.teachers:
        if name in old.tasks:
            raise UserError(f"{where}: teachers.{name}: an old task learns nothing {why}")
    parts = "adapters" if recipe.train.parts == "all" else recipe.train.parts
    return replace(recipe, train=replace(recipe.train, parts=parts))
