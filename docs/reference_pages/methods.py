"""The page on the methods and their options."""

import inspect

from reference_pages.markdown import markdown, recipe_type, shown, table

import polytask
from polytask.cli.methods import meaning_of, read_docstring

INTRO = """\
# Methods

Every method a recipe can choose, with its options and their defaults.
`polytask methods NAME` prints the same for one method.
The [guide to the methods](../methods.md) explains how the methods relate, and where they differ from their papers.
Shapes: T tokens, S sequences, D hidden size, K tasks, N training examples of a task.
"""
PLACES = {
    "adapter": ("Adapters", "`adapter: NAME` in a recipe: task-specific parameters inside the encoder."),
    "head": (
        "Heads",
        "`head: NAME` of a task: turns the encoder's output into the task's outputs, loss and predictions.",
    ),
    "loss": ("Losses", "`loss: NAME` of a task: replaces the loss of its head."),
    "regularizer": (
        "Regularizers",
        "`regularizers: [NAME, ...]` in a recipe: penalties that are added to the tasks' losses.",
    ),
    "sampler": ("Samplers", "`sampler: NAME` in a recipe: decides which tasks take part in each step."),
    "policy": (
        "Policies",
        "`policy: NAME` in a recipe: turns the losses or gradients of several tasks into one update.",
    ),
    "optimizer": ("Optimizers", "`optimizer: NAME` in a recipe: moves the weights."),
}
"""Table of methods -> its title and where a recipe names its methods."""


def page() -> str:
    lines = [INTRO]
    for kind, entries in polytask.TABLES.items():
        title, intro = PLACES.get(kind, (kind.title(), ""))
        lines += [f"## {title}", "", intro, ""]
        for name, method in entries.items():
            text = inspect.getdoc(method) or ""
            lines += [f"### {name}", "", markdown(text), ""]
            paragraphs = read_docstring(text)[0]
            options = polytask.options_of(method)
            lines += table(
                ["option", "type", "default", "description"],
                (
                    [
                        f"`{option.name}`",
                        recipe_type(option.kind),
                        "required" if option.default is inspect.Parameter.empty else shown(option.default),
                        markdown(meaning_of(kind, option.name, paragraphs)),
                    ]
                    for option in options
                ),
            )
    return "\n".join(lines)
