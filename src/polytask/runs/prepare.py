"""Reads a recipe's data and builds its model: what comes before training. Knows recipes, tasks and models, no run."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from polytask.build import encoder_folder, make_encoder, make_model, make_packer, most_tokens, start_heads
from polytask.disk.cache import cache_folder
from polytask.disk.hashing import remembered_sha256
from polytask.disk.kept import kept
from polytask.evaluation.metrics import chosen_metric
from polytask.evaluation.own_metrics import function_files, function_versions, own_metrics, primary_of, trust_functions
from polytask.evaluation.packed_splits import PackedSplits
from polytask.kinds.multilabel import calibrated_thresholds
from polytask.methods import KIND, find_method
from polytask.model import MultiTaskModel
from polytask.plugins.files import Plugin, method_versions, use_plugins
from polytask.plugins.trust import check_all_trusted
from polytask.pretrained.find import TOKENIZER_FILES
from polytask.recipe.records import Recipe, recipe_to_mapping, strings_in, teacher_runs
from polytask.runs.bundle import Bundle, no_model
from polytask.runs.folder import find_model
from polytask.runs.phases import Phases
from polytask.runs.summary import TaskSummary
from polytask.settings import TaskSpec, Truncate
from polytask.tasks.describe import describe_split
from polytask.tasks.doctor import examine
from polytask.tasks.finding import Finding
from polytask.tasks.lengths import check_lengths
from polytask.tasks.shared_rows import SharedRows, shared_rows
from polytask.tasks.task import Split, Task, read_tasks, tag_vocabulary, with_tags
from polytask.tasks.training_rows import TrainingRows, training_rows
from polytask.text.packing import InputFormat, Packer
from polytask.text.tagging import TagVocabulary, make_tagger
from polytask.text.tokenizer import TextTokenizer
from polytask.training.groups import freeze
from polytask.types import UserError

log = logging.getLogger(__name__)

MAX_BATCH = 2**16
"""The most examples of a batch, as for `train.batch_size`."""


@dataclass(frozen=True)
class Prepared:
    """A recipe with its data read and its model built: everything that training needs."""

    recipe: Recipe
    tokenizer: TextTokenizer
    tasks: Mapping[str, Task]
    packer: Packer
    model: MultiTaskModel
    drawn: tuple[str, ...]
    """The tasks that steps are drawn from: all trained tasks, or the new ones where tasks are added to a run."""
    evaluated: tuple[str, ...]
    """The tasks that evaluations during training score."""
    remembered: tuple[str, ...] = ()
    """Tasks that an earlier run has learned, whose examples fill the policy's memory from the start."""
    grown: str | None = None
    """The task of a finished run that gets a new class, the last of its classes."""
    word_tags: TagVocabulary | None = None
    """The part-of-speech tags of the training data; None without tags."""
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """By task: the temperature of its probabilities (`Bundle.temperatures`). Left out: 1."""
    packed: PackedSplits = field(default_factory=PackedSplits)
    """The packed batches of the splits that evaluations score."""
    plugins: tuple[Plugin, ...] = ()
    """The recipe's plug-ins, whose methods are in the tables."""
    _shared_rows: dict[str, dict[str, SharedRows]] = field(default_factory=dict)

    @property
    def steps_per_epoch(self) -> int:
        """As many steps as contain all tasks' training examples once, unless the recipe says otherwise."""
        sizes, settings, batch_sizes = self.training_sizes, self.recipe.train, self.batch_sizes
        if settings.steps_per_epoch is not None:
            return settings.steps_per_epoch
        if batch_sizes is None:
            return -(-sum(sizes.values()) // (settings.batch_size * settings.accumulate))
        return math.ceil(sum(Fraction(size, batch_sizes[name]) for name, size in sizes.items()) / settings.accumulate)

    @property
    def training_sizes(self) -> dict[str, int]:
        """The number of training examples of each task that steps are drawn from, or of each group of tasks that share
        rows."""
        return {name: len(rows) for name, rows in self.drawn_rows.items()}

    @cached_property
    def drawn_rows(self) -> dict[str, Split | TrainingRows | SharedRows]:
        """The training examples that steps are drawn from, by task or by group of tasks that share rows."""
        groups = dict(shared_rows({name: self.tasks[name].splits["train"] for name in self.drawn}))
        drawn: dict[str, Split | TrainingRows | SharedRows] = {}
        for name in self.drawn:
            group = self.recipe.tasks[name].share_rows
            drawn |= {name: training_rows(self.tasks[name])} if group is None else {group: groups[group]}
        return drawn

    def shared_rows(self, split: str) -> dict[str, SharedRows]:
        """The rows of this split of each group of tasks that share rows; always the same objects."""
        if split not in self._shared_rows:
            self._shared_rows[split] = dict(shared_rows(self.splits(split)))
        return self._shared_rows[split]

    @property
    def batch_sizes(self) -> dict[str, int] | None:
        """With `train.batch_tokens`, the number of examples of each task whose mean length gives about that many."""
        tokens = self.recipe.train.batch_tokens
        if tokens is None:
            return None
        return {name: min(max(1, round(tokens / self.mean_tokens(name))), MAX_BATCH) for name in self.drawn_rows}

    def mean_tokens(self, name: str, most: int | None = None) -> float:
        """The mean number of tokens that a training example of a task takes in a stream, over about `most` of them.

        `name` can be that of a group of tasks that share rows, of which the first task counts.
        """
        rows = self.drawn_rows[name]
        task = rows.tasks[0] if isinstance(rows, SharedRows) else name
        every = 1 if most is None else max(1, len(rows) // most)
        return float(self.packer.lengths(rows.lengths()[::every], self.model.input_format(task)).mean())

    @property
    def bf16(self) -> bool:
        return self.recipe.train.precision == "bf16"

    def splits(self, name: str) -> dict[str, Any]:
        """The split of this name of each task that has one."""
        return {task: entry.splits[name] for task, entry in self.tasks.items() if name in entry.splits}

    def findings(self) -> list[Finding]:
        """What the data check finds, most severe first."""
        forms = self.forms
        options = self.packer, forms, self.tokenizer.unk_id
        depends_on = self.packer.max_length, tuple(forms.items()), self.tokenizer.unk_id
        key = tuple(task.fingerprint for task in self.tasks.values()), self.tokenizer.fingerprint, *depends_on
        return list(kept("findings", key, lambda: examine(self.tasks, *options)))

    @property
    def forms(self) -> dict[str, InputFormat]:
        """By task: the sequences that its head reads."""
        return {name: self.model.input_format(name) for name in self.tasks}

    def check_lengths(self) -> None:
        """Refuses rows that are too long, with `truncate: error`."""
        forms = self.forms
        splits = ((split, forms[name]) for name, task in self.tasks.items() for split in task.splits.values())
        check_lengths(splits, self.packer, self.tokenizer)

    @property
    def bundle(self) -> Bundle:
        # Those of the heads, which may have thresholds that were chosen on dev.
        labels = {name: self.model.head(name).labels for name in self.tasks}
        parts = self.model, self.tokenizer, self.packer
        methods = self.recipe.adapter, self.word_tags, self.plugins
        return Bundle(*parts, self.recipe.tasks, labels, *methods, self.temperatures)


def prepare(recipe: Recipe, phases: Phases | None = None) -> Prepared:
    """Finds the encoder, reads and tokenizes the data, and builds the model."""
    phases = phases or Phases()
    if recipe.add is not None:
        raise UserError(
            "recipe: add: this recipe adds to a finished run; use polytask add-task RUN RECIPE, or polytask add-class"
        )
    plugins = use_plugins(recipe.plugins)
    check_teachers(recipe)
    folder = encoder_folder(recipe.encoder)
    most = most_tokens(recipe.max_length, recipe.tasks.values())
    tokenizer = load_tokenizer(folder, most, recipe.truncate)
    check_metrics(recipe)
    tagger = None if recipe.word_tags is None else recipe.word_tags.tagger
    read = read_tasks(list(recipe.tasks.values()), tokenizer, cache_folder(), make_tagger(tagger))
    word_tags = tag_vocabulary(read, tagger)
    tasks = {task.spec.name: with_tags(task, word_tags) for task in read}
    phases.end("data")
    labels = {name: task.labels for name, task in tasks.items()}
    model = make_model(
        recipe.tasks,
        labels,
        recipe.adapter,
        lambda: make_encoder(recipe, folder, tokenizer),
        seed=recipe.seed,
        tags=None if word_tags is None else len(word_tags.names),
    )
    if isinstance(recipe.encoder, str):
        start_heads(model, folder)
    freeze(model, recipe.train, not_trained=[name for name in tasks if not recipe.tasks[name].trained])
    phases.end("model")
    drawn, evaluated = tuple(trained_tasks(recipe)), tuple(tasks)
    packer = make_packer(recipe, tokenizer, tagged=word_tags is not None)
    parts = recipe, tokenizer, tasks, packer, model
    prepared = Prepared(*parts, drawn, evaluated, word_tags=word_tags, plugins=plugins)
    prepared.check_lengths()
    check_warmup(prepared)
    return prepared


def use_code(recipe: Recipe, trust: bool = False) -> tuple[Plugin, ...]:
    """Loads the recipe's plug-ins. `trust` remembers that they, and the files of its metric functions, may run."""
    if trust:
        trust_functions(recipe.tasks.values())
    else:
        check_all_trusted([*map(Path, recipe.plugins), *function_files(recipe.tasks.values())])
    return use_plugins(recipe.plugins, trust)


def methods_origin(prepared: Prepared) -> dict[str, dict[str, str]]:
    """The versions of the methods and metric functions that are not part of polytask, for environment.json; empty if
    there are none."""
    named = strings_in(recipe_to_mapping(prepared.recipe))
    versions = method_versions(prepared.plugins, named) | function_versions(prepared.recipe.tasks.values())
    return {"methods": versions} if versions else {}


def trained_tasks(recipe: Recipe) -> dict[str, TaskSpec]:
    """The tasks that the recipe does not leave out of training (`trained: false`)."""
    return {name: spec for name, spec in recipe.tasks.items() if spec.trained}


def load_tokenizer(folder: Path, max_length: int, truncate: Truncate = "end") -> TextTokenizer:
    """Loads an encoder's tokenizer; a process that keeps values between runs loads it once."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    hashes = tuple((file.name, remembered_sha256(file)) for file in files)
    return kept("tokenizer", (hashes, max_length, truncate), lambda: TextTokenizer.load(folder, max_length, truncate))


def check_teachers(recipe: Recipe) -> None:
    """Refuses a teacher that is not a finished run, before any data is read."""
    for name, _, run in teacher_runs(recipe):
        if not Path(run).is_dir():
            raise UserError(f"recipe: {name}: {run}: there is no such run")
        if find_model(Path(run)) is None:
            raise UserError(f"recipe: {name}: {no_model(Path(run))}")


def check_metrics(recipe: Recipe) -> None:
    """Refuses a kind or a metric that does not exist, and a metric function of the user's that cannot be loaded."""
    for name, spec in recipe.tasks.items():
        find_method(KIND, spec.kind, f"recipe: tasks.{name}.kind")
        primary_of(spec)
    task, _, metric = recipe.train.select.partition(".")
    if metric:
        spec = recipe.tasks[task]
        chosen_metric(metric, spec.kind, "recipe: train.select", own_metrics(spec))


def check_warmup(prepared: Prepared) -> None:
    settings = prepared.recipe.train
    steps = settings.epochs * prepared.steps_per_epoch
    if settings.warmup >= 1 and settings.warmup > steps:
        log.warning(
            "train.warmup: %g steps are more than the %d of the run: the learning rate never reaches its full value",
            settings.warmup,
            steps,
        )


def describe_task(task: Task, prepared: Prepared) -> TaskSummary:
    """A task and its data, as the summary and `polytask check` show them."""
    spec, labels = task.spec, task.labels
    form = prepared.model.input_format(spec.name)
    return TaskSummary(
        kind=labels.kind,
        own_kind=labels.own_kind,
        classes=tuple(labels.classes),
        range=(labels.low, labels.high) if labels.kind == "score" and labels.bounded else None,
        text=spec.input_columns,
        label=spec.label,
        metric=primary_of(spec, labels).name,
        trained=spec.trained,
        thresholds=shown_thresholds(prepared, spec.name),
        data={name: describe_split(split, labels, prepared.packer, form) for name, split in task.splits.items()},
    )


def shown_thresholds(prepared: Prepared, task: str) -> tuple[float, ...]:
    """The thresholds of a task with several classes per row, for its probabilities after calibration."""
    thresholds = prepared.model.head(task).labels.thresholds
    return calibrated_thresholds(thresholds, prepared.temperatures.get(task, 1.0))
