"""What the tests of the pages about the server share."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from polytask import Finished


@pytest.fixture(scope="package")
def address(tiny_run: Finished) -> Iterator[str]:
    """The address of `polytask serve`, on a free port."""
    words = [sys.executable, "-P", "-m", "polytask", "serve", str(tiny_run.folder), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "POLYTASK_API_KEY"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            yield re.findall(r"http://127\.0\.0\.1:\d+", server.stdout.readline())[0]
        finally:
            server.terminate()
