"""Measures Hugging Face's `Trainer`: examples/s with its defaults, and tuned.

    python benchmarks/trainer_gpu.py [FOLDER ...]

The shapes of BERT-base and MiniLM with random weights (or the encoders in the given folders), 32 and 256 examples per
step, random token ids in texts with the lengths of the three-task mix (29 tokens on average, 4 to 128): needs no data
and no network. Default: float32, random order. Tuned: bf16, group_by_length, fused AdamW, sdpa, TF32, 6 workers. Both
pad to the longest text of a batch. Times are measured between two steps, without the set-up; the device is synchronized
only at both ends. Other benchmarks call `trainer_rate`.
"""

import dataclasses
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

Ids = npt.NDArray[np.int64]

SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {},
    "minilm": {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64},
}
LABELS = 5
SPREAD = 5.25
"""(mean / standard deviation)^2 of the lengths of the three-task mix, measured."""
WARM_UP = 10
CYCLE = 50
"""group_by_length sorts this many batches together; other numbers of steps would see more or fewer long texts."""


def make_examples(count: int, seed: int = 0) -> list[Ids]:
    """Return the token ids of `count` texts, with special tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.rint(rng.gamma(SPREAD, 29 / SPREAD, count)), 4, 128).astype(int)
    return [np.concatenate([[101], rng.integers(1000, 30000, length - 2), [102]]) for length in lengths]


def make_model(shape: str) -> BertForSequenceClassification:
    """Return a model of the named shape with random weights, or the encoder in a folder."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if shape in SHAPES:
        return BertForSequenceClassification(BertConfig(**{**SHAPES[shape], "num_labels": LABELS}))
    return BertForSequenceClassification.from_pretrained(shape, num_labels=LABELS, attn_implementation="sdpa")


def with_lora(model: BertForSequenceClassification) -> Any:
    """Add peft's LoRA of rank 8 to queries and values; the rest of the encoder is frozen."""
    import peft  # only needed here  # noqa: PLC0415

    config = peft.LoraConfig(peft.TaskType.SEQ_CLS, r=8, lora_alpha=8, target_modules=["query", "value"])
    return peft.get_peft_model(model, config)


def trainer_rate(shape: str, batch: int, tuned: bool, steps: int, examples: Sequence[Ids], lora: bool = False) -> float:
    """Return the examples/s of `Trainer.train` over `steps` steps, after a warm-up."""
    rows = [{"input_ids": ids, "labels": number % LABELS} for number, ids in enumerate(examples)]
    workers = min(6, os.cpu_count() or 1) if tuned else 0
    clock = Clock(WARM_UP, steps)
    model = make_model(shape)
    train(with_lora(model) if lora else model, rows, clock, batch, tuned, workers)
    return steps * batch / clock.seconds


class Clock(TrainerCallback):
    """Measures the time of `steps` steps after the warm-up."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.warm_up = warm_up
        self.steps = steps
        self.started = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.warm_up:
            self.started = self.now()
        if state.global_step == self.warm_up + self.steps:
            self.seconds = self.now() - self.started

    def now(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def train(
    model: BertForSequenceClassification,
    rows: Sequence[Mapping[str, Any]],
    clock: Clock,
    batch: int,
    tuned: bool,
    workers: int = 0,
    seed: int = 0,
) -> None:
    """Run `Trainer.train` for the clock's steps; rows have `input_ids`, `labels` and perhaps `token_type_ids`."""
    assert len(rows) >= 4 * CYCLE * batch, f"{len(rows)} examples: group_by_length would sort fewer batches together"
    settings: dict[str, Any] = {}
    if tuned:
        settings = {
            "bf16": True,
            "optim": "adamw_torch_fused",
            "dataloader_num_workers": workers,
            "dataloader_persistent_workers": workers > 0,
            **grouped_by_length(),
            **({"tf32": True} if torch.cuda.is_available() else {}),
        }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=clock.warm_up + clock.steps,
            per_device_train_batch_size=batch,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            seed=seed,
            **settings,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=padded, callbacks=[clock])
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def grouped_by_length() -> dict[str, Any]:
    """Return the argument that groups by length; later versions call it train_sampling_strategy."""
    if "group_by_length" in {field.name for field in dataclasses.fields(TrainingArguments)}:
        return {"group_by_length": True}
    return {"train_sampling_strategy": "group_by_length"}


def padded(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return one batch, padded to its longest text."""
    lengths = np.array([len(row["input_ids"]) for row in rows])
    mask_BL = np.arange(lengths.max()) < lengths[:, None]
    batch = {"attention_mask": torch.from_numpy(mask_BL.astype(np.int64))}
    for name in ("input_ids", "token_type_ids"):
        if name in rows[0]:
            values_BL = np.zeros(mask_BL.shape, dtype=np.int64)
            values_BL[mask_BL] = np.concatenate([row[name] for row in rows])
            batch[name] = torch.from_numpy(values_BL)
    return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}


def main(shapes: Sequence[str]) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}")
    examples = make_examples(4 * CYCLE * 256)
    mean = np.mean([len(ids) for ids in examples])
    print(f"{2 * CYCLE} steps after {WARM_UP}, {mean:.1f} tokens per text on average, examples/s:")
    for shape in shapes:
        for batch in (32, 256):
            rates = [trainer_rate(shape, batch, tuned, 2 * CYCLE, examples) for tuned in (False, True)]
            print(f"{shape:12} {batch:4} per step   default {rates[0]:8.0f}   tuned {rates[1]:8.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["bert-base", "minilm"])
