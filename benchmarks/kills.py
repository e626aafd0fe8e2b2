"""Kills training runs again and again: polytask's and those of Hugging Face's `Trainer`, with the same loop.

    python benchmarks/kills.py [KILLS]

Both train a masked language model of the same size on the built-in opinions, from the same seed, saving every 2 steps
and keeping 2 checkpoints. A process is killed by SIGKILL at a random moment after its first step, and the next one
resumes in the way each library documents. If that fails, the newest checkpoint is deleted and the one before it is
tried. Counts incomplete newest checkpoints after a kill, resumes that failed, resumes that continued without optimizer
state or from step 0, and finished runs whose weights equal those of a run that was never killed. Both draw the masked
tokens at random. Batches are small, so that saving takes a good share of the time, as it does with large models.
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

Send = Callable[[str], None]
"""Sends a message from the training process: `resumed STEP OPTIMIZER`, then `stepping`."""


# --- the two trainers -------------------------------------------------------------------------------------------------
def train_ours(folder: Path, send: Send) -> None:
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
    send(f"resumed {running.session.step} {int(bool(running.session.optimizer.state))}")
    for number, _ in enumerate(running.steps()):
        if number == 0:
            send("stepping")


def our_newest(folder: Path) -> Path | None:
    return next(reversed(numbered(folder / "checkpoints", "step-").values()), None)


def ours_is_complete(checkpoint: Path) -> bool:
    try:
        check(checkpoint)
    except Damaged:
        return False
    return True


def our_optimizer(checkpoint: Path) -> Path:
    return checkpoint / "optimizer.safetensors"


def our_end(folder: Path) -> Path:
    return folder / "checkpoints" / f"step-{STEPS}" / "model.safetensors"


class SendProgress(TrainerCallback):
    """Sends the state that training starts from, and the first step."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.stepped = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.send(f"resumed {state.global_step} {int(bool(more['optimizer'].optimizer.state))}")

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not self.stepped:
            self.stepped = True
            self.send("stepping")


def train_theirs(folder: Path, send: Send) -> None:
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
        callbacks=[SendProgress(send)],
    )
    trainer.train(resume_from_checkpoint=their_newest(folder) is not None)
    trainer.save_model(str(folder / "end"))


def their_newest(folder: Path) -> Path | None:
    found = get_last_checkpoint(str(folder)) if folder.exists() else None
    return None if found is None else Path(found)


def theirs_is_complete(checkpoint: Path) -> bool:
    """Return whether every file is there, and has the length that its header declares."""
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
    train: Callable[[Path, Send], None]
    newest: Callable[[Path], Path | None]
    is_complete: Callable[[Path], bool]
    optimizer: Callable[[Path], Path]
    end: Callable[[Path], Path]


SIDES = (
    Side("polytask", train_ours, our_newest, ours_is_complete, our_optimizer, our_end),
    Side("transformers.Trainer", train_theirs, their_newest, theirs_is_complete, their_optimizer, their_end),
)


# --- the loop ---------------------------------------------------------------------------------------------------------
@dataclass
class Process:
    """A process that trains until it finishes, fails, or is killed."""

    pid: int
    pipe: int
    messages: str = ""
    seconds: float = 0.0
    """From its first step to its end."""

    def receive(self, timeout: float | None) -> bool:
        """Read what the process has sent; return False after the timeout, or if its end of the pipe is closed."""
        if not select.select([self.pipe], [], [], timeout)[0]:
            return False
        new = os.read(self.pipe, 4096).decode()
        self.messages += new
        return bool(new)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(status)


