"""The page on the fields of a recipe."""

import typing

from reference_pages.fields import fields
from reference_pages.markdown import markdown, table

import polytask
from polytask.settings import RowSample, Windows

INTRO = """\
# Recipe fields

A recipe is one YAML file that describes a whole run.
Methods are chosen by name.
They are the `adapter`, `regularizers`, `sampler`, `policy` and `optimizer`, and the `head` and `loss` of each task.
Write the name alone, `sampler: round_robin`, or the name and its options, `optimizer: {name: adamw, lr: 3e-5}`.
[Methods](methods.md) lists them all, and so does `polytask methods`.
An unknown field, method or option is an error, and the error message lists the valid ones.

A recipe can extend another one with `base: OTHER.yaml`.
Fields of `train:` and of each task are then merged one by one, and every other field replaces that of the base.
`tasks: {NAME: null}` removes a task.
Relative paths in the base are relative to the base's own folder.

`--set FIELD=VALUE` changes one field from the command line: `--set train.epochs=5 --set optimizer.lr=3e-5`.
"""


def page() -> str:
    hints = typing.get_type_hints(polytask.Recipe)
    parts = [
        (
            "The recipe",
            polytask.Recipe,
            "Only `tasks` is required. Relative file names are relative to the recipe's folder.",
        ),
        (
            "A task: `tasks: {NAME: {...}}`",
            typing.get_args(hints["tasks"])[1],
            "`kind`, `text`, `train` and `dev` are required, and `label` too unless the kind is `text` or `match`.",
        ),
        (
            "A sample of rows: `rows: {...}` of a task",
            RowSample,
            "A number instead, as in `rows: 10000`, stands for the first rows.",
        ),
        (
            "Windows of long texts: `windows: {...}` of a task",
            Windows,
            "All fields are optional: see [long documents](../long-documents.md).",
        ),
        (
            "Word tags: `word_tags: {...}`",
            typing.get_args(hints["word_tags"])[0],
            "Part-of-speech tags from a tagger: see [word tags](../methods.md#word-tags).",
        ),
        ("Training: `train: {...}`", hints["train"], "All fields are optional."),
        (
            "Adding tasks: `add: {...}`",
            typing.get_args(hints["add"])[0],
            "Read by `polytask add-task` and `polytask add-class` only: see [adding a task](../adding-a-task.md).",
        ),
    ]
    lines = [INTRO]
    for title, record, intro in parts:
        rows = [field for field in fields(record) if not (title.startswith("A task") and field.name == "name")]
        lines += [f"## {title}", "", *intro.replace(". ", ".\n").split("\n"), ""]
        lines += table(
            ["field", "type", "default", "description"],
            ([f"`{f.name}`", f.kind, f.default, markdown(f.text)] for f in rows),
        )
    return "\n".join(lines)
