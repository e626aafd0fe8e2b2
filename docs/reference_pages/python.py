"""The page on the Python API: everything in `polytask.__all__`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from reference_pages.fields import fields
from reference_pages.markdown import markdown, table, type_name

import polytask

INTRO = """\
# Python API

Everything here is imported from `polytask` itself: `import polytask; polytask.train(...)`.
[Parts](parts.md) lists what can be used without polytask's training loop.
Other modules are internal and may change without notice.
Errors that a user can cause are raised as `polytask.UserError`.
"""
CONSTANTS = {
    "KNOWN_METRICS": "The names of all built-in metrics.",
    "TABLES": "The tables of methods by kind: `TABLES['adapter']['pal']` is the class that `adapter: pal` names.",
    "__version__": "The version of polytask.",
}


def page() -> str:
    public = {name: getattr(polytask, name) for name in polytask.__all__}
    lines = [INTRO, "## Functions", ""]
    for name, value in public.items():
        if inspect.isroutine(value):
            lines += [f"### {name}", "", *signature(name, value), markdown(inspect.getdoc(value) or ""), ""]
    lines += ["## Classes", ""]
    for name, value in public.items():
        if inspect.isclass(value):
            lines += [f"### {name}", "", *class_entry(name, value)]
    lines += ["## Constants", ""]
    rows = [[f"`{name}`", CONSTANTS[name]] for name, value in public.items() if name in CONSTANTS]
    assert len(rows) == sum(not (inspect.isroutine(v) or inspect.isclass(v)) for v in public.values())
    lines += table(["name", "value"], iter(rows))
    return "\n".join(lines)


def class_entry(name: str, value: type) -> list[str]:
    lines: list[str] = []
    if not dataclasses.is_dataclass(value) and not issubclass(value, Exception):
        lines += signature(name, value)
    lines += [markdown(inspect.getdoc(value) or ""), ""]
    if dataclasses.is_dataclass(value):
        rows = ([f"`{f.name}`", f"`{f.kind}`", f.default, markdown(f.text)] for f in fields(value, type_name))
        lines += table(["field", "type", "default", "description"], rows)
    for member in [n for cls in reversed(value.__mro__) if cls.__module__.startswith("polytask") for n in vars(cls)]:
        entry = inspect.getattr_static(value, member)
        text = inspect.getdoc(getattr(value, member)) or ""
        if member.startswith("_") or f"**`{name}.{member}" in "\n".join(lines):
            continue
        if isinstance(entry, property | functools.cached_property):
            lines += [f"**`{name}.{member}`** {markdown(text)}".rstrip(), ""]
        elif inspect.isroutine(getattr(value, member)):
            lines += [f"**`{name}.{member}()`**", "", *signature(member, getattr(value, member)), markdown(text), ""]
    return lines


def signature(name: str, function: Callable[..., Any]) -> list[str]:
    """Returns a signature as a code block, with one argument per line if it is long."""
    parsed = inspect.signature(function)
    arguments, star = [], False
    for parameter in parsed.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        kind = "" if parameter.annotation is parameter.empty else f": {type_name(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        arguments.append(f"{stars}{parameter.name}{kind}{default}")
    result = parsed.return_annotation
    end = "" if result is parsed.empty or inspect.isclass(function) else f" -> {type_name(result)}"
    line = f"{name}({', '.join(arguments)}){end}"
    if len(line) > 88:
        line = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){end}"
    return ["```python", line, "```", ""]
