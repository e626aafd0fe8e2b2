"""One recipe, one run folder, from start to finish. Knows every stage and the run's files; the stages know none of it.

recipe.yaml  environment.json  metrics.jsonl  tensorboard/  checkpoints/
model/  predictions/  summary.json  report.html  texts/ (of pretraining runs)
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from polytask.build import encoder_origin, make, make_loss, option
from polytask.disk.atomic import write_atomically
from polytask.disk.lock import LOCK, hold, let_go
from polytask.disk.writable import check_target, make_folder
from polytask.evaluation.baselines import remarks, report_from
from polytask.evaluation.interference import read_interference
from polytask.evaluation.own_metrics import primary_of
from polytask.evaluation.transfer import read_transfer
from polytask.machine import (
    environment,
    keep_freed_memory,
    peak_memory,
    pick_device,
    pick_precision,
    pick_threads,
)
from polytask.policies.base import PolicyContext
from polytask.recipe.reading import read_recipe, recipe_from, write_recipe
from polytask.recipe.records import Recipe
from polytask.regularizers.base import RegularizerContext
from polytask.reports.card import write_card
from polytask.reports.report import write_report
from polytask.runs.bundle import save_bundle
from polytask.runs.prepare import Prepared, check_teachers, describe_task, prepare
from polytask.runs.resume import (
    ENVIRONMENT,
    RECIPE,
    as_started,
    checkpoint_of,
    data_changes,
    fingerprints,
    note_changes,
    read_environment,
    recipe_changes,
    refusal,
)
from polytask.runs.score import Outputs, evaluate_split, score_split, untrained_baselines
from polytask.samplers.base import Sampler, SamplerContext
from polytask.serving.predictor import Predictor
from polytask.tasks.describe import baseline, class_counts
from polytask.training.averages import RunningAverage
from polytask.training.captured import CapturedSteps, reason_not_capturable
from polytask.training.checkpoint import step_of
from polytask.training.feed import Feed
from polytask.training.groups import parameter_groups
from polytask.training.journal import Journal, read_start
from polytask.training.loop import Session, fit
from polytask.training.memory import Memory
from polytask.training.objective import Objective
from polytask.types import EvalReport, Stage, StepReport, UserError, unknown

log = logging.getLogger(__name__)
TEXTS = "texts"
"""The folder of a pretraining run's text."""


@dataclass(frozen=True)
class Finished:
    """A run that reached its end."""

    folder: Path
    evaluations: Mapping[str, EvalReport]
    """By split: dev, and test where the recipe names test files."""
    summary: Mapping[str, Any]

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def refused(self) -> str | None:
        """Why no model was saved, of a run that forgot too much of its old tasks."""
        refused: str | None = self.summary.get("refused")
        return refused


def train(
    recipe: Recipe | str | Path | Mapping[str, Any],
    run: str | Path | None = None,
    settings: Iterable[str] = (),
    resume: bool = False,
    allow_change: bool = False,
) -> Finished:
    """Trains a recipe (a file, a mapping, or a Recipe) to its end and gives back the finished run."""
    if isinstance(recipe, str | Path):
        recipe = read_recipe(recipe, settings)
    elif isinstance(recipe, Mapping):
        recipe = recipe_from(recipe, settings)
    running = Running(recipe, run, resume, allow_change)
    for _ in running.steps():
        pass
    return running.finish()


def check_free(folder: Path) -> None:
    """A new run's folder may hold the texts that were gathered for it, and nothing else but its lock."""
    check_target(folder, folder=True)
    if folder.exists() and any(entry.name not in (TEXTS, LOCK) for entry in folder.iterdir()):
        raise UserError(
            f"{folder}: there is a run in this folder already; go on with it by --resume, or give --run DIR"
        )


