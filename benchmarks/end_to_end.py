"""A whole `polytask train`, from the command to the report, against Hugging Face's Trainer doing the same work.

    python benchmarks/end_to_end.py --data DIR --encoder FOLDER [--batches 32 256] [--epochs 1] [--rounds 2]
        [--rows N] [--only polytask|trainer] [--out FILE.jsonl]

Every measurement is a process of its own, so imports, the start of CUDA, reading and tokenizing, training, dev scores
and (polytask only) predictions, the saved model and the report are all included. Three tasks: SST, Quora and STS of
recipes/three-tasks.yaml, from the same files, with the same encoder, epochs and batch size; bf16 on a GPU, float32 on
the CPU. polytask trains one encoder for all three, and scores dev also before the first step. Trainer (tuned: bf16,
fused AdamW, sdpa, grouped by length, workers) fine-tunes one model for each task, one after the other.

`cold` has empty caches of tokens and of compiled kernels, `warm` those that the run before has left. The ways take
turns. Every result is written to --out at once, as a JSON line; --rows uses only the first rows of every file.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
FILES = {
    "sst": ("cs224n/ids-sst-train.csv", "cs224n/ids-sst-dev.csv"),
    "quora": ("quora-train.tsv", "cs224n/quora-dev.csv"),
    "sts": ("cs224n/sts-train.csv", "cs224n/sts-dev.csv"),
}
COLUMNS = {
    "sst": (["sentence"], "sentiment"),
    "quora": (["sentence1", "sentence2"], "is_duplicate"),
    "sts": (["sentence1", "sentence2"], "similarity"),
}
CLASSES = {"sst": 5, "quora": 2, "sts": 1}
MAX_LENGTH = 128
SLOW = 3.0
"""A step that takes this many times the median has captured a graph, compiled a kernel or waited for one."""


# --- polytask ---------------------------------------------------------------------------------------------------------
def run_polytask(options: argparse.Namespace, data: Path, batch: int, caches: Path, folder: Path) -> dict[str, Any]:
    settings = {
        "data": data,
        "encoder": options.encoder.resolve(),
        "train.epochs": options.epochs,
        "train.batch_size": batch,
        "train.evaluate_every": "null",
    }
    command = [sys.executable, "-P", "-m", "polytask", "train", str(ROOT / "recipes" / "three-tasks.yaml")]
    command += ["--run", str(folder)] + [f for k, v in settings.items() for f in ("--set", f"{k}={v}")]
    environment = {"POLYTASK_CACHE": str(caches / "polytask"), "TRITON_CACHE_DIR": str(caches / "triton")}
    seconds = timed(command, environment)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    phases = dict(summary["phases"])
    slow = slow_seconds(folder / "metrics.jsonl")
    phases = {**phases, "steps": phases["steps"] - slow, "first steps, captures": slow}
    phases["Python, report"] = seconds - sum(phases.values())
    scores = {
        task: score["metrics"][score["primary"]]["value"] for task, score in summary["evaluations"]["dev"].items()
    }
    return {"seconds": seconds, "phases": phases, "scores": scores, "device": summary["device"]}


def slow_seconds(journal: Path) -> float:
    """What slow steps took beyond the median of all steps."""
    lines = map(json.loads, journal.read_text(encoding="utf-8").splitlines())
    steps = [line["seconds"] for line in lines if line["kind"] == "step"]
    usual = median(steps)
    return float(sum(seconds - usual for seconds in steps if seconds > SLOW * usual))


def timed(command: Sequence[str], environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return seconds


# --- Trainer ----------------------------------------------------------------------------------------------------------
def run_trainer(options: argparse.Namespace, data: Path, batch: int, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    result = folder / "result.json"
    content = {
        "data": str(data),
        "encoder": str(options.encoder),
        "batch": batch,
        "epochs": options.epochs,
        "folder": str(folder),
        "result": str(result),
        "started": time.time(),
    }
    seconds = timed([sys.executable, __file__, "--as-trainer", json.dumps(content)], {})
    return {"seconds": seconds, **json.loads(result.read_text(encoding="utf-8"))}


def read_rows(file: Path, task: str) -> Iterator[tuple[list[str], float]]:
    """The texts and the label of every usable row."""
    texts, label = COLUMNS[task]
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if all(row[name] and row[name].strip() for name in texts) and row[label]:
                yield [row[name] for name in texts], float(row[label])


def as_trainer(content: Mapping[str, Any]) -> None:
    """What a user's script with Trainer does: read, tokenize, train and evaluate every task."""
    import torch  # noqa: PLC0415  (the time of these imports is measured)
    from trainer_gpu import grouped_by_length, padded  # noqa: PLC0415
    from transformers import AutoTokenizer, BertForSequenceClassification, Trainer, TrainingArguments  # noqa: PLC0415

    phases = {"imports": time.time() - content["started"]}
    cuda = torch.cuda.is_available()
    workers = min(6, os.cpu_count() or 1) if cuda else 0
    tokenizer = AutoTokenizer.from_pretrained(content["encoder"])

    def tokenized(file: str, task: str) -> list[dict[str, Any]]:
        rows = list(read_rows(Path(content["data"]) / file, task))
        columns = [[texts[i] for texts, _ in rows] for i in range(len(COLUMNS[task][0]))]
        found = tokenizer(*columns, truncation=True, max_length=MAX_LENGTH)
        number = float if CLASSES[task] == 1 else int
        labels = [number(label) for _, label in rows]
        names = ("input_ids", "token_type_ids")
        return [{**{n: found[n][i] for n in names}, "labels": labels[i]} for i in range(len(rows))]

    def add(phase: str, started: float) -> None:
        phases[phase] = phases.get(phase, 0.0) + time.perf_counter() - started

    scores = {}
    for task, files in FILES.items():
        started = time.perf_counter()
        train, dev = (tokenized(file, task) for file in files)
        scored: Any = dev  # a list will do as a Dataset
        add("data", started)
        started = time.perf_counter()
        model = BertForSequenceClassification.from_pretrained(
            content["encoder"], num_labels=CLASSES[task], dtype=torch.float32
        )
        settings: dict[str, Any] = {"bf16": cuda, "tf32": True} if cuda else {"use_cpu": True}
        arguments = TrainingArguments(
            output_dir=content["folder"],
            num_train_epochs=content["epochs"],
            per_device_train_batch_size=content["batch"],
            per_device_eval_batch_size=256,
            learning_rate=1e-4,
            optim="adamw_torch_fused",
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **grouped_by_length(),
            **settings,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=train, data_collator=padded)
        add("model", started)
        started = time.perf_counter()
        trainer.train()
        add("training", started)
        started = time.perf_counter()
        logits, labels, _ = trainer.predict(scored)
        scores[task] = score(logits, labels)
        add("evaluations", started)
    device = torch.cuda.get_device_name() if cuda else "cpu"
    Path(content["result"]).write_text(json.dumps({"phases": phases, "scores": scores, "device": device}))


