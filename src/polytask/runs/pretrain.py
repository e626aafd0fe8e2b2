"""Masked-language-model training of an encoder before fine-tuning, or of a finished run after it.

The texts are collected in the run's folder, each once. Before fine-tuning, the run has one task of plain text on them,
and its `model/` is an encoder like any other. After fine-tuning, that task is added to the tasks of the finished run,
whose heads and adapters are kept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

from polytask.disk.atomic import atomic_file
from polytask.disk.lock import FolderLock
from polytask.disk.writable import make_folder
from polytask.evaluation.baselines import report_from
from polytask.processes import refuse_several
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import Recipe, recipe_to_mapping
from polytask.runs.add import start_joined
from polytask.runs.finish import Finished
from polytask.runs.folder import RunFolder
from polytask.runs.joining import OldRun, join_recipes, read_old_run
from polytask.runs.prepare import trained_tasks, use_code
from polytask.runs.run import Running, start_run
from polytask.runs.start import check_free
from polytask.settings import MethodChoice, TaskSpec
from polytask.tasks.reading import open_for, open_source
from polytask.tasks.rows import plain_texts
from polytask.tasks.splitting import text_key
from polytask.types import MetricValue, UserError

TASK = "texts"
HELD_OUT, MOST_HELD_OUT = 0.05, 2_000
"""The share of the texts that perplexity is measured on if there are no dev texts, and the largest number of them."""

Texts = Callable[[], Iterator[str]]
"""Texts that can be read more than once."""


@dataclass(frozen=True)
class Pretrained:
    """A finished pretraining run, and its perplexity on held-out text before and after.

    If it started from a finished run, `finished.summary.added.old` has the dev scores of that run's tasks before and
    after.
    """

    finished: Finished
    before: MetricValue | None
    """None for a run that was started by a version that did not measure it."""
    after: MetricValue

    @property
    def encoder(self) -> Path:
        """The `encoder` for the recipe that fine-tunes; with the heads of the run that it started from, if any."""
        return RunFolder(self.finished.folder).model.path

    @classmethod
    def of(cls, finished: Finished) -> "Pretrained":
        start, added = finished.summary.start, finished.summary.added
        task = TASK if added is None else added.tasks[0]
        before = None if start is None else report_from({"step": 0, "split": "dev", "tasks": start})
        return cls(
            finished,
            None if before is None else before.tasks[task].metrics["perplexity"],
            finished.evaluations["dev"].tasks[task].metrics["perplexity"],
        )


def pretrain(
    recipe: Recipe | str | Path,
    run: str | Path | None = None,
    settings: Iterable[str] = (),
    texts: Sequence[str] = (),
    own: bool | None = None,
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    start: str | Path | None = None,
    trust_plugins: bool = False,
) -> Pretrained:
    """Trains a recipe's encoder further on plain text, with the arguments of `start_pretraining`."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, settings)
    options = resume, allow_change, keep_checkpoints, start, trust_plugins
    running = start_pretraining(recipe, run, texts, own, *options)
    return Pretrained.of(running.complete())


def start_pretraining(
    recipe: Recipe,
    run: str | Path | None = None,
    texts: Sequence[str] = (),
    own: bool | None = None,
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
    start: str | Path | None = None,
    trust_plugins: bool = False,
) -> Running:
    """Prepares a run that trains a masked language model on a recipe's texts.

    Encoder, optimizer and train settings are the recipe's; its adapter, regularizers, sampler, policy and teachers are
    not used. The texts are those of the tasks' training files, or of `texts`, given as FILE:COLUMN; both with
    `own=True`. Held out are texts of the tasks' dev files, or 5 % of the texts if no dev file is used. `resume`,
    `allow_change`, `keep_checkpoints` and `trust_plugins` are those of `start_training`.

    `start` is a finished run, whose model is trained further: its encoder, adapter and maximum length are used in place
    of the recipe's, and the new run keeps its tasks, with their heads and adapters unchanged.
    """
    refuse_several("pretrain")
    use_code(recipe, trust_plugins)
    old = None if start is None else read_old_run(Path(start), trust_plugins)
    folder = RunFolder(Path(run) if run is not None else Path("runs") / f"{recipe.name}-pretrained")
    use_own = not texts if own is None else own
    given = [_given(text) for text in texts]
    lock = FolderLock(folder.path)
    if not resume:
        check_free(folder)
    if not resume or (folder.path.exists() and not folder.recipe.exists()):  # stopped while it collected texts
        _collect(recipe, given, use_own, folder, lock)
    options = folder, lock, resume, allow_change, keep_checkpoints
    if old is not None:
        return start_joined(old, _joined(recipe, old, folder), *options)
    return start_run(_of_texts(recipe, folder), *options)