class Running:
    """A run under way: iterate `steps()`, then `finish()`. Its folder is this process's own until then.

    With `resume` it goes on from its newest whole checkpoint, if recipe and data are what they were; with
    `allow_change`, also if they are not.
    """

    def __init__(
        self, recipe: Recipe, run: str | Path | None = None, resume: bool = False, allow_change: bool = False
    ) -> None:
        self.folder = Path(run) if run is not None else Path("runs") / recipe.name
        self.recipe = recipe
        self.resumed = resume
        self.allow_change = allow_change
        self.changes: list[str] = []
        """What is not as it was when the run was started."""
        self.not_captured: str | None = None
        """Why its steps are not replayed as graphs."""
        if not resume:
            check_free(self.folder)
            self._use_machine()
            self.prepared = self._prepare()
            self._start(None)
            return
        check_target(self.folder, folder=True)
        if not self.folder.exists():
            raise UserError(f"{self.folder}: there is no run to resume; leave out --resume to start it")
        was_held = hold(self.folder)
        try:
            self.recipe, threads = as_started(self.folder, recipe)
            self._use_machine(threads)
            self._check_same_recipe()
            checkpoint = checkpoint_of(self.folder, allow_change)
            self.prepared = self._prepare()
            if checkpoint is not None:
                self._check_same_data()
            self._start(checkpoint)
        except BaseException:
            if not was_held:
                let_go(self.folder)
            raise

    def _use_machine(self, threads: int | None = None) -> None:
        """Decides what the recipe leaves to the machine: device, precision and CPU threads."""
        settings = self.recipe.train
        self.device = pick_device(settings.device)
        precision = pick_precision(settings.precision, self.device)
        self.recipe = replace(self.recipe, train=replace(settings, precision=precision))
        torch.set_num_threads(settings.threads or threads or pick_threads(self.device))
        if self.device.type == "cpu":
            keep_freed_memory()

    def _start(self, checkpoint: Path | None) -> None:
        self.session = self._session(checkpoint)
        if checkpoint is None:
            make_folder(self.folder)
            hold(self.folder)
            if not self.resumed:
                check_free(self.folder)  # once more: another process may have been faster
            self._write_start()
        elif self.changes:
            write_recipe(self.recipe, self.folder / RECIPE)
            note_changes(self.folder, self.session.step, self.changes, self.prepared.tasks)

    def steps(self) -> Iterator[StepReport]:
        yield from fit(self.session)

    def save(self) -> Path:
        """A checkpoint of now, between two steps: what `resume` goes on from."""
        return self.session.save()

    def evaluate(self, split: str) -> EvalReport:
        """The model as it is now, on a split of every task."""
        return evaluate_split(self.prepared, split, self.session.step)[0]

    def _evaluate_dev(self, step: int) -> EvalReport:
        """The scores that choose checkpoints; at step 0 together with what methods without training score."""
        report, _ = evaluate_split(self.prepared, "dev", step, self._evaluated())
        return replace(report, baselines=untrained_baselines(self.prepared, self._evaluated())) if step == 0 else report

    def finish(self) -> Finished:
        """Takes the best weights, scores and predicts every split, and writes the model, the summary and the report."""
        self.session.load_best()
        evaluations, outputs = {}, {}
        for split in ("dev", "test"):
            if self.prepared.splits(split):
                step = self.session.best_step or 0
                evaluations[split], outputs[split] = score_split(self.prepared, split, self.folder, step)
        summary = {**self._summary(evaluations), **self._beside(evaluations, outputs)}
        saved = summary.get("saved", True)
        if saved:
            save_bundle(self.prepared.bundle, self.folder / "model")
        _write_json(self.folder / "summary.json", summary)
        if saved:
            write_card(self.folder / "model", summary)
        write_report(self.folder)
        let_go(self.folder)
        return Finished(self.folder, evaluations, summary)

    def _prepare(self) -> Prepared:
        return prepare(self.recipe)

    def _evaluated(self) -> tuple[str, ...]:
        """The tasks that evaluations under way are about."""
        return tuple(self.prepared.tasks)

    def _beside(self, evaluations: Mapping[str, EvalReport], outputs: Mapping[str, Outputs]) -> dict[str, Any]:
        """What the summary says beside what it says of any run; with `saved: false` no model is written."""
        return {}

    def _check_same_recipe(self) -> None:
        self._note("another recipe", recipe_changes(self.folder, self.recipe))

    def _check_same_data(self) -> None:
        encoder = self._origin().get("encoder_sha256")
        self._note("other data", data_changes(self.folder, self.prepared.tasks, encoder))

    def _note(self, what: str, changes: list[str]) -> None:
        if changes and not self.allow_change:
            raise refusal(self.folder, what, changes)
        self.changes += changes

    def _session(self, checkpoint: Path | None) -> Session:
        recipe, prepared = self.recipe, self.prepared
        model = prepared.model.to(self.device)
        settings = recipe.train
        rates = [option("optimizer", recipe.optimizer, name, "recipe: optimizer") for name in ("lr", "weight_decay")]
        weights = {name: spec.weight for name, spec in recipe.tasks.items()}
        train_splits = prepared.splits("train")
        context = SamplerContext(
            {name: len(train_splits[name]) for name in prepared.drawn},
            settings.batch_size,
            recipe.seed,
            prepared.steps_per_epoch,
            settings.epochs,
        )
        sampler: Sampler = make("sampler", recipe.sampler, "recipe: sampler", context)
        objective = self._objective(weights, sampler.stages)
        plan = objective.policy.memory
        groups = parameter_groups(model, settings, rates[0], rates[1], objective.policy)
        session = Session(
            model=model,
            optimizer=make("optimizer", recipe.optimizer, "recipe: optimizer", groups),
            objective=objective,
            sampler=sampler,
            feed=Feed(
                train_splits,
                {n: model.head(n).apart for n in model.tasks},
                prepared.packer,
                recipe.seed,
                self._teachers_outputs(),
                copies={n: model.head(n).copies for n in model.tasks},
                masked={n: share for n in model.tasks if (share := model.head(n).masked) is not None},
                memory=None if plan is None else Memory(plan, model.tasks, recipe.seed),
            ),
            settings=settings,
            steps_per_epoch=prepared.steps_per_epoch,
            seed=recipe.seed,
            evaluate=self._evaluate_dev,
            journal=Journal(self.folder, step_of(checkpoint) if checkpoint else 0),
            folder=self.folder / "checkpoints",
            average=None if settings.ema is None else RunningAverage(model, settings.ema),
        )
        if checkpoint is not None:
            self._load(session, checkpoint)
        self.not_captured = reason_not_capturable(self.device, session.optimizer, objective, settings, session.feed)
        if self.not_captured is None:
            session.captured = CapturedSteps(model, session.optimizer, objective, settings)
        return session

    def _load(self, session: Session, checkpoint: Path) -> None:
        try:
            session.load(checkpoint)
        except (KeyError, TypeError, RuntimeError) as error:
            if not self.changes:
                earlier = session.model.adapter.earlier_options
                if not earlier:
                    raise
                said = ", ".join(f"{name}: {json.dumps(value)}" for name, value in earlier.items())
                raise UserError(
                    f"{checkpoint}: its weights do not fit the model of the recipe. Earlier versions had no option for "
                    f"this and meant `{said}`: if the run was started with one of them, add that to the adapter's "
                    "options and pass --allow-change"
                ) from error
            raise UserError(f"{checkpoint}: it does not fit what the recipe has become: {error}") from error

    def _objective(self, weights: Mapping[str, float], stages: tuple[Stage, ...]) -> Objective:
        recipe, prepared = self.recipe, self.prepared
        settings = recipe.train
        kinds = {name: spec.kind for name, spec in recipe.tasks.items()}
        policy = PolicyContext(weights, kinds, prepared.steps_per_epoch)
        context = RegularizerContext(
            prepared.model,
            weights,
            settings.epochs * prepared.steps_per_epoch,
            stages,
            lambda task, count: self.session.feed.sample(task, count),  # asked for while it trains
            tuple(name for name in recipe.tasks if name not in prepared.drawn),
        )
        losses = {
            name: make_loss(task.spec, task.labels, class_counts(task.splits["train"], task.labels))
            for name, task in prepared.tasks.items()
            if "train" in task.splits
        }
        return Objective(
            policy=make("policy", recipe.policy, "recipe: policy", policy).to(self.device),
            regularizers={s.name: make("regularizer", s, "recipe: regularizers", context) for s in recipe.regularizers},
            losses={name: loss for name, loss in losses.items() if loss is not None},
            annealed=settings.teacher_annealing,
            temperature=settings.teacher_temperature,
        )

    def _teachers_outputs(self) -> dict[str, torch.Tensor]:
        """What each teacher says of every training example of its task."""
        found = {}
        for name, run in self.recipe.teachers.items():
            where, task = f"recipe: teachers.{name}", self.prepared.tasks[name]
            try:
                teacher = Predictor.load(run, self.recipe.train.device)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            if name not in teacher.tasks:
                raise UserError(unknown(where, name, teacher.tasks, f"task of {run}"))
            if teacher.bundle.labels[name] != task.labels:
                raise UserError(f"{where}: {run} has other labels for {name} than this recipe")
            if len(teacher.spec(name).text) != len(task.spec.text):
                raise UserError(f"{where}: {run} has another number of texts for {name} than this recipe")
            examples = (example.texts for example in task.splits["train"].examples())
            found[name] = torch.cat(list(teacher.outputs(name, examples)))
        return found

    def _write_start(self) -> None:
        data = fingerprints(self.prepared.tasks)
        write_recipe(self.recipe, self.folder / RECIPE)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        about = {**environment(self.device), **self._origin(), "started": started, "data": data}
        _write_json(self.folder / ENVIRONMENT, about)

    def _origin(self) -> dict[str, Any]:
        """What environment.json says of where the run's first weights come from, beside the recipe."""
        return dict(encoder_origin(self.recipe.encoder))

    def _summary(self, evaluations: Mapping[str, EvalReport]) -> dict[str, Any]:
        session, recipe, model = self.session, self.recipe, self.prepared.model
        encoder = recipe.encoder if isinstance(recipe.encoder, str) else "untrained"
        examples = sum(session.feed.given.values())
        chosen = recipe.train.select.partition(".")[0]
        judged = [recipe.tasks[n].kind for n in self._evaluated() if chosen in ("mean", n)]  # none with `last`
        by_text = bool(judged) and all(kind == "text" for kind in judged)
        sign = -1 if by_text else 1
        if chosen in recipe.tasks:
            sign = evaluations["dev"].tasks[chosen].sign(recipe.train.select.partition(".")[2] or None)
        start = read_start(self.folder / "metrics.jsonl")
        before = None if start is None or chosen == "last" else report_from(start).chosen(recipe.train.select)
        stages = session.sampler.stages
        probed = recipe.train.interference_every is not None
        return {
            "format": 1,
            "name": recipe.name,
            "encoder": encoder,
            "encoder_revision": read_environment(self.folder).get("encoder_revision"),
            "finished": True,
            "steps": session.step,
            "skipped_steps": session.skipped,
            "epochs": session.step / session.steps_per_epoch,
            "seconds": session.seconds,
            "examples_per_second": examples / session.step_seconds,
            "peak_memory_bytes": peak_memory(self.device),
            "device": str(self.device),
            "best": {
                "step": session.best_step,
                "select": recipe.train.select,
                "value": None if chosen == "last" else sign * session.best_value,
                "start_value": None if before is None else sign * before,
            },
            **({} if start is None else self._compared_with_start(evaluations["dev"], report_from(start))),
            "parameters": model.budget(),
            "tasks": {name: describe_task(task, self.prepared) for name, task in self.prepared.tasks.items()},
            "findings": [asdict(finding) for finding in self.prepared.findings()],
            "evaluations": {split: asdict(report)["tasks"] for split, report in evaluations.items()},
            "baselines": {
                name: baseline(task.splits["dev"], task.labels, primary_of(task.spec))
                for name, task in self.prepared.tasks.items()
                if task.spec.kind != "text"
            },
            **({"interference": read_interference(self.folder / "metrics.jsonl")} if probed else {}),
            **({"transfer": read_transfer(self.folder / "metrics.jsonl", stages)} if stages else {}),
        }

    def _compared_with_start(self, trained: EvalReport, start: EvalReport) -> dict[str, Any]:
        """The scores before the first step, those of methods without training, and what training did not improve."""
        return {
            "start": asdict(start)["tasks"],
            "untrained": dict(start.baselines),
            "remarks": remarks(trained, start, self.recipe.train.select),
        }


class Rehearsal(Running):
    """A run up to its first step: every field of the recipe is looked at, nothing is trained, nothing is written.

    Its device may be on another machine; its teachers must exist, and are not asked.
    """

    def __init__(self, recipe: Recipe) -> None:
        check_teachers(recipe)
        self.recipe = replace(recipe, teachers={})
        self.folder, self.device = Path(), torch.device("cpu")
        torch.set_num_threads(recipe.train.threads or pick_threads(self.device))
        self.prepared = prepare(self.recipe)
        self.session = self._session(None)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False))
