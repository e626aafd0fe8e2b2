"""Killed again and again: polytask's runs beside Hugging Face's `Trainer`, by the same loop.

    python benchmarks/kills.py [KILLS]

Both train a masked language model of the same size on the built-in opinions, from the same seed, saving every 2 steps
and keeping 2 checkpoints. A process is killed by SIGKILL at a random moment after its first step, and the next one
resumes from what is there, as each library's own command does. Where that fails, the newest checkpoint is deleted by
hand and the one before is tried. Counted: newest checkpoints that are not whole after a kill, resumes that failed,
resumes that went on without optimizer state or from step 0, and finished runs whose weights are those of a run that was
never killed. The masks are drawn at random by both: that is what a collator does. Batches are small, so that saving
takes a good share of the time, as it does where models are large.
"""

import csv
import hashlib
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

import polytask
from polytask import recipe_from, start_training
from polytask.machine import environment
from polytask.training.checkpoint import Damaged, check, numbered

STEPS, SAVE_EVERY, KEEP, BATCH, LENGTH = 60, 2, 2, 4, 32
LAYERS, HIDDEN, HEADS, FFN = 4, 256, 4, 1024
THEIR_FILES = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")

Tell = Callable[[str], None]
"""Called by a process that trains: `resumed STEP OPTIMIZER`, then `stepping`."""


# --- the two trainers -------------------------------------------------------------------------------------------------
def train_ours(folder: Path, tell: Tell) -> None:
    task = {"kind": "text", "text": "text", "train": "sample:opinions-train", "dev": "sample:opinions-dev"}
    size = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "ffn": FFN, "positions": LENGTH}
    settings = {"epochs": 1, "steps_per_epoch": STEPS, "batch_size": BATCH, "save_every": SAVE_EVERY, "keep": KEEP}
    recipe = recipe_from(
        {
            "tasks": {"words": task},
            "encoder": size,
            "max_length": LENGTH,
            "optimizer": {"name": "adamw", "lr": 5e-4},
            "train": {**settings, "device": "cpu", "threads": 1},
        }
    )
    running = start_training(recipe, folder, resume=folder.exists())
    tell(f"resumed {running.session.step} {int(bool(running.session.optimizer.state))}")
    for number, _ in enumerate(running.steps()):
        if number == 0:
            tell("stepping")


def our_newest(folder: Path) -> Path | None:
    return next(reversed(numbered(folder / "checkpoints", "step-").values()), None)


def ours_is_whole(checkpoint: Path) -> bool:
    try:
        check(checkpoint)
    except Damaged:
        return False
    return True


def our_optimizer(checkpoint: Path) -> Path:
    return checkpoint / "optimizer.safetensors"


def our_end(folder: Path) -> Path:
    return folder / "checkpoints" / f"step-{STEPS}" / "model.safetensors"


class Telling(TrainerCallback):
    """What the trainer has when it begins, and when it has made a step."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.stepped = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.tell(f"resumed {state.global_step} {int(bool(more['optimizer'].optimizer.state))}")

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not self.stepped:
            self.stepped = True
            self.tell("stepping")


def train_theirs(folder: Path, tell: Tell) -> None:
    vocabulary = resources.files("polytask.text") / "small_vocabulary" / "vocab.txt"
    tokenizer = BertTokenizer(vocab=str(vocabulary))
    with (resources.files("polytask.tasks") / "sample" / "opinions-train.csv").open(encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        intermediate_size=FFN,
        max_position_embeddings=LENGTH,
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=5e-4,
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        save_total_limit=KEEP,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model=BertForMaskedLM(config),
        args=arguments,
        train_dataset=[tokenizer(text, truncation=True, max_length=LENGTH) for text in texts],
        data_collator=DataCollatorForLanguageModeling(tokenizer),
        callbacks=[Telling(tell)],
    )
    trainer.train(resume_from_checkpoint=their_newest(folder) is not None)
    trainer.save_model(str(folder / "end"))


def their_newest(folder: Path) -> Path | None:
    found = get_last_checkpoint(str(folder)) if folder.exists() else None
    return None if found is None else Path(found)


def theirs_is_whole(checkpoint: Path) -> bool:
    """Every file is there, and those that say where they end are as long as they say."""
    if not all((checkpoint / name).is_file() for name in THEIR_FILES):
        return False
    try:
        with safe_open(checkpoint / "model.safetensors", "pt"):
            pass
    except SafetensorError:
        return False
    zipped = [checkpoint / name for name in THEIR_FILES if name.endswith((".pt", ".pth"))]
    return all(zipfile.is_zipfile(path) for path in zipped)


def their_optimizer(checkpoint: Path) -> Path:
    return checkpoint / "optimizer.pt"


def their_end(folder: Path) -> Path:
    return folder / "end" / "model.safetensors"


@dataclass(frozen=True)
class Side:
    name: str
    train: Callable[[Path, Tell], None]
    newest: Callable[[Path], Path | None]
    is_whole: Callable[[Path], bool]
    optimizer: Callable[[Path], Path]
    end: Callable[[Path], Path]


SIDES = (
    Side("polytask", train_ours, our_newest, ours_is_whole, our_optimizer, our_end),
    Side("transformers.Trainer", train_theirs, their_newest, theirs_is_whole, their_optimizer, their_end),
)


# --- the loop ---------------------------------------------------------------------------------------------------------
@dataclass
class Life:
    """A process that trains until it is done, fails, or is killed."""

    pid: int
    pipe: int
    said: str = ""
    seconds: float = 0.0
    """From its first step to its end."""

    def hear(self, timeout: float | None) -> bool:
        """Whether it said something; nothing more is to come when its end of the pipe is closed."""
        if not select.select([self.pipe], [], [], timeout)[0]:
            return False
        new = os.read(self.pipe, 4096).decode()
        self.said += new
        return bool(new)

    def ended(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(status)


def live(side: Side, folder: Path, log: Path, kill_after: float | None = None) -> tuple[int, Life]:
    """One process; killed so many seconds after its first step. Its exit code, and what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code, said = 0, os.fdopen(writing, "w")
        try:
            side.train(folder, lambda words: print(words, file=said, flush=True))
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    life = Life(pid, reading)
    while "stepping" not in life.said and life.hear(None):
        pass
    started = time.monotonic()
    if kill_after is not None:
        until = started + kill_after
        while (left := until - time.monotonic()) > 0 and life.hear(left):
            pass
        if time.monotonic() >= until:
            os.kill(pid, signal.SIGKILL)
    code = life.ended()
    life.seconds = time.monotonic() - started
    return code, life