def score(logits: Any, labels: Any) -> float:
    """Accuracy, or Pearson's correlation of a single output."""
    import numpy as np  # noqa: PLC0415  (not in the process that only measures)

    if logits.shape[-1] == 1:
        return float(np.corrcoef(logits[:, 0], labels)[0, 1])
    return float((logits.argmax(-1) == labels).mean())


# --- the measurement --------------------------------------------------------------------------------------------------
def shortened(data: Path, rows: int, folder: Path) -> Path:
    """Copies of the files with their first rows."""
    for file in (file for files in FILES.values() for file in files):
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        lines = (data / file).read_text(encoding="utf-8").splitlines(keepends=True)
        target.write_text("".join(lines[: rows + 1]), encoding="utf-8")
    return folder


def measure(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields every result; the first round of polytask with a batch size has cold caches."""
    data = options.data.resolve()
    data = shortened(data, options.rows, folder / "data") if options.rows else data
    for batch in options.batches:
        caches = folder / f"caches-{batch}"
        for number in range(options.rounds + 1):
            common = {"batch": batch, "epochs": options.epochs, "rows": options.rows, "round": number}
            if options.only != "trainer":
                state = "warm" if number else "cold"
                found = run_polytask(options, data, batch, caches, folder / f"polytask-{batch}-{number}")
                yield {"way": "polytask", "caches": state, **common, **found}
            if options.only != "polytask" and number:
                yield {"way": "trainer", **common, **run_trainer(options, data, batch, folder / f"hf-{batch}-{number}")}


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--data", type=Path)
    given.add_argument("--encoder", type=Path)
    given.add_argument("--batches", type=int, nargs="+", default=[32, 256])
    given.add_argument("--epochs", type=int, default=1)
    given.add_argument("--rounds", type=int, default=2)
    given.add_argument("--rows", type=int)
    given.add_argument("--only", choices=["polytask", "trainer"])
    given.add_argument("--out", type=Path)
    given.add_argument("--as-trainer", help=argparse.SUPPRESS)
    options = given.parse_args()
    if options.as_trainer:
        as_trainer(json.loads(options.as_trainer))
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for result in measure(options, Path(folder)):
            found.append(result)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
            parts = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in result["phases"].items())
            scores = ", ".join(f"{task} {value:.3f}" for task, value in result["scores"].items())
            kind = f"{result['way']} {result.get('caches', '')}".strip()
            print(f"{kind}, {result['batch']} a step: {result['seconds']:.1f} s ({parts}; dev: {scores})", flush=True)
    for batch in options.batches:
        times = {
            kind: [r["seconds"] for r in found if r["batch"] == batch and (r["way"], r.get("caches")) == kind]
            for kind in (("polytask", "cold"), ("polytask", "warm"), ("trainer", None))
        }
        ours, theirs = times["polytask", "warm"], times["trainer", None]
        if ours and theirs:
            cold = times["polytask", "cold"][0]
            print(
                f"{batch} a step: Trainer {median(theirs):.1f} s, polytask {median(ours):.1f} s (cold {cold:.1f} s): "
                f"{median(theirs) / median(ours):.2f} times as fast (cold {median(theirs) / cold:.2f})"
            )


if __name__ == "__main__":
    main()
