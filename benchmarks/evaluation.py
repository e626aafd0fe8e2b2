"""One evaluation of a dev set of pairs: polytask and transformers with the same weights, in the same process.

    python benchmarks/evaluation.py [--encoder NAME_OR_PATH] [--device cuda] [--pairs 21000] [--rounds 5]
        [--precision bf16] [--out FILE.jsonl]

The pairs are sentences of 4 to 60 random words, 18 on average; they are written and tokenized before anything is timed.
With `--encoder untrained`, nothing is downloaded: the weights are random, with MiniLM's shape and a vocabulary of the
words that occur.

- `polytask first`: the first evaluation of a run, which packs the split; `polytask again`: every later one. `packing`
  is a pass over all batches without the model, `model` the outputs on the CPU, `metrics` the loss, the metrics and
  their intervals. On a GPU the first evaluation packs while it computes, so its `packing` is a part of its `model`.
- `transformers`: AutoModelForSequenceClassification on token ids sorted by length, in batches of 256 that are padded to
  their longest pair, under bf16 autocast (float32 with `--precision float32`), with outputs copied to the CPU once, and
  the accuracy alone as its metric.
- `predict`: pairs as strings through `Predictor`, with the labels at the end.

Each line of `--out` is one measurement, written at once. A first pass of each way is not counted: it compiles kernels.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from polytask import Predictor, find_encoder
from polytask.build import make_model
from polytask.evaluation.evaluate import evaluate, split_outputs
from polytask.evaluation.packed_splits import PackedSplits
from polytask.machine import environment
from polytask.model import MultiTaskModel
from polytask.pretrained.weights import load_encoder
from polytask.runs.bundle import Bundle
from polytask.settings import MethodChoice, TaskSpec
from polytask.text.packing import Packer
from polytask.text.tokenizer import TextTokenizer
from polytask.types import YES_NO

TASK, LONGEST, BATCH = "same", 128, 256
WORDS = (
    "the a this that one some every no what where when who why how is was can could should will does do has have it he "
    "she they we you people time year way day thing world life hand part child eye place work week case point company "
    "number group problem fact money water room mother area book question word business night story city country law "
    "teacher language music computer learn write read make find give tell feel leave call good new first last long "
    "great little own other old right big high different small large next early young important few public bad same "
    "able in on at by for with about against between into through after before above under again best way to and or"
)


@dataclass(frozen=True)
class Pairs:
    """The dev set: TokenizedExamples, and the strings that they are made of."""

    texts: list[tuple[str, str]]
    ids: list[tuple[npt.NDArray[np.integer], ...]]
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, index: int) -> tuple[npt.NDArray[np.integer], ...]:
        return self.ids[index]


def make_pairs(count: int, tokenizer: TextTokenizer) -> Pairs:
    rng = np.random.default_rng(0)
    words = np.clip(rng.lognormal(2.8, 0.45, (count, 2)).astype(int), 4, 60)
    texts = [tuple(" ".join(rng.choice(WORDS.split(), size)) for size in pair) for pair in words]
    columns = [tokenizer.encode(column) for column in zip(*texts, strict=True)]
    labels = rng.integers(0, 2, count).astype(np.float32)
    return Pairs(texts, list(zip(*columns, strict=True)), labels)  # type: ignore[arg-type]


def untrained(folder: Path) -> Path:
    """Writes an untrained encoder of MiniLM's shape."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS.split()))]
    tokens += [f"unused{number}" for number in range(30522 - len(tokens))]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    shape: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    transformers.BertModel(transformers.BertConfig(intermediate_size=1536, **shape)).save_pretrained(folder)
    return folder


def make_bundle(folder: Path, tokenizer: TextTokenizer, classifier: torch.nn.Linear, device: torch.device) -> Bundle:
    head = MethodChoice("cross", {"pooling": "pooler"})
    spec = TaskSpec(TASK, "yes_no", ("text1", "text2"), "label", "", "", head=head)
    model = make_model({TASK: spec}, {TASK: YES_NO}, MethodChoice("none"), lambda: load_encoder(folder))
    model.head(TASK).output.load_state_dict(classifier.state_dict())  # type: ignore[union-attr]
    packer = Packer((TASK,), tokenizer.cls_id, tokenizer.sep_id, LONGEST, tokenizer.masker)
    return Bundle(model.to(device).eval(), tokenizer, packer, {TASK: spec}, {TASK: YES_NO}, MethodChoice("none"))


