"""Compares training steps on this CPU: polytask's packed step and a plain padded transformers loop, same batches.

    python benchmarks/cpu_step.py [STEPS]

Same MiniLM weights, same texts (the built-in opinions, 16 per step), same optimizer (torch's fused AdamW), float32,
with dropout. The two take turns in one process. Prints the median ratio of their times over the rounds, and its spread.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import AutoModel

from polytask import prepare, read_recipe
from polytask.machine import environment
from polytask.optim.fused_adamw import FusedAdamW
from polytask.policies.base import PolicyContext
from polytask.policies.sum import WeightedSum
from polytask.pretrained.find import find_encoder
from polytask.training.feed import Feed
from polytask.training.groups import parameter_groups
from polytask.training.objective import Objective
from polytask.training.step import take_step
from polytask.types import Draw

RECIPE = "recipes/quickstart.yaml"
BATCH = 16


def polytask_step() -> Callable[[], object]:
    prepared = prepare(read_recipe(RECIPE))
    model, settings = prepared.model, prepared.recipe.train
    feed = Feed(
        prepared.splits("train"), prepared.packer, seed=0, formats={t: model.input_format(t) for t in model.tasks}
    )
    optimizer = FusedAdamW(parameter_groups(model, settings, 1e-5, 0.01))
    kinds = {task: model.head(task).labels.kind for task in model.tasks}
    objective = Objective(WeightedSum(PolicyContext(dict.fromkeys(model.tasks, 1.0), kinds, 1)))
    draw = [Draw("opinion", BATCH)]
    return lambda: take_step(model, optimizer, objective, settings, lambda: feed.next_batch(draw))


def plain_step() -> Callable[[], object]:
    """Return a step as in a first script: pad to the longest text, mean-pool under the mask, one linear layer."""
    prepared = prepare(read_recipe(RECIPE))
    feed = Feed(prepared.splits("train"), prepared.packer, seed=0)
    encoder = AutoModel.from_pretrained(find_encoder("minilm")).train()
    head = torch.nn.Linear(encoder.config.hidden_size, 5)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-5, fused=True)

    def step() -> None:
        stream = feed.next_batch([Draw("opinion", BATCH)]).together
        rows = stream.token_ids_T.split(list(stream.layout.lengths))
        ids_BL = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
        mask_BL = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        hidden_BLD = encoder(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        pooled_BD = (hidden_BLD * mask_BL[..., None]).sum(1) / mask_BL.sum(1, keepdim=True)
        loss = F.cross_entropy(head(F.dropout(pooled_BD, 0.1)), stream.labels["opinion"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()

    return step


def main(rounds: int) -> None:
    variants = {"polytask": polytask_step(), "plain padded loop": plain_step()}
    for step in variants.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, step in variants.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    machine = environment(torch.device("cpu"))
    print(
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}, {rounds} rounds of {BATCH} examples"
    )
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"{name:20} {median * 1000:7.1f} ms per step  {BATCH / median:6.1f} examples/s")
    ratios = sorted(b / a for a, b in zip(*seconds.values(), strict=True))
    low, high = ratios[len(ratios) // 10], ratios[-len(ratios) // 10]
    print(f"plain / polytask: {statistics.median(ratios):.2f} (middle 80 % of rounds: {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
