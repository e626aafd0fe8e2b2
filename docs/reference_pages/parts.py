"""The page on the parts that can be used without polytask's training loop."""

import inspect
from importlib import import_module
from typing import Any

from reference_pages.markdown import markdown, table
from reference_pages.python import class_entry, signature

INTRO = """\
# Parts

What can be imported and used in a training loop of your own; [the guide](../parts.md) shows each part in use.
Errors that a user can cause are raised as `polytask.UserError`.
"""
SECTIONS: list[tuple[str, str, str, dict[str, list[str]]]] = [
    ("Optimizers", "polytask.optim", "OPTIMIZERS", {}),
    (
        "Gradient policies",
        "polytask.policies",
        "POLICIES",
        {
            "polytask.policies": ["combine_gradients", "PolicyContext"],
            "polytask.policies.gem": ["project"],
            "polytask.policies.a_gem": ["project"],
        },
    ),
    (
        "Regularizers",
        "polytask.regularizers",
        "",
        {
            "polytask.regularizers.smart": ["penalty_of", "Ascent"],
            "polytask.regularizers.r_drop": ["penalty_of"],
            "polytask.regularizers.bregman": ["running_average", "penalty_of"],
            "polytask.regularizers.lnsr": ["penalty_of"],
        },
    ),
    (
        "Adapters",
        "polytask.adapters",
        "ADAPTERS",
        {
            "polytask.encoders.adapted": ["AdaptedModel"],
            "polytask.adapters": ["AdapterContext"],
            "polytask.stream": ["Layout.from_padding"],
        },
    ),
    ("Samplers", "polytask.samplers", "SAMPLERS", {"polytask.samplers": ["TaskBatchSampler"]}),
]
"""Title, package, its table of methods, and the names of other modules."""


def page() -> str:
    lines = [INTRO]
    for title, package, methods, names in SECTIONS:
        lines += [f"## {title}", ""]
        if not methods:
            lines += ["The formulas and papers are those of [the methods](methods.md#regularizers).", ""]
        else:
            lines += [f"Classes of `{package}`; [the methods](methods.md) have their formulas and options:", ""]
            rows = [[f"`{cls.__name__}`", first_line(cls)] for cls in getattr(import_module(package), methods).values()]
            lines += [*table(["class", "what it is"], iter(rows)), ""]
        for module, members in names.items():
            for name in members:
                lines += entry(module, name)
    return "\n".join(lines)


def entry(module: str, name: str) -> list[str]:
    value: Any = import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    heading = f"### {module.removeprefix('polytask.')}.{name}"
    last = name.split(".")[-1]
    lines = [heading, "", f"`from {module} import {name.split('.')[0]}`", ""]
    if inspect.isclass(value):
        return [*lines, *class_entry(name, value), ""]
    return [*lines, *signature(last, value), markdown(inspect.getdoc(value) or ""), ""]


def first_line(cls: type) -> str:
    return markdown((inspect.getdoc(cls) or "").partition("\n")[0])
