"""The page about deployment: nginx in front of a real server, the unit file as systemd reads it, options that exist."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "deployment.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


def test_every_option_exists() -> None:
    unit = re.search(r"^ExecStart=\S+polytask (.*)$", block("ini"), re.MULTILINE)
    container = re.search(r"^CMD (\[.*\])$", block("dockerfile"), re.MULTILINE)
    assert unit
    assert container
    assert shlex.split(unit[1])[0] == json.loads(container[1])[1] == "serve"
    command = [sys.executable, "-P", "-m", "polytask", "serve", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"--(?:max|host|port|reload|api|allow|deadline)[a-z-]*", PAGE))
    assert len(options) > 10
    assert {option for option in options if option not in shown} == set()


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed, so the unit file is not checked")
    unit = tmp_path / "polytask.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", block("ini"), flags=re.MULTILINE))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert str(unit.name) not in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.fixture
def proxy(address: str, tmp_path: Path) -> Iterator[str]:
    """The address of nginx with the page's configuration."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed, so its configuration is not tried")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = block("nginx").replace("server 127.0.0.1:8000", f"server {address.removeprefix('http://')}")
    own = own.replace("listen 8080", f"listen 127.0.0.1:{port}")
    paths = "".join(
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = tmp_path / "nginx.conf"
    file.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log stderr;\nevents {{}}\nhttp {{ access_log off; {paths}\n{own}\n}}\n"
    )
    with subprocess.Popen(["nginx", "-c", str(file), "-p", str(tmp_path)], stderr=subprocess.PIPE) as nginx:
        try:
            while nginx.poll() is None:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            assert nginx.poll() is None, nginx.stderr.read() if nginx.stderr else ""
            yield f"http://127.0.0.1:{port}"
        finally:
            nginx.terminate()


def test_nginx(proxy: str, address: str) -> None:
    body = {"inputs": ["Not bad at all.", "Never again."], "tasks": "opinion"}
    assert httpx2.post(f"{proxy}/predict", json=body).json() == httpx2.post(f"{address}/predict", json=body).json()
    assert httpx2.get(f"{proxy}/ready").status_code == 200
    assert httpx2.get(f"{proxy}/metrics").status_code == 403
    assert httpx2.post(f"{proxy}/predict", content=b"x" * 9_000_000).status_code == 413