def _of_texts(recipe: Recipe, folder: RunFolder) -> Recipe:
    """The recipe of the pretraining run."""
    train, dev = (str(_file(folder, split).absolute()) for split in ("train", "dev"))
    return Recipe(
        tasks={TASK: TaskSpec(TASK, "text", ("text",), None, train, dev, head=MethodChoice("mlm"))},
        name=f"{recipe.name}-pretrained",
        encoder=recipe.encoder,
        max_length=recipe.max_length,
        truncate="end" if recipe.truncate == "error" else recipe.truncate,
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_dropout,
        seed=recipe.seed,
        optimizer=recipe.optimizer,
        plugins=recipe.plugins,
        train=replace(recipe.train, select="mean", parts="all", norms=False),
    )


def _joined(recipe: Recipe, old: OldRun, folder: RunFolder) -> Recipe:
    """The recipe of a pretraining run that keeps the tasks of a finished run."""
    content = recipe_to_mapping(_of_texts(recipe, folder))
    names = chain([TASK], (f"{TASK}-{number}" for number in count(2)))
    name = next(name for name in names if name not in old.tasks)
    return join_recipes(
        old,
        {
            **{field: content[field] for field in ("name", "dropout", "attention_dropout", "seed", "optimizer")},
            "plugins": content["plugins"],
            "tasks": {name: content["tasks"][TASK]},
            "train": {**content["train"], "select": name},
            "add": {"guarantee": "measured", "max_drop": None},
        },
    )


def _file(folder: RunFolder, split: str) -> Path:
    return folder.texts / f"{split}.jsonl"


# --- texts ------------------------------------------------------------------------------------------------------------
def _collect(recipe: Recipe, given: Sequence[Texts], own: bool, folder: RunFolder, lock: FolderLock) -> None:
    """Writes train.jsonl and dev.jsonl: each text once, in one of the two. Memory holds only a key of each text."""
    specs = trained_tasks(recipe).values() if own else ()
    train = [*given, *(_of_task(spec, spec.train) for spec in specs if spec.train is not None)]
    dev = [_of_task(spec, spec.dev) for spec in specs]
    learned = {key for key, _ in _keyed(train)}
    held = _some({key for key, _ in _keyed(dev)} - learned, MOST_HELD_OUT)
    if not held:
        dev, held = train, _some(learned, min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(learned)))))
    if not learned - held:
        raise UserError(f"pretrain: {len(learned)} different texts are too few to train on some and hold out others")
    make_folder(folder.texts)
    lock.acquire()
    _write(_file(folder, "train"), train, learned - held)
    _write(_file(folder, "dev"), dev, held)


def _given(text: str) -> Texts:
    file, _, column = text.rpartition(":")
    if not file or not column:
        raise UserError(f"--text {text}: expected FILE:COLUMN, as in reviews.parquet:text")
    return lambda: plain_texts(open_source(file), (column,))


def _of_task(spec: TaskSpec, source: str) -> Texts:
    return lambda: plain_texts(open_for(spec, source), spec.text)


def _keyed(sources: Iterable[Texts]) -> Iterator[tuple[bytes, str]]:
    for texts in sources:
        for text in texts():
            yield text_key(text), text


def _some(keys: set[bytes], most: int) -> set[bytes]:
    """The lowest keys. They are hashes, so this is a random choice that does not depend on the order of the texts."""
    return set(sorted(keys)[:most])


def _write(path: Path, sources: Iterable[Texts], wanted: set[bytes]) -> None:
    with atomic_file(path) as target, target.open("w", encoding="ascii") as file:
        for key, text in _keyed(sources):
            if key in wanted:
                wanted.remove(key)
                file.write(json.dumps({"text": text}) + "\n")
