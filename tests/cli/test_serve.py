"""polytask serve: a real process, its signals, its options, and what is refused before it listens."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from polytask import Finished, UserError, train
from polytask.cli.serve import read_key
from polytask.serving import server as module

Cli = Any  # of conftest.py


@contextmanager
def process(*arguments: object, **environment: str) -> Iterator[tuple[Any, str]]:
    """`polytask serve` on a free port, and its address."""
    command = [sys.executable, "-P", "-m", "polytask", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    ) as started:
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            assert "http://127.0.0.1:" in line, started.stderr and started.stderr.read()
            yield started, re.findall(r"http://127\.0\.0\.1:\d+", line)[0]
        finally:
            started.kill()


def test_a_process_reloads_on_sighup_and_ends_on_sigterm(
    tiny_run: Finished, tmp_path: Path, tiny_settings: list[str]
) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
    new = train(recipe, tmp_path / "new", [*tiny_settings, "train.epochs=1", "train.steps_per_epoch=2"])
    current = tmp_path / "current"
    current.symlink_to(tiny_run.folder)
    with process(current, "--reload", POLYTASK_API_KEY="correct-horse") as (started, address):
        assert httpx2.get(f"{address}/info", timeout=60).status_code == 401
        key = {"authorization": "Bearer correct-horse"}
        with httpx2.Client(base_url=address, headers=key, timeout=60) as client:
            assert client.get("/info").json()["name"] == tiny_run.folder.name
            (tmp_path / "next").symlink_to(new.folder)
            (tmp_path / "next").replace(current)
            started.send_signal(signal.SIGHUP)
            while client.get("/info").json()["name"] != "new":
                assert client.post("/predict", json={"inputs": "fine"}).status_code == 200
            assert client.post("/predict", json={"inputs": "fine"}).status_code == 200
        started.send_signal(signal.SIGTERM)
        _, err = started.communicate()
    assert started.returncode == 0, err
    assert err == ""


def test_what_is_refused_before_anything_is_loaded(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYTASK_API_KEY", raising=False)
    refused = cli("serve", tmp_path, "--host", "0.0.0.0")
    assert refused.code == 1
    assert "0.0.0.0 can be reached from other machines; pass --api-key-file FILE" in refused.err
    assert "max_inputs: must be at least 1" in cli("serve", tmp_path, "--max-inputs", 0).err
    assert "No such option: --api-key" in cli("serve", tmp_path, "--api-key", "in-the-history").err
    assert "no API key found" in cli("serve", tmp_path, "--api-key-file", tmp_path / "nowhere").err
    missing = cli("serve", tmp_path / "nowhere", "--port", 0)
    assert missing.code == 1
    assert "nowhere" in missing.err


def test_limits_that_do_not_fit_the_model(cli: Cli, tiny_run: Finished) -> None:
    refused = cli("serve", tiny_run.folder, "--port", 0, "--max-batch-tokens", 63)
    assert refused.code == 1
    assert "max_batch_tokens is 63, but the longest input of this model has 128 tokens" in refused.err


def test_a_port_that_is_taken(cli: Cli, tiny_run: Finished) -> None:
    with module.bind("127.0.0.1", 0) as taken:
        refused = cli("serve", tiny_run.folder, "--port", taken.getsockname()[1])
    assert refused.code == 1
    assert "cannot listen to 127.0.0.1 port" in refused.err


def test_the_key_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_API_KEY", "from-the-environment")
    assert read_key(None) == "from-the-environment"
    file = tmp_path / "key"
    file.write_text("from-a-file\n")
    assert read_key(file) == "from-a-file"
    monkeypatch.delenv("POLYTASK_API_KEY")
    assert read_key(None) is None
    file.write_text(" \n")
    with pytest.raises(UserError, match="no API key found"):
        read_key(file)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"uvicorn is missing\): pip install 'polytask\[serve\]'"):
        module.import_server()


def test_the_core_imports_nothing_of_the_extra() -> None:
    code = "import sys, polytask; polytask.serve, polytask.ServingLimits, polytask.load; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"fastapi", "uvicorn", "prometheus_client", "starlette"} & set(done.stdout.split())
