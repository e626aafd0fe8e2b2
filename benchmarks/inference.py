"""Compares prediction on this CPU: polytask, transformers, sentence-transformers and ONNX Runtime, same weights.

    python benchmarks/inference.py [ROUNDS] [TEXTS]

Everything is timed from a list of strings to predictions: tokenizing, the encoder, and labels (or vectors) at the end.
The programs take turns in one process, on the same texts. Prints texts per second, and the ratio of each program's time
to polytask's (the median over the rounds, and the middle 80 %). On a shared machine, threads also wait for other
processes: run it with OMP_NUM_THREADS=1 there, and look at the processor time.

- labels: MiniLM with its pooler and a linear layer of 5 classes. `pipeline` is transformers' text-classification
  pipeline with default settings (one text at a time, float32); `tuned` is a careful script (sorted by length, batches
  of 32 padded to their longest text, sdpa, inference_mode), in float32 and in bf16; ONNX Runtime runs the exported
  model in float32, sorted and padded in the same program.
- vectors: MiniLM with mean pooling. sentence-transformers' `encode` with default settings (sorted, batches of 32), in
  float32 and in bf16, and a polytask task whose head uses mean pooling.
- tasks: three tasks that share the encoder, and one of them.

All texts are different: SST sentences and Quora questions from the folder POLYTASK_DATA, or the built-in samples if it
is not set. sentence-transformers, onnx, onnxruntime and onnxscript are compared if they are installed.
"""

import csv
import importlib.util
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from polytask import Predictor, find_encoder
from polytask.build import make_model
from polytask.machine import environment, multiplies_bf16
from polytask.pretrained.weights import load_encoder
from polytask.runs.bundle import Bundle
from polytask.settings import MethodChoice, TaskSpec
from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import LabelSpace

BATCH, LONGEST = 32, 128
CLASSES = ("one", "two", "three", "four", "five")
Program = Callable[[Sequence[str]], Any]


def texts(count: int) -> list[str]:
    """Return `count` different texts in random order."""
    folder = os.environ.get("POLYTASK_DATA")
    if folder:
        sources = [(Path(folder) / "cs224n/ids-sst-dev.csv", "\t", 2), (Path(folder) / "quora-train.tsv", "\t", 0)]
        parts = [[row[at] for row in rows(file, delimiter)[:count]] for file, delimiter, at in sources]
    else:
        names = {"opinions-train": "text", "questions-train": "question1", "similarity-train": "sentence1"}
        parts = [
            [str(row[1][0]) for row in open_source(f"sample:{name}").rows([column]) if not isinstance(row, BrokenRow)]
            for name, column in names.items()
        ]
    different = sorted({text for part in parts for text in part})
    random.Random(0).shuffle(different)
    return different[:count]


def rows(file: Path, delimiter: str) -> list[list[str]]:
    with file.open(encoding="utf-8", newline="") as content:
        return [row for row in csv.reader(content, delimiter=delimiter) if len(row) > 2][1:]


def polytask(folder: Path, classifier: torch.nn.Linear, precision: str) -> Predictor:
    """Return a model with one task that uses the pooler, with the classifier's weights, and three that use the mean."""
    tokenizer = TextTokenizer.load(folder, LONGEST)
    heads = {"pooled": "pooler", "one": "mean", "two": "mean", "three": "mean"}
    specs = {
        name: TaskSpec(name, "classes", ("text",), "label", "", "", head=MethodChoice("linear", {"pooling": pooling}))
        for name, pooling in heads.items()
    }
    labels = dict.fromkeys(specs, LabelSpace("classes", CLASSES))
    model = make_model(specs, labels, MethodChoice("none"), lambda: load_encoder(folder)).eval()
    model.head("pooled").output.load_state_dict(classifier.state_dict())  # type: ignore[union-attr]
    packer = Packer(tuple(specs), tokenizer.cls_id, tokenizer.sep_id, LONGEST, tokenizer.masker)
    return Predictor(Bundle(model, tokenizer, packer, specs, labels, MethodChoice("none")), precision)


class Tuned:
    """A careful script with transformers or an exported model: sorted by length, padded to the longest of 32."""

    def __init__(self, tokenizer: Any, run: Callable[[dict[str, Tensor]], Tensor]) -> None:
        self.tokenizer, self.run = tokenizer, run

    def __call__(self, asked: Sequence[str]) -> list[str]:
        labels: list[str] = [""] * len(asked)
        ids = self.tokenizer(list(asked), truncation=True, max_length=LONGEST)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            width = len(ids[batch[0]])
            ids_BL, mask_BL = torch.zeros(len(batch), width, dtype=torch.long), torch.zeros(len(batch), width)
            for row, i in enumerate(batch):
                ids_BL[row, : len(ids[i])] = torch.tensor(ids[i])
                mask_BL[row, : len(ids[i])] = 1
            with torch.inference_mode():
                scores_BC = self.run({"input_ids": ids_BL, "attention_mask": mask_BL.long()}).float().softmax(-1)
            for i, best in zip(batch, scores_BC.argmax(-1).tolist(), strict=True):
                labels[i] = CLASSES[best]
        return labels


