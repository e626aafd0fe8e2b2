"""The studies of recipes/papers/ as their files say: variants, what these set themselves, and untrained tasks.

Reads YAML only: a study can be described without its data.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PAPERS = Path(__file__).parent.parent / "recipes" / "papers"
TRAINED = "trained"


@cache
def study_files() -> dict[str, tuple[Path, Mapping[str, Any]]]:
    """By the name of a study: its file, and its content."""
    read = [(path, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in sorted(PAPERS.glob("*/study-*.yaml"))]
    return {content["name"]: (path, content) for path, content in read}


def own_settings(study: str) -> dict[str, dict[str, Any]]:
    """By variant: the fields that it sets itself, which a change for the whole study does not reach."""
    if study not in study_files():
        return {}
    variants = study_files()[study][1]["variants"]
    return {
        name: dict(chosen) if isinstance(chosen, Mapping) else {"recipe": chosen} for name, chosen in variants.items()
    }


def untrained(study: str) -> dict[str, set[str]]:
    """By variant: the tasks that are scored with an untrained head."""
    found = {}
    for name, settings in own_settings(study).items():
        trained = trained_tasks(study_files()[study][0].parent / settings["recipe"])
        for field, value in settings.items():
            if field.startswith("tasks.") and field.endswith(f".{TRAINED}"):
                trained[field.split(".")[1]] = value
        found[name] = {task for task, value in trained.items() if not value}
    return found


def trained_tasks(recipe: Path) -> dict[str, bool]:
    """The tasks for which a recipe, or one that it builds on, says whether they are trained."""
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    below = trained_tasks(recipe.parent / content["base"]) if "base" in content else {}
    own = {task: about[TRAINED] for task, about in content.get("tasks", {}).items() if TRAINED in about}
    return {**below, **own}