@dataclass
class Counts:
    kills: int = 0
    not_whole: int = 0
    failed: int = 0
    without_optimizer: int = 0
    from_the_start: int = 0
    finished: int = 0
    same: int = 0
    repeats: bool = False
    """Two runs that were never killed end with the same weights."""
    deleted: str = ""
    """What became of a run whose newest checkpoint had lost its optimizer file."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_optimizer_file(side: Side, folder: Path, log: Path, half: float) -> str:
    """Killed in mid-run; then the optimizer's file is deleted from its newest whole checkpoint."""
    live(side, folder, log, half)
    newest = side.newest(folder)
    while newest is not None and not side.is_whole(newest):
        shutil.rmtree(newest)
        newest = side.newest(folder)
    assert newest is not None
    side.optimizer(newest).unlink()
    _, life = live(side, folder, log, 0.0)
    if "resumed" not in life.said:
        return "refused"
    step, optimizer = map(int, life.said.split()[1:3])
    return f"from step {step}, {'with' if optimizer else 'WITHOUT'} optimizer state ({newest.name} lost its file)"


def folders(place: Path) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        yield place / f"run-{number}"


def measure(side: Side, kills: int, place: Path) -> Counts:
    log = place / "log.txt"
    counts, draw, names = Counts(), random.Random(0), folders(place)
    for name in ("straight", "again"):
        code, straight = live(side, place / name, log)
        assert code == 0, log.read_text()
    unkilled = sha256(side.end(place / "straight"))
    counts.repeats = sha256(side.end(place / "again")) == unkilled
    counts.deleted = without_optimizer_file(side, place / "deleted", log, straight.seconds / 2)
    folder = next(names)
    while counts.kills < kills or folder.exists():
        had = side.newest(folder)
        last = counts.kills >= kills
        code, life = live(side, folder, log, None if last else draw.uniform(0, 2.5 * straight.seconds / kills))
        if had is not None and "resumed" in life.said:
            step, optimizer = map(int, life.said.split()[1:3])
            counts.from_the_start += step == 0
            counts.without_optimizer += step > 0 and not optimizer
        if code == -signal.SIGKILL:
            counts.kills += 1
            newest = side.newest(folder)
            counts.not_whole += newest is not None and not side.is_whole(newest)
        elif code == 0:
            counts.finished += 1
            counts.same += sha256(side.end(folder)) == unkilled
            folder = next(names)
        else:
            counts.failed += 1
            newest = side.newest(folder)
            assert newest is not None, log.read_text()
            shutil.rmtree(newest)  # what a user does who has read the traceback
    return counts


def main(kills: int) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    about = environment(torch.device("cpu"))
    versions = f"polytask {polytask.__version__}, transformers {transformers.__version__}, torch {about['torch']}"
    print(f"{versions}, {about['cpu']}")
    print(f"{STEPS} steps, a checkpoint every {SAVE_EVERY}, {KEEP} kept, {LAYERS} layers of {HIDDEN}\n")
    rows = [
        "kills",
        "not_whole",
        "failed",
        "without_optimizer",
        "from_the_start",
        "finished",
        "same",
        "repeats",
        "deleted",
    ]
    titles = [
        "kills",
        "newest checkpoint not whole after a kill",
        "resumes that failed, and needed a checkpoint deleted by hand",
        "resumes that silently had no optimizer state",
        "resumes that silently began at step 0",
        "runs that finished",
        "of these, with the weights of a run that was never killed",
        "two runs that were never killed end with the same weights",
        "optimizer file of the newest checkpoint deleted: the resume went on",
    ]
    found = []
    for side in SIDES:
        with tempfile.TemporaryDirectory() as place:
            found.append(measure(side, kills, Path(place)))
    print(f"| | {' | '.join(side.name for side in SIDES)} |\n|---|---|---|")
    for row, title in zip(rows, titles, strict=True):
        print(f"| {title} | {' | '.join(str(getattr(counts, row)) for counts in found)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
