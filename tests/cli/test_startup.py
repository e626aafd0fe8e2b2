"""What each command imports before it does anything: the time to the first line of output is mostly imports."""

import subprocess
import sys

import pytest

from polytask.cli.main import COMMANDS

HEAVY = {"datasets", "huggingface_hub", "jinja2", "matplotlib", "numpy", "pyarrow", "scipy", "tensorboard", "torch"}
NAMES = [command.__name__.rpartition(".")[2].replace("_", "-") for command in COMMANDS]


def imported(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter has imported after running the code."""
    after = "import sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    command = [sys.executable, "-c", f"try:\n    {code}\nexcept SystemExit:\n    pass\n{after}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], *([name, "--help"] for name in NAMES)], ids=" ".join)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['polytask', *{arguments}]; from polytask.cli.main import main; main()"
    assert not imported(code) & HEAVY


def test_a_part_used_alone_imports_only_what_it_needs() -> None:
    assert imported("from polytask.optim import OPTIMIZERS") & HEAVY == {"numpy", "torch"}


def test_the_package_imports_its_names_when_they_are_used() -> None:
    assert not imported("import polytask; dir(polytask)") & HEAVY
    assert "torch" in imported("from polytask import load")
