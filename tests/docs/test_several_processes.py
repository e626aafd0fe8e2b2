"""The commands of several processes that README and the guide show are run, with a tiny encoder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = {"torchrun": [sys.executable, "-m", "torch.distributed.run"], "polytask": [sys.executable, "-m", "polytask"]}


def commands(page: str) -> list[list[str]]:
    """The commands that start several processes."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [words for words in lines if words[0] == "torchrun" or "--processes" in words]


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/several-processes.md", marks=pytest.mark.slow)])
def test_commands_work(page: str, tmp_path: Path, tiny_settings: list[str]) -> None:
    (tmp_path / "recipe.yaml").write_text((ROOT / "recipes" / "quickstart.yaml").read_text(encoding="utf-8"))
    settings = [f"--set={setting}" for setting in (*tiny_settings, "train.epochs=1", "train.device=cpu")]
    listed = commands(page)
    assert {words[0] for words in listed} == {"torchrun", "polytask"}
    for words in listed:
        command = [*PROGRAMS[words[0]], *words[1:], *settings]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        assert "report: runs/" in done.stdout
