"""Who may import whom: the table of docs/architecture.md, checked. A line that breaks it is named."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "polytask"
FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")

TABLES = {"adapters", "heads", "losses", "optim", "policies", "regularizers", "samplers"}
BASES = {f"{table}.base" for table in TABLES - {"optim"}}
# What every package may import: records, kinds of labels, the table of fused forms, random draws, files, processes ...
BASICS = {"types", "settings", "kinds", "step_share", "stream", "fused_forms", "seeds", "modes", "version", "disk"}
BASICS |= {"connection", "processes", "child_processes"}

# A package (or a file at the root) -> the packages and modules it may import in addition to the basics and itself.
MAY: dict[str, set[str]] = {
    **{name: set() for name in BASICS},
    **{name: set() for name in ("samplers", "heads", "losses", "optim", "text")},
    "policies": {"losses.base"},
    "machine": set(),
    "launch": {"machine"},
    "ray_cluster": {"machine"},
    "cluster_room": set(),
    "methods": set(),
    "plugins": {"methods"},
    "adapters": set(),
    "encoders": {"adapters.base"},
    "kernels": {"adapters", "encoders", "optim", "regularizers"},
    "pretrained": {"encoders", "machine"},
    "model": {"adapters.base", "encoders", "heads.base", "text"},
    "regularizers": {"losses.base", "model"},
    "evaluation": {"heads.base", "methods", "model", "plugins", "text"},
    "tasks": {"evaluation.metrics", "text"},
    "training": {"kernels", "model", "text", *BASES},
    "recipe": {"methods", "tasks"},
    "build": {"encoders", "kernels", "methods", "model", "pretrained", "recipe", "text", *TABLES},
    "contracts": {"adapters", "build", "encoders", "methods", "model", "plugins", "recipe", "text", *BASES},
    "reports": {"evaluation", "text"},
    "runs": {
        *("build", "evaluation", "machine", "methods", "model", "plugins", "pretrained", "recipe", "reports", "tasks"),
        *("text", "training"),
        *BASES,
    },
    "serving": {"encoders", "machine", "runs.bundle", "runs.folder", "tasks", "text"},
    "bulk": {"cluster_room", "machine", "plugins", "ray_cluster", "runs.folder", "serving", "tasks"},
    "export": {
        *("adapters.base", "build", "encoders", "evaluation", "heads.base", "methods", "model", "plugins"),
        *("pretrained", "recipe", "runs.bundle", "runs.folder", "runs.prepare", "runs.tasks_file"),
        *("serving.predictor", "tasks", "text"),
    },
    "studies": {
        *("build", "cluster_room", "evaluation", "machine", "plugins", "ray_cluster", "recipe", "reports", "runs"),
        "text",
    },
    "tuning": {
        *("build", "evaluation", "machine", "methods", "plugins", "recipe", "reports", "runs", "studies", "tasks"),
        "text",
    },
    "fitting": {"recipe", "runs", "serving"},
    "sklearn": {"fitting", "plugins.trust", "recipe", "runs.bundle", "serving", "tasks"},
    "__main__": {"cli"},
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name, without `polytask.`, of each import of our own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("polytask.")]
            yield from ((node.lineno, name.removeprefix("polytask.")) for name in names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            if node.module == "polytask":
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif node.module and node.module.startswith("polytask."):
                yield node.lineno, node.module.removeprefix("polytask.")


def public_names() -> set[str]:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (names,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return set(ast.literal_eval(names))


def allowed(name: str, package: str) -> bool:
    """The command line uses public names; a concrete method is imported by its own table only."""
    if package == "cli":
        return name.partition(".")[0] in {"cli", "launch", "text"} | BASICS or name in public_names()
    table, _, method = name.partition(".")
    if table in TABLES and method not in ("", "base") and package not in (table, "kernels"):
        return False
    parts = name.split(".")
    return any(".".join(parts[:i]) in BASICS | MAY[package] | {package} for i in range(1, len(parts) + 1))


def test_every_package_imports_only_what_it_may() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports {name}"
        for path in FILES
        for line, name in imports(path)
        if not allowed(name, path.relative_to(SOURCE).with_suffix("").parts[0])
    ]
    assert not wrong, "\n".join(wrong)


def test_there_are_no_cycles_between_packages() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        package = path.relative_to(SOURCE).with_suffix("").parts[0]
        imported = {name.partition(".")[0] for _, name in imports(path)} if package != "cli" else set()
        graph.setdefault(package, set()).update(imported - {package})
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


def test_no_package_for_everything() -> None:
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


def test_nothing_is_unpickled_anywhere() -> None:
    for path in FILES:
        code = ast.unparse(ast.parse(path.read_text(encoding="utf-8")))  # without comments
        assert not unpickling(code), path


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
