"""The page about the server: its commands and programs are run against a real server, and its tables are complete."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx2
import pytest

from polytask import ServingLimits
from polytask.serving.failures import STATUS

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CURL = [(code, BLOCKS[i + 1]) for i, (language, code) in enumerate(BLOCKS) if code.startswith("curl ")]


def blocks(language: str) -> list[str]:
    return [code for name, code in BLOCKS if name == language]


def rows(heading: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall("`([^`]+)`", cell)]


def run(program: str, *words: str) -> str:
    """What a command prints, if the program that it needs is installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed, so the examples that need it are not run")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def form(value: Any) -> Any:
    """The names and types of an answer: the same whatever the model predicts."""
    if isinstance(value, dict):
        own = {name: form(one) for name, one in value.items() if name != "probabilities"}
        return own | ({"probabilities": len(value["probabilities"])} if "probabilities" in value else {})
    if isinstance(value, list):
        return [form(one) for one in value]
    return value if isinstance(value, str) and "_" in value else type(value).__name__


def test_the_server_is_started_as_on_the_page() -> None:
    assert re.findall(r"^polytask serve runs/quickstart$", PAGE, re.MULTILINE)
    assert f"prints its address, `{ADDRESS}`" in PAGE


@pytest.mark.parametrize(("command", "shown"), CURL, ids=[f"curl {i}" for i in range(len(CURL))])
def test_curl(address: str, command: str, shown: tuple[str, str]) -> None:
    command = command.replace(ADDRESS, address).replace("curl ", "curl -sS ", 1)
    answer = json.loads(run("curl", "bash", "-c", command))
    assert shown[0] == "json"
    assert form(answer) == form(json.loads(shown[1]))


@pytest.mark.parametrize("code", blocks("python"), ids=["urllib", "openai"])
def test_python(address: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code.replace(ADDRESS, address), "serving.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == (1 if "openai" in code else 2)


def test_javascript(address: str, tmp_path: Path) -> None:
    (code,) = blocks("javascript")
    (tmp_path / "ask.mjs").write_text(code.replace(ADDRESS, address))
    labels = httpx2.get(f"{address}/tasks").json()["tasks"][0]["classes"]
    assert run("node", "node", str(tmp_path / "ask.mjs")).strip() in labels


def test_every_endpoint_is_listed(address: str) -> None:
    paths = httpx2.get(f"{address}/openapi.json").json()["paths"]
    listed = {name for row in rows("Endpoints") for name in names(row[:1])}
    assert listed == {f"{method.upper()} {path}" for path, own in paths.items() for method in own}
    for row in rows("Endpoints"):
        method, path = names(row[:1])[0].split()
        if method == "POST" and not path.startswith("/v1"):
            body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].split("/")[-1]
            schema = httpx2.get(f"{address}/openapi.json").json()["components"]["schemas"][body]
            assert set(names(row[1:2])) == set(schema["properties"])


def test_every_metric_is_listed(address: str) -> None:
    found = set(re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)", httpx2.get(f"{address}/metrics").text, re.M))
    listed = {name for row in rows("Metrics") for name in names(row[:1])}
    assert listed == {name for name in found if not name.endswith("_created")}


def test_every_limit_is_listed_with_its_default() -> None:
    listed = {names(row[:1])[0]: row[1] for row in rows("Limits")}
    assert set(listed) == {field.name for field in fields(ServingLimits)}
    for field in fields(ServingLimits):
        assert field.default is None or float(listed[field.name]) == field.default


def test_every_error_is_listed_with_its_status() -> None:
    listed = {name: row[0] for row in rows("Errors") for name in names(row[1:2])}
    assert set(listed) == set(STATUS)
    assert all(str(STATUS[name]) in listed[name].split(", ") for name in listed)


def test_every_option_on_the_page_exists() -> None:
    reference = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    listed = re.findall(r"--[a-z][a-z-]+", reference.partition("\n## serve\n")[2].partition("\n## ")[0])
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= set(listed)
