import os
import subprocess
import sys
from pathlib import Path

import pytest

from polytask.ray_cluster import connect
from polytask.types import UserError

PROGRAM = """
import signal, warnings
warnings.simplefilter("error")
from polytask.ray_cluster import connect

def handler(*_):
    pass

signal.signal(signal.SIGTERM, handler)
with connect("a test", cpus=1) as ray:
    with connect("another test", "127.0.0.1:1"):  # the open connection is used
        pass
    assert ray.is_initialized()
    double = ray.remote(lambda number: 2 * number)
    print(ray.get(double.remote(21)), signal.getsignal(signal.SIGTERM) is handler)
print(ray.is_initialized())
"""


def test_a_local_ray_starts_and_stops_silently_and_leaves_the_signals_alone() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("42 True\nFalse\n", "")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_without_ray_is_an_error_that_names_it(address: str) -> None:
    message = f"a test: cannot connect to Ray at '{address}' .*token, set RAY_AUTH_MODE=token here too$"
    with pytest.raises(UserError, match=message), connect("a test", address):
        pass


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"a test needs the Ray library: pip install 'polytask\[ray\]'"
    with pytest.raises(UserError, match=message), connect("a test"):
        pass


WITHOUT_TOKEN = """
import socket
from polytask.ray_cluster import connect
from polytask.types import UserError

with socket.create_server(("127.0.0.1", 0)) as server:  # somebody answers there
    try:
        with connect("a test", f"127.0.0.1:{server.getsockname()[1]}"):
            print("connected")
    except UserError as error:
        print(error)
"""


def test_without_the_token_of_the_cluster_the_error_says_where_to_put_it(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT_TOKEN]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "a test: Ray at '127.0.0.1:" in done.stdout
    assert "asks for a token (" in done.stdout
    assert "all machines need the same one there, or in the file that RAY_AUTH_TOKEN_PATH names\n" in done.stdout
    assert "Traceback" not in done.stderr
