"""What each command imports before it does anything: the time to the first line of output is mostly imports."""

import subprocess
import sys

import pytest
import torch

from polytask import Finished
from polytask.cli.main import COMMANDS

UNUSED_BY_PREDICTION = {
    *("datasets", "jinja2", "matplotlib", "pandas", "pyarrow", "scipy", "sklearn", "tensorboard", "transformers")
}
HEAVY = {*UNUSED_BY_PREDICTION, "huggingface_hub", "numpy", "pydantic", "torch", "triton"}


def imported(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has imported after running the code."""
    after = "import sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    command = [sys.executable, "-c", f"try:\n    {code}\nexcept SystemExit:\n    pass\n{after}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['polytask', *{arguments}]; from polytask.cli.main import main; main()"
    assert not imported(code) & HEAVY


def test_prediction_imports_only_what_it_needs(tiny_run: Finished) -> None:
    arguments = ["polytask", "predict", str(tiny_run.folder), "--text", "A fine day."]
    found = imported(f"import sys; sys.argv = {arguments}; from polytask.cli.main import main; main()")
    assert "torch" in found
    assert not found & UNUSED_BY_PREDICTION
    assert "triton" not in found or torch.cuda.is_available()


def test_a_part_used_alone_imports_only_what_it_needs() -> None:
    assert imported("from polytask.optim import OPTIMIZERS") & HEAVY == {"numpy", "torch"}


def test_the_package_imports_its_names_when_they_are_used() -> None:
    assert not imported("import polytask; dir(polytask)") & HEAVY
    assert "torch" in imported("from polytask import load")
