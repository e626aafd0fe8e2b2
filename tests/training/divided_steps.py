"""Trains tiny recipes for some steps and saves their weights. Torchrun starts it in several processes.

    python divided_steps.py [--recorded] [--steps N] FOLDER CASE [CASE ...]

With --recorded, the steps are captured, that is, recorded and run again without their Python (`recorded_graphs.py`).
Models are in float64, so that the weights of runs with different numbers of processes can be compared: in float32, Adam
turns the rounding of gradients that are zero in theory (those of the key biases) into whole steps.
"""

import argparse
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from polytask import read_recipe, start_training
from polytask.training.captured import CapturedSteps, reason_not_divided
from polytask.training.loop import Session

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
STEPS = 50
SETTINGS = [
    "encoder={layers: 2, hidden: 32, heads: 4, ffn: 64, positions: 64, dropout: 0.0, attention_dropout: 0.0}",
    "max_length=20",
    "tasks.opinion.head={name: linear, dropout: 0.0}",
    "tasks.question.head={name: cross, dropout: 0.0}",
    "train.device=cpu",
    "train.precision=float32",
    "train.batch_size=7",
    "train.epochs=1",
    f"train.steps_per_epoch={STEPS}",
    "train.evaluate_every=25",
]
TEXTS = "{kind: text, text: text, train: 'sample:opinions-train', dev: 'sample:opinions-dev', head: mlm}"
SMART = "regularizers=[{name: smart, epsilon: 1e-2, sigma: 1e-2, eta: 1e-2}]"
SIMCSE = TEXTS.replace("mlm", "simcse")
TAGS = (
    "{kind: tokens, text: text, label: spans, head: {name: tags, dropout: 0.0}, "
    "train: 'sample:entities-train', dev: 'sample:entities-dev'}"
)
TOPICS = (
    "{kind: multilabel, text: text, label: topics, head: {name: linear, dropout: 0.0}, "
    "train: 'sample:tickets-train', dev: 'sample:tickets-dev'}"
)
REPLIES = (
    "{kind: choice, text: message, options: [reply_0, reply_1, reply_2, reply_3], label: best, "
    "head: {name: choice, dropout: 0.0}, train: 'sample:replies-train', dev: 'sample:replies-dev'}"
)
INBOX = (
    "text: message, train: 'sample:inbox-train', dev: 'sample:inbox-dev', share_rows: inbox, "
    "head: {name: linear, dropout: 0.0}"
)
SHARED = [
    f"tasks.team={{kind: classes, label: team, {INBOX}}}",
    f"tasks.urgent={{kind: yes_no, label: urgent, {INBOX}}}",
    f"tasks.mood={{kind: score, range: [1, 5], label: mood, {INBOX}}}",
]
MIXED = "sampler=mixed"
STABLE = "optimizer={name: fused_adamw, lr: 1e-4, eps: 1e-4}"
"""A pull to the start makes Adam unstable where there is no other gradient: lr * pull / eps must be below 2."""
PAL = "adapter={name: pal, size: 24, heads: 3}"
CASES = {
    "plain": [MIXED, "train.clip=1"],
    "one task per step": [],
    "pal": [MIXED, PAL],
    "lora": [MIXED, "adapter=lora"],
    "houlsby": [MIXED, "adapter=houlsby"],
    "conditional_norm": [MIXED, "adapter=conditional_norm"],
    "fewer examples than processes": ["train.batch_size=2"],
    "smart": [MIXED, SMART],
    "smart, empty parts": [MIXED, SMART, "train.batch_size=3", "train.accumulate=2"],
    "lnsr, empty parts": [MIXED, "regularizers=[lnsr]", "train.batch_size=3", "train.accumulate=2"],
    "pcgrad, empty parts": [MIXED, "policy=pcgrad", SMART, "train.batch_size=3"],
    "mtdnn": [MIXED, "regularizers=[{name: smart, mode: mtdnn}]"],
    "bregman": [MIXED, "regularizers=[bregman]", "train.ema=0.9"],
    "lnsr": [MIXED, "regularizers=[lnsr]"],
    "l2_sp": [MIXED, PAL, "regularizers=[l2_sp, soft_sharing]", STABLE],
    "ewc": ["sampler=in_order", "regularizers=[{name: ewc, samples: 10}]"],
    "in_batch_negatives": [MIXED, "tasks.question.head={name: bi, dropout: 0.0}", "regularizers=[in_batch_negatives]"],
    "uncertainty": [MIXED, "policy=uncertainty"],
    "dwa": [MIXED, "policy=dwa", "train.epochs=5", f"train.steps_per_epoch={STEPS // 5}"],
    "gem": ["policy=gem"],
    "gem, mixed": [MIXED, "policy=gem", SMART],
    "a_gem": ["policy=a_gem"],
    "replay": ["policy=replay"],
    "pcgrad": [MIXED, "policy=pcgrad", PAL],
    "mgda": [MIXED, "policy=mgda", "train.accumulate=2"],
    "cagrad": [MIXED, "policy=cagrad"],
    "lamb": [MIXED, "optimizer={name: lamb, lr: 1e-3}"],
    "adamax": [MIXED, "optimizer={name: adamax, lr: 1e-3}"],
    "accumulated": [MIXED, "train.accumulate=3"],
    "frozen": [MIXED, PAL, "train.parts=adapters"],
    "heads": [MIXED, "train.parts=heads", "tasks.similarity.head={name: cross, dropout: 0.0}"],
    "masked words": [MIXED, f"tasks.texts={TEXTS}"],
    "masked words, surgery": [MIXED, f"tasks.texts={TEXTS}", "policy=pcgrad"],
    "simcse": [MIXED, f"tasks.texts={SIMCSE}"],
    "tags": [MIXED, f"tasks.tags={TAGS}"],
    "tags, smart": [MIXED, f"tasks.tags={TAGS}", SMART],
    "topics": [MIXED, f"tasks.topics={TOPICS}"],
    "choice": [MIXED, f"tasks.reply={REPLIES}"],
    "shared rows": [MIXED, *SHARED],
    "shared rows, surgery": [MIXED, *SHARED, "policy=pcgrad"],
    "class weights": [MIXED, "tasks.opinion.loss={name: cross_entropy, class_weights: balanced}"],
}


