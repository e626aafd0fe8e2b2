"""Compares two kinds of tasks with the libraries that people use for them: scores, and time from the command to them.

    POLYTASK_DATA=DIR python benchmarks/kinds_peers.py [--only match] [--seeds 3]

`match`: 2,000 pairs of duplicate questions (Quora), scored on 1,000 of dev, and sentence-transformers with
MultipleNegativesRankingLoss and InformationRetrievalEvaluator. `tokens`: parts of speech of 4,000 sentences of SST,
tagged by TextBlob, and transformers' BertForTokenClassification with Trainer. Encoder, rows, batch size, learning rate,
warm-up, weight decay, clipping and number of epochs are the same. The peer uses float32, its default, and bf16;
polytask chooses for itself (`train.precision: auto`). Every run is a process of its own, and the programs take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from polytask.machine import environment
from polytask.pretrained.find import find_encoder
from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow

RECIPES = Path(__file__).parent.parent / "recipes"
PAIR = ("sentence1", "sentence2")
TRAINING_PAIRS, DEV_PAIRS, SENTENCES = 2000, 1000, 4000
LENGTH, BATCH, WARM_UP, CLIP = 64, 32, 0.1, 1.0

Scores = dict[str, float]


@dataclass(frozen=True)
class Kind:
    """One comparison."""

    write_rows: Callable[[Path, Path], None]
    """(data, folder) -> train.jsonl and dev.jsonl in the folder."""
    task: Mapping[str, Any]
    metrics: tuple[str, ...]
    peer: Callable[[Path, int, bool], Scores]
    """(folder, seed, whether it uses bf16) -> its scores."""
    rate: float
    epochs: int


def write_duplicates(data: Path, folder: Path) -> None:
    files = {"train": ("quora-train.tsv", TRAINING_PAIRS), "dev": ("cs224n/quora-dev.csv", DEV_PAIRS)}
    for split, (name, count) in files.items():
        rows = open_source(str(data / name)).rows([*PAIR, "is_duplicate"])
        values = [row[1] for row in rows if not isinstance(row, BrokenRow)]
        pairs = dict(row[:2] for row in values if str(row[2]) in ("1", "1.0") and all(row[:2]))  # each first text once
        lines = [json.dumps(dict(zip(PAIR, pair, strict=True))) + "\n" for pair in list(pairs.items())[:count]]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def write_tags(data: Path, folder: Path) -> None:
    for split in ("train", "dev"):
        words = [sys.executable, str(RECIPES / "tag_words.py"), str(data / f"cs224n/ids-sst-{split}.csv"), "sentence"]
        target = folder / f"{split}.jsonl"
        subprocess.run([*words, str(target)], check=True, capture_output=True)
        lines = [json.dumps(row) + "\n" for row in read_rows(target)[:SENTENCES]]
        target.write_text("".join(lines), encoding="utf-8")


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def sentence_transformers(folder: Path, seed: int, bf16: bool) -> Scores:
    from datasets import Dataset  # noqa: PLC0415
    from sentence_transformers import sentence_transformer as peer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer import losses, modules  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator  # noqa: PLC0415

    words = modules.Transformer(str(find_encoder("minilm")), max_seq_length=LENGTH)
    pooling = modules.Pooling(words.get_embedding_dimension())
    model = peer.SentenceTransformer(modules=[words, pooling, modules.Normalize()])
    settings = peer.SentenceTransformerTrainingArguments(**trainer_settings("match", folder, seed, bf16))
    rows = Dataset.from_list(read_rows(folder / "train.jsonl"))
    loss = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    peer.SentenceTransformerTrainer(model, settings, train_dataset=rows, loss=loss).train()
    partners = {row[PAIR[0]]: {row[PAIR[1]]} for row in read_rows(folder / "dev.jsonl")}
    texts = sorted(set().union(*partners.values()))  # each text is its own id
    evaluate = InformationRetrievalEvaluator(
        {text: text for text in partners}, {text: text for text in texts}, partners,
        mrr_at_k=[len(texts)], accuracy_at_k=[1, 10], precision_recall_at_k=[1], ndcg_at_k=[1], map_at_k=[1],
    )  # fmt: skip
    found = evaluate(model)
    names = {"mrr": f"cosine_mrr@{len(texts)}", "recall@1": "cosine_accuracy@1", "recall@10": "cosine_accuracy@10"}
    return {metric: found[name] for metric, name in names.items()}


def trainer(folder: Path, seed: int, bf16: bool) -> Scores:
    import transformers  # noqa: PLC0415

    transformers.set_seed(seed)
    path = str(find_encoder("minilm"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    train, dev = (read_rows(folder / f"{split}.jsonl") for split in ("train", "dev"))
    numbers = {tag: number for number, tag in enumerate(sorted({tag for row in train for tag in row["tags"]}))}

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        ids = tokenizer(row["words"], is_split_into_words=True, truncation=True, max_length=LENGTH)
        owners = ids.word_ids()
        first = [owner is not None and owner != owners[place - 1] for place, owner in enumerate(owners)]
        tags = [numbers.get(row["tags"][owner]) if one else None for owner, one in zip(owners, first, strict=True)]
        return {**ids, "labels": [-100 if tag is None else tag for tag in tags]}

    model = transformers.BertForTokenClassification.from_pretrained(path, num_labels=len(numbers))
    settings = transformers.TrainingArguments(**trainer_settings("tokens", folder, seed, bf16))
    rows: Any = [[encoded(row) for row in split] for split in (train, dev)]
    collate = transformers.DataCollatorForTokenClassification(tokenizer)
    run = transformers.Trainer(model, settings, train_dataset=rows[0], data_collator=collate)
    run.train()
    found: Any = run.predict(rows[1])
    right = found.predictions.argmax(-1) == found.label_ids
    return {"accuracy": float(right[found.label_ids >= 0].mean())}


def trainer_settings(name: str, folder: Path, seed: int, bf16: bool) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "peer"), "num_train_epochs": KINDS[name].epochs, "learning_rate": KINDS[name].rate,
        "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": 128, "warmup_steps": WARM_UP,
        "weight_decay": 0.01, "max_grad_norm": CLIP, "seed": seed, "bf16": bf16, "use_cpu": True, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip


KINDS = {
    "match": Kind(
        write_duplicates, {"kind": "match", "text": list(PAIR)},
        ("mrr", "recall@1", "recall@10"), sentence_transformers, 2e-5, 1,
    ),
    "tokens": Kind(write_tags, {"kind": "tokens", "text": "words", "label": "tags"}, ("accuracy",), trainer, 2e-4, 1),
}  # fmt: skip


def polytask_scores(name: str, folder: Path, seed: int) -> Scores:
    """`polytask train` in a process of its own."""
    kind = KINDS[name]
    task = {**kind.task, "train": str(folder / "train.jsonl"), "dev": str(folder / "dev.jsonl")}
    recipe = {
        "name": name, "encoder": "minilm", "max_length": LENGTH, "tasks": {"task": task}, "seed": seed,
        "optimizer": {"name": "fused_adamw", "lr": kind.rate, "weight_decay": 0.01},
        "train": {
            "epochs": kind.epochs, "batch_size": BATCH, "warmup": WARM_UP, "clip": CLIP, "precision": "auto",
            "evaluate_every": 1_000_000,
        },
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    run = folder / f"run-{seed}"
    command = [sys.executable, "-P", "-m", "polytask", "train", str(folder / "recipe.yaml"), "--run", str(run)]
    subprocess.run(command, check=True, capture_output=True)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    dev = summary["evaluations"]["dev"]["task"]["metrics"]
    return {metric: dev[metric]["value"] for metric in kind.metrics}


def peer_scores(name: str, folder: Path, seed: int, precision: str) -> Scores:
    """The peer in a process of its own."""
    command = [sys.executable, "-P", __file__, "--peer", name, str(folder), str(seed), precision]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    scores: Scores = json.loads(done.stdout.splitlines()[-1])
    return scores


def compare(name: str, data: Path, seeds: int) -> None:
    programs: dict[str, Callable[[Path, int], Scores]] = {
        "polytask": lambda folder, seed: polytask_scores(name, folder, seed),
        "peer, float32": lambda folder, seed: peer_scores(name, folder, seed, "float32"),
        "peer, bf16": lambda folder, seed: peer_scores(name, folder, seed, "bf16"),
    }
    scores: dict[str, list[Scores]] = {program: [] for program in programs}
    seconds: dict[str, list[float]] = {program: [] for program in programs}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        KINDS[name].write_rows(data, folder)
        count = {split: len(read_rows(folder / f"{split}.jsonl")) for split in ("train", "dev")}
        print(f"\n{name}: {count['train']:,} training rows, {count['dev']:,} dev rows", flush=True)
        polytask_scores(name, folder, 1000)  # tokenized texts are in the cache for all, as they are after any first run
        for seed in range(seeds):
            for program, run in programs.items():
                started = time.perf_counter()
                scores[program].append(run(folder, seed))
                seconds[program].append(time.perf_counter() - started)
                shown = "  ".join(f"{metric} {value:.4f}" for metric, value in scores[program][-1].items())
                print(f"seed {seed}, {program}: {shown}  {seconds[program][-1]:.0f} s", flush=True)
    metrics = KINDS[name].metrics
    print(f"\n| | {' | '.join(metrics)} | seconds | times polytask's |")
    print("|---|" + "---|" * (len(metrics) + 2))
    for program in programs:
        means = [spread([one[metric] for one in scores[program]], 4) for metric in metrics]
        ratios = [own / ours for own, ours in zip(seconds[program], seconds["polytask"], strict=True)]
        print(f"| {program} | {' | '.join(means)} | {spread(seconds[program], 0)} | {spread(ratios, 2)} |", flush=True)


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        name, folder, seed, precision = options.peer
        print(json.dumps(KINDS[name].peer(Path(folder), int(seed), precision == "bf16")))
        return
    machine = environment(torch.device("cpu"))
    print(f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}; load {os.getloadavg()[0]:.1f}")
    for name in [options.only] if options.only else KINDS:
        compare(name, Path(os.environ["POLYTASK_DATA"]), options.seeds)


if __name__ == "__main__":
    main()
