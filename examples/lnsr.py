"""Noise stability (LNSR): little noise on the input of a layer should change the layers above it little."""

from itertools import accumulate

import torch
from torch import Tensor, nn

from polytask.regularizers import lnsr


def train(weight: float, steps: int = 60) -> tuple[float, float]:
    """Returns the loss and the penalty at the end."""
    torch.manual_seed(0)
    words, head = nn.Embedding(100, 32), nn.Linear(32, 2)
    stack = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True) for _ in range(3))
    optimizer = torch.optim.AdamW([*words.parameters(), *stack.parameters(), *head.parameters()], lr=1e-3)
    ids = torch.randint(5, 100, (16, 12))
    is_token = torch.arange(12) < torch.randint(4, 13, (16, 1))
    labels = (ids[:, 0] > 50).long()

    def layers(x: Tensor) -> list[Tensor]:
        """The outputs of all layers."""
        states = accumulate(stack, lambda h, layer: layer(h, src_key_padding_mask=~is_token), initial=x)
        return list(states)[1:]

    for _ in range(steps):
        states, penalty = lnsr.penalty_of(layers, words(ids), share=0.1, mask_BL=is_token)
        loss = nn.functional.cross_entropy(head(states[-1][:, 0]), labels)
        optimizer.zero_grad()
        (loss + weight * penalty).backward()
        optimizer.step()
    return loss.item(), penalty.item()


if __name__ == "__main__":
    for weight in (0.0, 1.0):
        loss, penalty = train(weight)
        print(f"weight {weight:g}: loss {loss:.3f}, change of the layers under noise {penalty:.4f}")
