"""Further masked-language-model training, before fine-tuning. Knows recipes, files of text and runs.

The texts are gathered into the run's folder, each once; what follows is a run of one task of plain text on them. Its
`model/` is an encoder like any other.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from polytask.disk.atomic import atomic_file, write_atomically
from polytask.disk.json_files import read_json
from polytask.disk.lock import hold
from polytask.disk.records import convert
from polytask.disk.writable import make_folder
from polytask.recipe.reading import read_recipe
from polytask.recipe.records import Recipe
from polytask.runs.resume import RECIPE
from polytask.runs.run import TEXTS, Finished, Running, check_free
from polytask.tasks.reading import open_for, open_source
from polytask.tasks.rows import plain_texts
from polytask.tasks.splitting import text_key
from polytask.types import MethodChoice, MetricValue, TaskSpec, UserError

TASK = "texts"
HELD_BACK, MOST_HELD_BACK = 0.05, 2_000
"""The share of the texts that perplexity is measured on where there is no dev text, and how many at most."""

Texts = Callable[[], Iterator[str]]
"""Texts that can be gone through more than once."""


@dataclass(frozen=True)
class Pretrained:
    """A finished pretraining run, and its perplexity on held-back text before and after."""

    finished: Finished
    before: MetricValue
    after: MetricValue

    @property
    def encoder(self) -> Path:
        """What to give as `encoder` to the recipe that fine-tunes."""
        return self.finished.folder / "model"


def pretrain(
    recipe: Recipe | str | Path,
    run: str | Path | None = None,
    settings: Iterable[str] = (),
    texts: Sequence[str] = (),
    own: bool | None = None,
    resume: bool = False,
    allow_change: bool = False,
) -> Pretrained:
    """Trains a recipe's encoder further on plain text: see `Pretraining`."""
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe, settings)
    running = Pretraining(recipe, run, texts, own, resume, allow_change)
    for _ in running.steps():
        pass
    return running.result()


class Pretraining(Running):
    """A masked language model of a recipe's texts under way: iterate `steps()`, then take the `result()`.

    Encoder, optimizer and train settings are the recipe's; its adapter, regularizers, sampler, policy and teachers are
    for its tasks, and have no part in this. The text is that of the tasks' training files, or of `texts`, given as
    FILE:COLUMN; both with `own=True`. Held back are texts of the tasks' dev files, or 5 % where none of those is used.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: str | Path | None = None,
        texts: Sequence[str] = (),
        own: bool | None = None,
        resume: bool = False,
        allow_change: bool = False,
    ) -> None:
        folder = Path(run) if run is not None else Path("runs") / f"{recipe.name}-pretrained"
        use_own = not texts if own is None else own
        given = [_given(text) for text in texts]
        if not resume:
            check_free(folder)
        if not resume or (folder.exists() and not (folder / RECIPE).exists()):  # stopped while it gathered
            _gather(recipe, given, use_own, folder)
        super().__init__(_of_texts(recipe, folder), folder, resume, allow_change)
        self.before = self._before(folder / TEXTS / "before.json")

    def result(self) -> Pretrained:
        """Finishes the run: see `Running.finish`."""
        finished = self.finish()
        return Pretrained(finished, self.before, finished.evaluations["dev"].tasks[TASK].metrics["perplexity"])

    def _before(self, path: Path) -> MetricValue:
        """Measured once: a run that goes on has other weights by then."""
        if not path.exists():
            found = self.evaluate("dev").tasks[TASK].metrics["perplexity"]
            write_atomically(path, json.dumps(asdict(found)))
        before: MetricValue = convert(read_json(path), MetricValue, str(path))
        return before


def _of_texts(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe of the run itself."""
    train, dev = (str((folder / TEXTS / f"{split}.jsonl").absolute()) for split in ("train", "dev"))
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


# --- texts ------------------------------------------------------------------------------------------------------------
def _gather(recipe: Recipe, given: Sequence[Texts], own: bool, run: Path) -> None:
    """train.jsonl and dev.jsonl: each text once, and in one of them only. Memory holds a key of each text, no more."""
    specs = recipe.tasks.values() if own else ()
    train = [*given, *(_of_task(spec, spec.train) for spec in specs)]
    dev = [_of_task(spec, spec.dev) for spec in specs]
    learned = {key for key, _ in _keyed(train)}
    held = _some({key for key, _ in _keyed(dev)} - learned, MOST_HELD_BACK)
    if not held:
        dev, held = train, _some(learned, min(MOST_HELD_BACK, max(1, round(HELD_BACK * len(learned)))))
    if not learned - held:
        raise UserError(f"pretrain: {len(learned)} different texts are too few to learn from some and hold back others")
    folder = run / TEXTS
    make_folder(folder)
    hold(run)
    _write(folder / "train.jsonl", train, learned - held)
    _write(folder / "dev.jsonl", dev, held)


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
    """Always the same ones, whatever order they come in; the keys are hashes, so the lowest are as good as any."""
    return set(sorted(keys)[:most])


def _write(path: Path, sources: Iterable[Texts], wanted: set[bytes]) -> None:
    with atomic_file(path) as beside, beside.open("w", encoding="ascii") as file:
        for key, text in _keyed(sources):
            if key in wanted:
                wanted.remove(key)
                file.write(json.dumps({"text": text}) + "\n")