def onnx(model: torch.nn.Module, folder: Path) -> Callable[[dict[str, Tensor]], Tensor]:
    onnxruntime = importlib.import_module("onnxruntime")
    file = folder / "model.onnx"
    ids, mask = torch.ones(2, 16, dtype=torch.long), torch.ones(2, 16, dtype=torch.long)
    axes = {0: torch.export.Dim("rows", min=1, max=256), 1: torch.export.Dim("width", min=2, max=LONGEST)}
    torch.onnx.export(
        model,
        (),
        file,
        kwargs={"input_ids": ids, "attention_mask": mask},
        input_names=["input_ids", "attention_mask"],
        dynamic_shapes={"input_ids": axes, "attention_mask": axes},
        dynamo=True,
        verbose=False,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {name: t.numpy() for name, t in inputs.items()})[0])


def programs_for_labels(folder: Path, models: dict[str, Predictor], onnx_folder: Path) -> dict[str, Program]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = reference(folder)
    pipeline = transformers.pipeline("text-classification", model=plain, tokenizer=tokenizer)
    programs: dict[str, Program] = {
        "polytask float32": lambda asked: [p.label for p in models["float32"].predict("pooled", asked)],
        "pipeline": lambda asked: [answer["label"] for answer in pipeline(list(asked))],
        "tuned float32": Tuned(tokenizer, lambda inputs: plain(**inputs).logits),
    }
    if importlib.util.find_spec("onnxruntime"):
        programs["onnxruntime float32"] = Tuned(tokenizer, onnx(plain, onnx_folder))
    if "bf16" in models:
        half = reference(folder).bfloat16()
        programs["polytask bf16"] = lambda asked: [p.label for p in models["bf16"].predict("pooled", asked)]
        programs["tuned bf16"] = Tuned(tokenizer, lambda inputs: half(**inputs).logits)
    return programs


def programs_for_vectors(folder: Path, models: dict[str, Predictor]) -> dict[str, Program]:
    programs: dict[str, Program] = {}
    for precision, model in models.items():
        programs[f"polytask {precision}"] = partial(model.predict, "one")
        if importlib.util.find_spec("sentence_transformers"):
            programs[f"sentence-transformers {precision}"] = sentence_transformers(folder, precision)
    return programs


def sentence_transformers(folder: Path, precision: str) -> Program:
    library = importlib.import_module("sentence_transformers")
    modules = importlib.import_module("sentence_transformers.sentence_transformer.modules")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    encoder = modules.Transformer(str(folder), max_seq_length=LONGEST, model_kwargs={"dtype": dtype})
    whole = library.SentenceTransformer(modules=[encoder, modules.Pooling(384, "mean")], device="cpu")
    return lambda asked: whole.encode(list(asked), show_progress_bar=False)


def reference(folder: Path) -> Any:
    torch.manual_seed(0)
    names = dict(enumerate(CLASSES))
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=len(CLASSES), id2label=names
    ).eval()


def measure(programs: dict[str, Program], asked: Sequence[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the wall-clock seconds and the processor seconds of each round."""
    for program in programs.values():
        program(asked[:BATCH])
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for number in range(rounds):
        names = list(programs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started, worked = time.perf_counter(), time.process_time()
            programs[name](asked)
            seconds[name].append((time.perf_counter() - started, time.process_time() - worked))
    return seconds


def report(title: str, seconds: dict[str, list[tuple[float, float]]], count: int, *ours: str) -> None:
    """Print the time of every program, and its ratio to each of polytask's."""
    heading = " | ".join(f"time / {name}'s | processor time / {name}'s" for name in ours)
    print(f"\n{title}\n\n| | texts/s | {heading} |\n|---|---|{'---|---|' * len(ours)}")
    for name, times in seconds.items():
        cells = [f"{count / statistics.median(passed for passed, _ in times):.0f}"]
        for own in ours:
            for kind in (0, 1):
                ratios = [a[kind] / b[kind] for a, b in zip(times, seconds[own], strict=True)]
                low, high = np.quantile(ratios, [0.1, 0.9])
                cells.append(f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


def main(rounds: int, count: int) -> None:
    folder, asked = find_encoder("minilm"), texts(count)
    classifier = reference(folder).classifier
    precisions = ("float32", "bf16") if multiplies_bf16(torch.device("cpu")) else ("float32",)
    models = {precision: polytask(folder, classifier, precision) for precision in precisions}
    machine = environment(torch.device("cpu"))
    lengths = [len(ids) + 2 for ids in models["float32"].bundle.tokenizer.encode(asked)]
    print(
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, transformers "
        f"{transformers.__version__}, commit {machine['commit']}; {rounds} rounds of {len(asked)} texts with "
        f"{statistics.mean(lengths):.1f} tokens on average, {max(lengths)} at most; load {os.getloadavg()[0]:.1f}"
    )
    ours = [f"polytask {precision}" for precision in models]
    with tempfile.TemporaryDirectory() as place:
        programs = programs_for_labels(folder, models, Path(place))
        answers = {name: program(asked) for name, program in programs.items()}
        for name, labels in answers.items():
            same = np.mean([a == b for a, b in zip(labels, answers["tuned float32"], strict=True)])
            print(f"{name}: {same:.2%} of labels equal to those of transformers in float32")
        report("Labels, with the pooler", measure(programs, asked, rounds), len(asked), *ours)
    report(
        "Vectors, with mean pooling", measure(programs_for_vectors(folder, models), asked, rounds), len(asked), *ours
    )
    tasks: dict[str, Program] = {
        "one task": lambda asked: models["float32"].predict_tasks(asked, tasks=["one"]),
        "three tasks": lambda asked: models["float32"].predict_tasks(asked, tasks=["one", "two", "three"]),
    }
    report("Tasks that share the encoder, float32", measure(tasks, asked, rounds), len(asked), "one task")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, int(sys.argv[2]) if len(sys.argv) > 2 else 256)