class Clock:
    """Wall-clock seconds of named parts, with the GPU's work included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._wait()
        started = time.perf_counter()
        yield
        self._wait()
        self.seconds[name] = time.perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def total(self) -> dict[str, float]:
        return {**self.seconds, "seconds": self.seconds["model"] + self.seconds["metrics"]}


def evaluation(bundle: Bundle, pairs: Pairs, bf16: bool, packed: PackedSplits) -> dict[str, float]:
    """One evaluation, as a run does it."""
    model, clock = bundle.model, Clock(bundle.model.device)
    with clock.part("model"):
        outputs = split_outputs(model, {TASK: pairs}, bundle.packer, bf16, packed)
    with clock.part("metrics"):
        evaluate(model, outputs, {TASK: pairs}, bundle.specs, "dev", 0)
    return clock.total()


def packing(model: MultiTaskModel, pairs: Pairs, packer: Packer) -> dict[str, float]:
    clock = Clock(model.device)
    with clock.part("packing"):
        batches = [*PackedSplits().batches(model, TASK, pairs, packer)]
    tokens = sum(len(batch.stream.token_ids_T) for batch in batches)
    return {"seconds": clock.seconds["packing"], "batches": len(batches), "tokens": tokens}


def make_reference(folder: Path, device: torch.device) -> Any:
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
    return model.to(device).eval()


@torch.inference_mode()
def reference_outputs(model: Any, rows: list[tuple[list[int], int]], bf16: bool) -> torch.Tensor:
    """Sorted by length, padded to the longest of a batch; `rows` are ids and where the second segment starts."""
    device = next(model.parameters()).device
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]))
    outputs = []
    for start in range(0, len(order), BATCH):
        batch = [rows[i] for i in order[start : start + BATCH]]
        width = len(batch[0][0])
        ids_BL = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
        columns_L, lengths_B1 = torch.arange(width), torch.tensor([[len(ids)] for ids, _ in batch])
        segments_BL = (columns_L >= torch.tensor([[second] for _, second in batch])) & (columns_L < lengths_B1)
        inputs = {
            "input_ids": ids_BL,
            "attention_mask": (columns_L < lengths_B1).long(),
            "token_type_ids": segments_BL.long(),
        }
        inputs = {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            outputs.append(model(**inputs).logits)
    return torch.cat(outputs).float().cpu()[:, 0][torch.from_numpy(np.argsort(order))]


def with_transformers(model: Any, rows: list[tuple[list[int], int]], labels: Any, bf16: bool) -> dict[str, float]:
    clock = Clock(next(model.parameters()).device)
    with clock.part("model"):
        logits_N = reference_outputs(model, rows, bf16)
    with clock.part("metrics"):
        ((logits_N > 0).numpy() == labels).mean()
    return clock.total()


def sequences_of(pairs: Pairs, packer: Packer) -> list[tuple[list[int], int]]:
    return [
        (np.concatenate(pieces).tolist(), second)
        for texts in pairs.ids
        for pieces, second in packer.sequences(texts, "joined")
    ]


def prediction(predictor: Predictor, texts: list[tuple[str, str]]) -> dict[str, float]:
    clock = Clock(predictor.bundle.model.device)
    with clock.part("predict"):
        predictions = predictor.predict(TASK, texts)
    assert len(predictions) == len(texts)
    return {"seconds": clock.seconds["predict"], "examples_per_second": len(texts) / clock.seconds["predict"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=21_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(untrained(Path(folder)) if options.encoder == "untrained" else find_encoder(options.encoder), options)


def measure(folder: Path, options: argparse.Namespace) -> None:
    device, bf16 = torch.device(options.device), options.precision == "bf16"

    def record(name: str, measured: dict[str, Any]) -> None:
        line = json.dumps({"way": name, **measured})
        print(line, flush=True)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    tokenizer = TextTokenizer.load(folder, LONGEST)
    pairs = make_pairs(options.pairs, tokenizer)
    reference = make_reference(folder, device)
    bundle = make_bundle(folder, tokenizer, reference.classifier, device)
    rows, packed, predictor = sequences_of(pairs, bundle.packer), PackedSplits(), Predictor(bundle, options.precision)
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "packing": lambda: packing(bundle.model, pairs, bundle.packer),
        "polytask first": lambda: evaluation(bundle, pairs, bf16, PackedSplits()),
        "polytask again": lambda: evaluation(bundle, pairs, bf16, packed),
        "transformers": lambda: with_transformers(reference, rows, pairs.labels, bf16),
        "predict": lambda: prediction(predictor, pairs.texts),
    }
    settings = {"encoder": options.encoder, "pairs": len(pairs), "precision": options.precision}
    record("settings", {**settings, **environment(device), "transformers": transformers.__version__})
    ours = split_outputs(bundle.model, {TASK: pairs}, bundle.packer, bf16)[TASK]
    theirs = reference_outputs(reference, rows, bf16)
    record("outputs", {"largest difference": float((ours - theirs).abs().max()), "spread": float(theirs.std())})
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            measured = way()
            record(name if number else f"{name}, not counted", {"round": number, **measured})


if __name__ == "__main__":
    main()
