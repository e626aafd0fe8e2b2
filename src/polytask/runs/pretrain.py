"""Further masked-language-model training of an encoder, before fine-tuning.

The texts are collected in the run's folder, each once; the run then has one task of plain text on them. Its `model/` is
an encoder like any other.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polytask.disk.atomic import atomic_file
from polytask.disk.lock import FolderLock
from polytask.disk.writable import make_folder
from polytask.evaluation.baselines import report_from
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import Recipe
from polytask.runs.finish import Finished
from polytask.runs.folder import RunFolder
from polytask.runs.prepare import trained_tasks
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
    """A finished pretraining run, and its perplexity on held-out text before and after."""

    finished: Finished
    before: MetricValue | None
    """None for a run that was started by a version that did not measure it."""
    after: MetricValue

    @property
    def encoder(self) -> Path:
        """The `encoder` for the recipe that fine-tunes."""
        return RunFolder(self.finished.folder).model.path

    @classmethod
    def of(cls, finished: Finished) -> "Pretrained":
        start = finished.summary.start
        before = None if start is None else report_from({"step": 0, "split": "dev", "tasks": start})
        return cls(
            finished,
            None if before is None else before.tasks[TASK].metrics["perplexity"],
            finished.evaluations["dev"].tasks[TASK].metrics["perplexity"],
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
) -> Pretrained:
    """Trains a recipe's encoder further on plain text, with the arguments of `start_pretraining`."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, settings)
    running = start_pretraining(recipe, run, texts, own, resume, allow_change, keep_checkpoints)
    return Pretrained.of(running.complete())


def start_pretraining(
    recipe: Recipe,
    run: str | Path | None = None,
    texts: Sequence[str] = (),
    own: bool | None = None,
    resume: bool = False,
    allow_change: bool = False,
    keep_checkpoints: bool = False,
) -> Running:
    """Prepares a run that trains a masked language model on a recipe's texts.

    Encoder, optimizer and train settings are the recipe's; its adapter, regularizers, sampler, policy and teachers are
    not used. The texts are those of the tasks' training files, or of `texts`, given as FILE:COLUMN; both with
    `own=True`. Held out are texts of the tasks' dev files, or 5 % of the texts if no dev file is used. `resume`,
    `allow_change` and `keep_checkpoints` are those of `start_training`.
    """
    folder = RunFolder(Path(run) if run is not None else Path("runs") / f"{recipe.name}-pretrained")
    use_own = not texts if own is None else own
    given = [_given(text) for text in texts]
    lock = FolderLock(folder.path)
    if not resume:
        check_free(folder)
    if not resume or (folder.path.exists() and not folder.recipe.exists()):  # stopped while it collected texts
        _collect(recipe, given, use_own, folder, lock)
    return start_run(_of_texts(recipe, folder), folder, lock, resume, allow_change, keep_checkpoints)


def _of_texts(recipe: Recipe, folder: RunFolder) -> Recipe:
    """The recipe of the pretraining run."""
    train, dev = (str(_file(folder, split).absolute()) for split in ("train", "dev"))
    return Recipe(
        tasks={TASK: TaskSpec(TASK, "text", ("text",), None, train, dev, head=MethodChoice("mlm"))},
        name=f"{recipe.name}-pretrained",
        encoder=recipe.encoder,
        max_length=recipe.max_length,
        dropout=recipe.dropout,
        attention_dropout=recipe.attention_dropout,
        seed=recipe.seed,
        optimizer=recipe.optimizer,
        train=replace(recipe.train, select="mean", parts="all", norms=False),
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