def run_process(side: Side, folder: Path, log: Path, kill_after: float | None = None) -> tuple[int, Process]:
    """Train in a process that is killed `kill_after` seconds after its first step; return its exit code as well."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code, messages = 0, os.fdopen(writing, "w")
        try:
            side.train(folder, lambda message: print(message, file=messages, flush=True))
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    process = Process(pid, reading)
    while "stepping" not in process.messages and process.receive(None):
        pass
    started = time.monotonic()
    if kill_after is not None:
        until = started + kill_after
        while (left := until - time.monotonic()) > 0 and process.receive(left):
            pass
        if time.monotonic() >= until:
            os.kill(pid, signal.SIGKILL)
    code = process.wait()
    process.seconds = time.monotonic() - started
    return code, process


@dataclass
class Counts:
    kills: int = 0
    incomplete: int = 0
    failed: int = 0
    without_optimizer: int = 0
    from_the_start: int = 0
    finished: int = 0
    same: int = 0
    repeats: bool = False
    """Whether two runs that were never killed end with the same weights."""
    deleted: str = ""
    """How a run resumed after its newest checkpoint had lost its optimizer file."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_optimizer_file(side: Side, folder: Path, log: Path, half: float) -> str:
    """Kill a run halfway, delete the optimizer's file from its newest complete checkpoint, and resume."""
    run_process(side, folder, log, half)
    newest = side.newest(folder)
    while newest is not None and not side.is_complete(newest):
        shutil.rmtree(newest)
        newest = side.newest(folder)
    assert newest is not None
    side.optimizer(newest).unlink()
    _, process = run_process(side, folder, log, 0.0)
    if "resumed" not in process.messages:
        return "refused"
    step, optimizer = map(int, process.messages.split()[1:3])
    return f"from step {step}, {'with' if optimizer else 'WITHOUT'} optimizer state ({newest.name} lost its file)"


def folders(place: Path) -> Iterator[Path]:
    number = 0
    while True:
        number += 1
        yield place / f"run-{number}"


def measure(side: Side, kills: int, place: Path) -> Counts:
    log = place / "log.txt"
    counts, rng, names = Counts(), random.Random(0), folders(place)
    for name in ("unkilled", "again"):
        code, unkilled = run_process(side, place / name, log)
        assert code == 0, log.read_text()
    expected = sha256(side.end(place / "unkilled"))
    counts.repeats = sha256(side.end(place / "again")) == expected
    counts.deleted = without_optimizer_file(side, place / "deleted", log, unkilled.seconds / 2)
    folder = next(names)
    while counts.kills < kills or folder.exists():
        before = side.newest(folder)
        last = counts.kills >= kills
        code, process = run_process(side, folder, log, None if last else rng.uniform(0, 2.5 * unkilled.seconds / kills))
        if before is not None and "resumed" in process.messages:
            step, optimizer = map(int, process.messages.split()[1:3])
            counts.from_the_start += step == 0
            counts.without_optimizer += step > 0 and not optimizer
        if code == -signal.SIGKILL:
            counts.kills += 1
            newest = side.newest(folder)
            counts.incomplete += newest is not None and not side.is_complete(newest)
        elif code == 0:
            counts.finished += 1
            counts.same += sha256(side.end(folder)) == expected
            folder = next(names)
        else:
            counts.failed += 1
            newest = side.newest(folder)
            assert newest is not None, log.read_text()
            shutil.rmtree(newest)  # as a user would after reading the traceback
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
        "incomplete",
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
        "newest checkpoint incomplete after a kill",
        "resumes that failed until a checkpoint was deleted by hand",
        "resumes that silently continued without optimizer state",
        "resumes that silently started at step 0",
        "runs that finished",
        "of these, with the weights of a run that was never killed",
        "two runs that were never killed end with the same weights",
        "optimizer file of the newest checkpoint deleted: the run resumed",
    ]
    results = []
    for side in SIDES:
        with tempfile.TemporaryDirectory() as place:
            results.append(measure(side, kills, Path(place)))
    print(f"| | {' | '.join(side.name for side in SIDES)} |\n|---|---|---|")
    for row, title in zip(rows, titles, strict=True):
        print(f"| {title} | {' | '.join(str(getattr(counts, row)) for counts in results)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
