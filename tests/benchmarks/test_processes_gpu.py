"""The benchmark of steps in a group of one process, on a CPU: every variant takes the same steps, and is recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent.parent.parent / "benchmarks" / "processes_gpu.py"
TINY = "{layers: 1, hidden: 24, heads: 4, ffn: 48, positions: 64}"


def test_every_variant_takes_the_same_steps(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--encoder", TINY, "--steps", "2", "--rounds", "1", "--batch", "2"]
    command = [sys.executable, str(PROGRAM), str(tmp_path / "out.jsonl"), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    measured = [line for line in found if line["what"] == "round"]
    variants = [line["variant"] for line in found if line["what"] == "summary"]
    assert found[0]["what"] == "environment"
    assert sorted(line["variant"] for line in measured) == sorted(variants)
    assert "one process" in variants
    assert "group" in variants
    assert len({(line["steps"], line["tokens"]) for line in measured}) == 1
