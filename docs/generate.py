"""Writes docs/recipes.md from the records a recipe is read into: `python docs/generate.py`. A test asks for it."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from polytask import recipe, types

PAGE = Path(__file__).parent / "recipes.md"
PARTS = [
    (
        "The recipe",
        recipe,
        "Recipe",
        "Everything has a default but `tasks`. Relative files are looked for beside the recipe.",
    ),
    (
        "A task: `tasks: {NAME: {...}}`",
        types,
        "TaskSpec",
        "`kind`, `text`, `label` (not for kind text), `train`, `dev` are needed.",
    ),
    (
        "Training: `train: {...}`",
        types,
        "TrainSettings",
        "`--set train.epochs=5` changes one field from the command line.",
    ),
    (
        "Adding tasks: `add: {...}`",
        types,
        "AddSettings",
        "For `polytask add-task RUN RECIPE`: [adding a task](adding-a-task.md).",
    ),
]
INTRO = """\
# Every field of a recipe

A recipe is one YAML file that describes a whole run. The six swaps (`adapter`, `regularizers`, `sampler`, `policy`,
`optimizer`, and each task's `head`) are given by name, `sampler: round_robin`, or by name and options,
`optimizer: {name: adamw, lr: 3e-5}`; `polytask methods` lists them. An unknown field, method or option is an error that
says what there is.

A recipe may start with `base: OTHER.yaml`: what it says is put over the other recipe, `train:` and each task field by
field, everything else whole; `tasks: {NAME: null}` leaves a task out. Relative paths of the base start from the base's
own folder.

This page is made by `python docs/generate.py` from the code.
"""


def fields(module: object, name: str) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and the sentence under it, for each field of a record."""
    source = inspect.getsource(module)  # type: ignore[arg-type]
    hints = get_type_hints(getattr(module, name), include_extras=True)
    record = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    for node, following in zip(record.body, [*record.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            default = ast.unparse(node.value) if node.value else "needed"
            said = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                said = str(following.value.value)
            field = ast.unparse(node.target)
            yield field, bounded(hints[field]) or ast.unparse(node.annotation), default, said


def bounded(kind: Any) -> str:
    """`float in [0, 1)` for a number with bounds, which may be None too; nothing for other types."""
    for part in (kind, *get_args(kind)):
        if get_origin(part) is Annotated:
            return f"{get_args(part)[0].__name__} {get_args(part)[1]}"
    return ""


WORDS = {
    "Literal[": "",
    "Mapping[str, TaskSpec]": "tasks by name",
    "Mapping[str, Any]": "mapping",
    "Mapping[str, str]": "text by task",
    "tuple[": "",
    "]": "",
    "'": "",
    ", ...": ", several",
    "MethodChoice": "method",
    " | None": "",
    "LabelKind": "classes, yes_no, score, text",
    "|": "or",
}


def shown_type(text: str) -> str:
    if " in [" in text or " in (" in text:  # a number with bounds, as readers know intervals
        return text
    for old, new in WORDS.items():
        text = text.replace(old, new)
    return text


def shown_default(text: str) -> str:
    if text.startswith("field(default_factory=lambda: MethodChoice("):
        return text.split("'")[1]
    return {
        "None": "",
        "field(default_factory=TrainSettings)": "",
        "field(default_factory=dict)": "none",
        "()": "none",
    }.get(text, text.strip("'"))


def page() -> str:
    lines = [INTRO]
    for title, module, name, said in PARTS:
        lines += [
            f"## {title}",
            "",
            said,
            "",
            "| field | what it takes | default | what it does |",
            "|---|---|---|---|",
        ]
        for field, kind, default, sentence in fields(module, name):
            if (name, field) != ("TaskSpec", "name"):
                lines.append(f"| `{field}` | {shown_type(kind)} | {shown_default(default)} | {sentence} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
