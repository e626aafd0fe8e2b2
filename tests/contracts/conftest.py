"""A recipe whose run takes a fifth of a second: seven tasks on thirty rows, with a tiny encoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytask import recipe_from
from polytask.recipe.records import Recipe

MakeRecipe = Callable[..., Recipe]

TASKS: dict[str, dict[str, Any]] = {
    "one": {"kind": "classes", "text": "a", "label": "mood"},
    "two": {"kind": "yes_no", "text": ["a", "b"], "label": "same"},
    "three": {"kind": "score", "range": [0, 5], "text": ["a", "b"], "label": "score", "head": "bi"},
    "four": {"kind": "multilabel", "text": "a", "label": "topics"},
    "five": {"kind": "tokens", "text": "b", "label": "tags"},
    "six": {"kind": "match", "text": ["a", "b"]},
    "seven": {"kind": "choice", "text": "a", "options": ["mood", "same"], "label": "best"},
}
"""One text, a pair in one sequence, a pair in two, several classes per row, a tag for each word, pairs without a label,
and a text with two options."""
BASE = {
    "encoder": {"layers": 2, "hidden": 16, "heads": 2, "ffn": 32, "positions": 32},
    "max_length": 16,
    "sampler": "mixed",
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "train": {"epochs": 1, "steps_per_epoch": 6, "batch_size": 6, "device": "cpu", "precision": "float32"},
}
SMALL = {
    "pal": "{name: pal, size: 6, heads: 2}",
    "houlsby": "{name: houlsby, size: 4}",
    "low_rank": "{name: low_rank, size: 4}",
    "lora": "{name: lora, rank: 2}",
    "stack": "{name: stack, adapters: [{name: pal, size: 6, heads: 2}, conditional_norm]}",
}
"""Adapters whose default options do not fit so small an encoder."""
IN_ORDER = ["sampler=in_order", "tasks.six.trained=false"]
"""Six tasks for six steps, without that of pairs, whose loss of a single row ewc cannot measure."""
NEEDS = {"soft_sharing": ["adapter=own_encoder"], "ewc": IN_ORDER, "lwf": IN_ORDER}
"""Settings that a regularizer requires."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    words = ["the", "book", "was", "good", "bad", "long", "dull", "funny", "and", "I", "liked", "it", "not", "much"]
    rows = [
        (" ".join(words[n % 7 : n % 7 + 4]), " ".join(words[n % 5 : n % 5 + 5]), n % 3, ("no", "yes")[n % 2], n % 6)
        for n in range(30)
    ]
    tags = ["O B-X I-X O B-Y", "B-Y O O B-X I-X", "O O B-Y I-Y O"]
    topics = ["plot", "plot|style", "", "price|style", "plot|price|style"]
    lines = [
        f"{a},{b},{('sad', 'calm', 'glad')[mood]},{same},{score},{topics[n % 5]},{tags[n % 3]},{n % 2}"
        for n, (a, b, mood, same, score) in enumerate(rows)
    ]
    (folder / "data.csv").write_text("a,b,mood,same,score,topics,tags,best\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def make_recipe(data: Path) -> MakeRecipe:
    """make_recipe(*settings): the recipe with these settings, as `--set` takes them."""
    tasks = {name: {**task, "train": "data.csv", "dev": "data.csv"} for name, task in TASKS.items()}

    def make(*settings: str) -> Recipe:
        return recipe_from({**BASE, "tasks": tasks}, settings, folder=data)

    return make
