"""The code that a run's result depends on. Imports nothing of polytask: every worker on a cluster compares it."""

import hashlib
from functools import cache
from pathlib import Path

NOT_IN_A_RESULT = frozenset({"cli", "contracts", "evaluation.comparison", "export", "reports", "studies", "tuning"})
"""Packages that no run's weights, scores, predictions or costs depend on."""


@cache
def code_fingerprint() -> str:
    """Returns the SHA-256 of the source that a cell's result depends on.

    Included are all packages that take part in `polytask train`, from reading the data to writing the predictions, and
    any package that is added later: an unnecessary run is better than a stale result. Left out are the packages of
    `NOT_IN_A_RESULT`, which compare, show or convert what a run has written, and the modules at the root that only
    start the program (`__init__`, `__main__`, `version`). So a change in a command or a page trains nothing again.
    """
    digest = hashlib.sha256()
    for path in result_files(Path(__file__).parent.parent):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def result_files(source: Path) -> list[Path]:
    """Lists the files below `source` (the folder of the package polytask) that a cell's result depends on."""
    left_out = [source.joinpath(*package.split(".")) for package in NOT_IN_A_RESULT]
    left_out += [source / f"{module}.py" for module in ("__init__", "__main__", "version")]
    files = sorted(path for path in source.rglob("[!.]*") if path.is_file() and path.suffix != ".pyc")
    return [path for path in files if not any(path.is_relative_to(other) for other in left_out)]
