"""Parameters per task on BERT-base, as the papers count them."""

from typing import Any

import pytest

from polytask.adapters import ADAPTERS
from polytask.adapters.base import AdapterContext

BERT_BASE = AdapterContext(tuple(f"task{i}" for i in range(8)), layers=12, hidden=768, heads=12, ffn=3072, dropout=0.1)
TRUNK = 109_482_240  # parameters of BERT-base with its pooler


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("pal", {}, 1_819_836),  # 2 d D + 3 L d^2 = 1,811,520, and biases
        ("low_rank", {}, 1_853_616),  # the authors' code: 12 (2 * 100 * 768 + 100 + 768)
        ("low_rank", {"shared_projections": True}, 2 * 100 * 768 + 100 + 768),
        ("houlsby", {}, 2_379_264),
        ("houlsby", {"position": "after_ffn"}, 1_189_632),
        ("houlsby", {"position": "after_norm"}, 1_189_632),
        ("conditional_norm", {}, 38_400),  # 25 norms
        ("lhuc", {}, 12 * 768),
        ("lora", {}, 12 * 2 * 2 * 8 * 768),
        ("lora", {"sites": ("up", "down"), "rank": 4}, 12 * 2 * 4 * (768 + 3072)),
        ("none", {}, 0),
    ],
)
def test_parameters_per_task(name: str, options: dict[str, Any], count: int) -> None:
    adapter = ADAPTERS[name](BERT_BASE, **options)
    for task in ("task0", "task7"):
        assert sum(p.numel() for p in adapter.task_parameters(task)) == count
    assert sum(p.numel() for p in adapter.parameters()) == 8 * count  # all of it belongs to some task


def test_eight_tasks_with_pal_stay_under_the_papers_budget() -> None:
    own = sum(p.numel() for p in ADAPTERS["pal"](BERT_BASE).parameters())
    assert (TRUNK + own) / TRUNK < 1.134