RECORDED = (
    "plain",
    "one task per step",
    "fewer examples than processes",
    "pal",
    "houlsby",
    "conditional_norm",
    "l2_sp",
)
RECORDED += ("ewc", "uncertainty", "dwa", "replay", "lamb", "adamax", "frozen", "heads", "tags", "topics", "choice")
RECORDED += ("masked words", "simcse", "shared rows", "class weights")
"""The cases that are captured in several processes: steps of one pass, without noise."""
IN_FLOAT32 = ("lamb", "adamax")
"""Of these, the cases whose captured updates exist in float32 only."""


def record(session: Session) -> None:
    """Let the steps be recorded, as CUDA captures them."""
    from recorded_graphs import RecordedGraphs  # noqa: PLC0415  (a module beside this program)

    reason = reason_not_divided(session.objective, session.settings)
    assert reason is None, reason
    parts = session.optimizer, session.objective, session.settings, session.average
    session.captured = CapturedSteps(session.model, *parts, session.processes)
    session.captured.graphs = RecordedGraphs(session.captured.graphs)


def make_double(session: Session) -> None:
    """Turn the model, and what its regularizers and averages keep of it, into float64."""
    session.model.double()
    for regularizer in session.objective.regularizers.values():
        if hasattr(regularizer, "average"):
            regularizer.average.double()
        if hasattr(regularizer, "_start"):
            regularizer._start = {weight: start.double() for weight, start in regularizer._start.items()}
    if session.average is not None:
        for weight in session.average.weights.values():
            weight.data = weight.data.double()


def norm_of_doubles(gradients: list[Tensor]) -> Tensor:
    """The norm that captured steps compute in float32."""
    return torch.stack([gradient.double().norm() for gradient in gradients]).norm().float()


def main(folder: Path, cases: list[str], recorded: bool, steps: int) -> None:
    for case in cases:
        run = folder / case.replace(" ", "-")
        running = start_training(read_recipe(QUICKSTART, [*SETTINGS, *CASES[case]]), run)
        session = running.session
        if not (recorded and case in IN_FLOAT32):
            make_double(session)
        if recorded:
            record(session)
        for _ in islice(running.steps(), steps):
            pass
        if session.captured is not None:
            entries = session.captured.graphs.entries.values()
            assert session.captured.reason is None, session.captured.reason
            assert sum(entry.graph is not None for entry in entries) > len(entries) / 4
        if running.is_main:
            weights = {n: t.contiguous() for n, t in session.model.state_dict().items()}
            weights |= {f"policy.{n}": t for n, t in session.objective.policy.state_dict().items()}
            save_file(weights, run / "last.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="+")
    options = parser.parse_args()
    if options.recorded:
        from attention_by_borders import use_on_cpu

        patch = pytest.MonkeyPatch()
        use_on_cpu(patch)
        patch.setattr("polytask.training.step_operations.norm_of", norm_of_doubles)
    main(options.folder, options.cases, options.recorded, options.steps)
