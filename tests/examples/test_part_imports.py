"""A part that is used alone imports nothing that it does not need."""

import subprocess
import sys
from importlib import import_module

import pytest

BASICS = {"fused_forms", "modes", "seeds", "settings", "step_share", "stream", "types", "version"}
# What a part may import of polytask, in addition to itself and the basics.
PARTS: dict[str, set[str]] = {
    "adapters": set(),
    "encoders.adapted": {"adapters", "encoders"},
    "encoders.attention": {"encoders"},
    "optim": set(),
    "policies": {"kinds", "losses"},
    "regularizers": {"kinds", "losses"},
    "samplers": set(),
    "stream": set(),
}
HEAVY = {
    *("datasets", "huggingface_hub", "jinja2", "matplotlib", "pandas", "pyarrow", "rich", "safetensors", "scipy"),
    *("sklearn", "tensorboard", "tokenizers", "transformers", "triton", "typer", "yaml"),
}


@pytest.mark.parametrize("part", PARTS)
def test_it_imports_only_what_it_needs(part: str) -> None:
    code = f"import polytask.{part}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert not {name.partition(".")[0] for name in modules} & HEAVY
    ours = {name.split(".")[1] for name in modules if name.startswith("polytask.")}
    assert ours <= BASICS | PARTS[part] | {part.partition(".")[0]}


TABLES = {
    "adapters": "ADAPTERS",
    "optim": "OPTIMIZERS",
    "policies": "POLICIES",
    "regularizers": "REGULARIZERS",
    "samplers": "SAMPLERS",
}


@pytest.mark.parametrize("package", TABLES)
def test_every_method_can_be_imported_from_its_package(package: str) -> None:
    module = import_module(f"polytask.{package}")
    methods = getattr(module, TABLES[package]).values()
    assert {method.__name__ for method in methods if method.__module__.startswith("polytask")} <= set(module.__all__)
