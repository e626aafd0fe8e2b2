"""Who may import whom. The table is DESIGN's; a line that breaks it is named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "polytask"

# What everybody may import: records, seeds, plain values, and the modules about files and processes.
BASICS = {"types", "stream", "seeds", "values", "version", "places", "children", "controls"}
BASICS |= {"hidden", "whole", "writable"}
BASES = {f"{room}.base" for room in ("adapters", "heads", "losses", "samplers", "regularizers", "policies")}
TABLES = {"adapters", "heads", "samplers", "regularizers", "policies", "optim", "losses"}

# A room (or a file) -> the rooms and files it may import beside the basics and itself.
MAY: dict[str, set[str]] = {
    "types": set(),
    "stream": set(),
    "seeds": set(),
    "version": set(),
    "places": set(),
    "children": set(),
    "controls": set(),
    "hidden": set(),
    "whole": set(),
    "writable": set(),
    "values": {"types"},
    "text": set(),
    "samplers": set(),
    "adapters": {"trunk.attention", "trunk.bias_gelu", "trunk.bottleneck", "trunk.one_product"},
    "heads": set(),
    "losses": set(),
    "policies": set(),
    "optim": set(),
    "trunk": {"adapters.base"},
    "model": {"adapters.base", "heads.base", "text", "trunk"},
    "regularizers": {"model", "trunk"},
    "tasks": {"text", "evaluation.metrics"},
    "training": {"model", "text", "trunk", *BASES},
    "evaluation": {"model", "text", "trunk", *BASES},
    "recipe": set(),
    "starter": {"recipe", "tasks"},
    "build": {"recipe", "model", "text", "trunk", *TABLES},
    "bundle": {"build", "model", "recipe", "text", "trunk"},
    "environment": set(),
    "serving": {"bundle", "build", "environment", "tasks", "text", "trunk"},
    "export": {"build", "bundle", "heads.base", "model", "recipe", "text", "trunk"},
    "experiments": {"build", "environment", "evaluation", "preparing", "recipe", "run"},
    "preparing": {
        "build",
        "bundle",
        "environment",
        "evaluation.metrics",
        "evaluation.own_metrics",
        "model",
        "recipe",
        "tasks",
        "text",
        "training.groups",
    },
    "scoring": {"evaluation", "heads.base", "preparing", "recipe", "serving", "tasks"},
    "run": {
        *("build", "bundle", "environment", "evaluation", "policies.base", "preparing", "recipe", "regularizers.base"),
        *("resuming", "samplers.base", "scoring", "serving", "tasks", "training"),
    },
    "resuming": {"environment", "recipe", "tasks", "training"},
    "pretraining": {"recipe", "resuming", "run", "tasks", "training"},
    "adding": {
        *("build", "bundle", "evaluation", "export", "model", "policies.base", "preparing", "recipe"),
        *("resuming", "run", "scoring", "tasks", "training", "trunk"),
    },
    "probing": {"build", "preparing", "recipe", "samplers.base"},
    "__main__": {"cli"},
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name, without `polytask.`, of each import of our own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, a.name.removeprefix("polytask.")) for a in node.names if a.name.startswith("polytask.")
            )
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            if node.module == "polytask":
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif node.module and node.module.startswith("polytask."):
                yield node.lineno, node.module.removeprefix("polytask.")


def allowed(name: str, room: str) -> bool:
    may = BASICS | MAY[room] | {room}
    parts = name.split(".")
    return any(".".join(parts[:i]) in may for i in range(1, len(parts) + 1))


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_imports_only_what_its_room_may(path: Path) -> None:
    inside = path.relative_to(SOURCE).with_suffix("").parts
    if inside[0] == "cli":
        public = {node.value for node in ast.walk(_all()) if isinstance(node, ast.Constant)}
        may = public | BASICS
        wrong = [f"{n}: {name}" for n, name in imports(path) if not name.startswith("cli") and name not in may]
    else:
        wrong = [f"line {n}: {name}" for n, name in imports(path) if not allowed(name, inside[0])]
    assert not wrong, f"{path}: may not import {wrong}"


def _all() -> ast.expr:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    return next(
        n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
    )


def test_a_concrete_method_is_known_to_its_table_alone() -> None:
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0]
        for line, name in imports(path):
            table, _, method = name.partition(".")
            if table in TABLES and method not in ("", "base") and room != table:
                raise AssertionError(f"{path}:{line} imports {name}: only {table}/__init__.py may")


def test_no_room_for_everything() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "common", "helpers", "misc")]


def test_public_names_are_sorted_and_there() -> None:
    import polytask  # noqa: PLC0415  (the other tests must not need it)

    names = polytask.__all__
    order = sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert names == order
    assert all(hasattr(polytask, name) for name in names)


PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
UNPICKLE = re.compile(r"torch\.(load|save|jit\.load|hub)\b|(np|numpy)\.load\b|read_pickle|allow_pickle|\b(eval|exec)\(")


def unpickling(code: str) -> list[str]:
    """Imports of modules that unpickle, and calls that do or may."""
    found = [match.group() for match in UNPICKLE.finditer(code.replace(".eval(", ""))]
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in PICKLES]
        if isinstance(node, ast.ImportFrom):
            named = {f"torch.{alias.name}" for alias in node.names} if node.module == "torch" else set()
            found += [node.module or ""] if (node.module or "").partition(".")[0] in PICKLES else []
            found += sorted(named & {"torch.load", "torch.save", "torch.hub"})
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_is_unpickled_anywhere(path: Path) -> None:
    code = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))  # without comments
    assert not unpickling(code)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import pickle as p, json",
        "from pickle import loads",
        "from torch import load",
        "weights = torch.load(path)",
        "weights = torch.load(path, weights_only=True)",
        "rows = numpy.load(path, allow_pickle=True)",
        "eval(text)",
    ],
)
def test_the_look_for_pickles_finds_them(line: str) -> None:
    assert unpickling(line)
    assert not unpickling("model.eval()\nmodel.load_state_dict(load_file(path))")
