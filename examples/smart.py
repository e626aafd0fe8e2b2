"""SMART around a model of transformers: its outputs should hardly change with the worst small change of the words.

Needs `pip install transformers`. The model is tiny and untrained; with a pretrained one the loop is the same.
"""

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from polytask.regularizers import smart


def train(weight: float, steps: int = 40) -> tuple[float, float]:
    """Returns the loss and the penalty at the end."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=2, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(5, 100, (16, 12))
    mask = (torch.arange(12) < torch.randint(4, 13, (16, 1))).long()
    labels = (ids[:, 0] > 50).long()
    ascent = smart.Ascent(epsilon=0.1, eta=1.0, sigma=0.01)  # large, for a model with small random weights

    def forward(words: Tensor) -> Tensor:
        logits: Tensor = model(inputs_embeds=words, attention_mask=mask).logits
        return logits

    for _ in range(steps):
        words = model.bert.embeddings.word_embeddings(ids)
        logits, penalty = smart.penalty_of(forward, words, mask_BL=mask, ascent=ascent)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        (loss + weight * penalty).backward()
        optimizer.step()
    return loss.item(), penalty.item()


if __name__ == "__main__":
    for weight in (0.0, 1.0):
        loss, penalty = train(weight)
        print(f"weight {weight:g}: loss {loss:.3f}, change of the outputs in the worst direction {penalty:.3f}")
