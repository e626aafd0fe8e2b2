"""A part that is used alone imports nothing that it does not need."""

import subprocess
import sys

import pytest

BASICS = {"fused_forms", "modes", "seeds", "settings", "stream", "types", "version"}
# What a part may import of polytask, in addition to itself and the basics.
PARTS: dict[str, set[str]] = {
    "adapters": set(),
    "encoders.adapted": {"adapters", "encoders"},
    "encoders.attention": {"encoders"},
    "optim": set(),
    "policies": {"losses"},
    "regularizers": {"losses"},
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
