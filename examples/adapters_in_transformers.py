"""PALs in the BertModel of transformers: two tasks, one frozen encoder, and batches with rows of both.

Needs `pip install transformers`. Pass a model such as google/bert_uncased_L-2_H-128_A-2 to use its weights; by default
the model is tiny and untrained.
"""

import sys

import torch
from torch import nn
from transformers import BertConfig, BertModel

from polytask.adapters import Pal
from polytask.encoders.adapted import AdaptedModel

TASKS = ("topic", "tone")


def load() -> BertModel:
    if len(sys.argv) > 1:
        return BertModel.from_pretrained(sys.argv[1])
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertModel(BertConfig(vocab_size=100, **sizes))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = AdaptedModel(load(), TASKS, Pal, size=24, heads=4)
    model.model.requires_grad_(False)
    heads = nn.ModuleDict({task: nn.Linear(model.model.config.hidden_size, 2) for task in TASKS})
    optimizer = torch.optim.AdamW([*model.adapter.parameters(), *heads.parameters()], lr=3e-3)

    ids = torch.randint(5, 100, (16, 10))
    mask = (torch.arange(10) < torch.randint(3, 11, (16, 1))).long()
    rows = {"topic": slice(0, 8), "tone": slice(8, 16)}  # sorted by task
    labels = torch.cat([ids[:8, 0] > 50, ids[8:, 1] % 2 == 0]).long()
    for step in range(101):
        output = model(ids, attention_mask=mask, task=["topic"] * 8 + ["tone"] * 8)
        states = output.last_hidden_state[:, 0]
        losses = {t: nn.functional.cross_entropy(heads[t](states[own]), labels[own]) for t, own in rows.items()}
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3}", *(f"{task} {loss.item():.3f}" for task, loss in losses.items()))
    count = sum(p.numel() for p in model.adapter.parameters())
    print(f"the PALs have {count:,} parameters, the encoder {sum(p.numel() for p in model.model.parameters()):,}")
