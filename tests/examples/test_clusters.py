"""The files for clusters, as far as they can be checked without one: syntax, fields and options that exist."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from torch.distributed.run import get_args_parser

from polytask.cli.main import make_app

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "clusters"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
KUBERNETES = sorted(FOLDER.glob("*.yaml"))
PAGE = ROOT / "docs" / "clusters.md"


def names(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("path", SCRIPTS, ids=names)
def test_bash_reads_the_scripts(path: Path) -> None:
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set -euo pipefail" in path.read_text(encoding="utf-8")


# --- commands ---------------------------------------------------------------------------------------------------------
def calls(program: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    """The words after a program's name and the options that follow, in scripts, comments, entry points and pages."""
    text = re.sub(r"\\\n\s*(?:#\s*)?", " ", path.read_text(encoding="utf-8"))
    text = re.sub(r"(entrypoint: >-)\n\s+(.*)\n\s+(--)", r"\1 \2 \3", text)  # a folded value of YAML
    for line in text.splitlines():
        for match in re.finditer(rf"(?:^|[\s`]){program} ([a-z][a-z-]*)([^`]*)", line):
            yield match[1], re.findall(r"(?<=\s)--[a-z][a-z-]*", match[2].partition(" -- ")[0])


@pytest.mark.parametrize("path", [*SCRIPTS, *KUBERNETES, PAGE], ids=names)
def test_every_option_of_polytask_exists(path: Path) -> None:
    commands: Any = typer.main.get_command(make_app())
    found = list(calls("polytask", path))
    assert found
    known = {name: {o for p in command.params for o in p.opts} for name, command in commands.commands.items()}
    unknown = {(name, option) for name, options in found for option in options if option not in known[name]}
    assert not unknown


def test_predict_passes_further_options_on(tmp_path: Path) -> None:
    (tmp_path / "polytask").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "polytask").chmod(0o755)
    given = ["bash", str(FOLDER / "two-machines.sh"), "predict", "runs/a", "in/*.csv", "out", "--task", "two words"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HEAD": "10.0.0.1"}
    done = subprocess.run(given, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:6] == ["predict", "runs/a", "--input", "in/*.csv", "--output", "out"]
    assert words[6:] == ["--engine", "ray", "--address", "10.0.0.1:6379", "--task", "two words"]


def test_slurm_passes_further_options_on(tmp_path: Path) -> None:
    """A run that the time limit has stopped needs --resume."""
    for name, program in (("scontrol", "echo node1"), ("srun", 'printf "%s\\n" "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    activate = tmp_path / "polytask" / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environment |= {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "8",
    }
    given = ["bash", str(FOLDER / "slurm-train.sh"), "recipe.yaml", "--resume"]
    done = subprocess.run(given, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-5:] == ["-m", "polytask", "train", "recipe.yaml", "--resume"]


def test_the_look_for_options_finds_them() -> None:
    assert dict(calls("polytask", FOLDER / "slurm-ray.sh"))["compare"] == [
        *("--engine", "--address", "--cpus-per-cell", "--gpus-per-cell")
    ]
    options = dict(calls("polytask", FOLDER / "kuberay-job.yaml"))["compare"]
    assert {"--study", "--gpus-per-cell"} <= {*options}
    started = [options for _, options in calls("ray", FOLDER / "slurm-ray.sh")]
    assert ["--address", "--min-nodes", "--num-cpus", "--num-gpus"] in started
    by_hand = [name for name, options in calls("ray", FOLDER / "two-machines.sh") if options]
    assert by_hand == ["get-auth-token", "start", "start"]


@pytest.mark.parametrize("path", [*SCRIPTS, PAGE], ids=names)
def test_every_option_of_ray_and_torchrun_exists(path: Path) -> None:
    scripts = pytest.importorskip("ray.scripts.scripts", reason="pip install -e '.[dev]' brings Ray")
    start = {option for parameter in scripts.cli.commands["start"].params for option in parameter.opts}
    symmetric = start | {"--min-nodes"}
    for command, options in calls("ray", path):
        known = symmetric if command == "symmetric-run" else start
        if command in ("start", "symmetric-run"):
            assert {*options} <= known
    text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
    launched = re.findall(r"torchrun +(--.*?) -m polytask train", text)
    known = {*get_args_parser()._option_string_actions}
    for options in launched:
        assert {*re.findall(r"--[a-z][a-z-]*", options)} <= known
    assert launched or path.name == "slurm-ray.sh"


# --- Kubernetes -------------------------------------------------------------------------------------------------------
CLUSTER = {"authOptions", "rayVersion", "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling"}
HEAD = {"rayStartParams", "template", "serviceType"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
JOB = {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit", "rayClusterSpec"}
"""Some of the fields in the reference of KubeRay's API, ray.io/v1."""


def check_pod(template: Mapping[str, Any], version: str) -> None:
    (container,) = template["spec"]["containers"]
    assert {*container} <= {"name", "image", "ports", "resources", "volumeMounts", "env"}
    assert container["image"].endswith(f":{version}")
    assert {*container["resources"]} == {"requests", "limits"}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}


@pytest.mark.parametrize("path", KUBERNETES, ids=names)
def test_kubernetes_files_have_the_fields_of_kuberay(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["apiVersion"] == "ray.io/v1"
    assert {*content} == {"apiVersion", "kind", "metadata", "spec"}
    spec = content["spec"]
    if content["kind"] == "RayJob":
        assert {*spec} <= JOB
        assert spec["entrypoint"].startswith("polytask ")
        assert "\n" not in spec["entrypoint"]
        spec = spec["rayClusterSpec"]
    else:
        assert content["kind"] == "RayCluster"
    assert {*spec} <= CLUSTER
    assert spec["authOptions"] == {"mode": "token"}
    assert {*spec["headGroupSpec"]} <= HEAD
    assert all(isinstance(value, str) for value in spec["headGroupSpec"]["rayStartParams"].values())
    check_pod(spec["headGroupSpec"]["template"], spec["rayVersion"])
    for group in spec["workerGroupSpecs"]:
        assert {*group} == WORKERS
        assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        check_pod(group["template"], spec["rayVersion"])


def test_the_page_names_every_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in FOLDER.iterdir() if f"(../examples/clusters/{path.name})" not in text] == []
