"""Adapters in a model of one's own that works on padded batches [B, L, D]: a bottleneck and a PAL of each task."""

import torch
from torch import Tensor, nn

from polytask.adapters import Adapter, AdapterContext, Houlsby, Pal
from polytask.encoders.attention import attend
from polytask.stream import Layout

TASKS = ("topic", "tone")


class Encoder(nn.Module):
    """Pre-norm layers; the adapter's slots are called with the batch as a stream, `x.flatten(0, 1)`."""

    def __init__(self, adapter: type[Adapter], layers: int = 2, hidden: int = 32, **options: int) -> None:
        super().__init__()
        context = AdapterContext(TASKS, layers, hidden, heads=2, ffn=64, dropout=0.0, attend=attend)
        self.adapter = adapter(context, **options)
        self.words = nn.Embedding(100, hidden)
        self.attention = nn.ModuleList(nn.MultiheadAttention(hidden, 2, batch_first=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor, tasks: list[int]) -> Tensor:
        layout = Layout.from_padding(mask, tasks)
        h = self.words(ids)
        for index, (attention, norm) in enumerate(zip(self.attention, self.norms, strict=True)):
            slots, x = self.adapter.layer(index), norm(h)
            y = attention(x, x, x, key_padding_mask=mask == 0)[0]
            branch = slots.parallel(x.flatten(0, 1), layout)  # PAL; None for adapters without a branch
            y = slots.sublayer("attention", y.flatten(0, 1), layout).view_as(y)  # Houlsby
            h = h + y if branch is None else h + y + branch.view_as(y)
        return h[:, 0]


def train(adapter: type[Adapter], **options: int) -> tuple[float, float]:
    torch.manual_seed(0)
    ids = torch.randint(5, 100, (16, 10))
    mask = (torch.arange(10) < torch.randint(3, 11, (16, 1))).long()
    tasks = [0] * 8 + [1] * 8  # sorted by task
    labels = torch.cat([ids[:8, 0] > 50, ids[8:, 1] % 2 == 0]).long()
    model, head = Encoder(adapter, **options), nn.Linear(32, 2)
    model.requires_grad_(False).adapter.requires_grad_(True)
    optimizer = torch.optim.AdamW([*model.adapter.parameters(), *head.parameters()], lr=1e-2)
    losses = []
    for _ in range(60):
        loss = nn.functional.cross_entropy(head(model(ids, mask, tasks)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


if __name__ == "__main__":
    print("Houlsby: loss {:.3f} -> {:.3f}".format(*train(Houlsby, size=8)))
    print("PAL:     loss {:.3f} -> {:.3f}".format(*train(Pal, size=8, heads=2)))
