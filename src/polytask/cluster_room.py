"""How many cells or workers fit on the nodes of a cluster, and what to say if none does. Knows numbers only."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from polytask.types import UserError

Holder = Literal["cell", "worker"]
"""What holds CPUs and GPUs, as the command's options name it: a cell of a study, a worker of a bulk prediction."""
OPTIONS = {"cell": "--cpus-per-cell, --gpus-per-cell", "worker": "--gpus-per-worker"}


def check_numbers(workers: int | None, cpus: float, gpus: float | None, holder: Holder = "cell") -> None:
    """Raises a UserError for impossible numbers, which names the command's option."""
    if workers is not None and workers < 1:
        raise UserError(f"--workers: must be at least 1, found {workers}")
    if not 0 < cpus < math.inf:
        raise UserError(f"--cpus-per-{holder}: must be greater than 0, found {cpus:g}")
    if gpus is not None and not (0 <= gpus <= 1 or (gpus > 1 and float(gpus).is_integer())):
        raise UserError(f"--gpus-per-{holder}: must be in [0, 1] or a whole number, found {gpus:g}")


def default_gpus(nodes: Sequence[Mapping[str, float]]) -> int:
    """Returns the GPUs of each cell or worker if the user does not say: 1 if any node has a GPU, else 0."""
    return 1 if any(node.get("GPU") for node in nodes) else 0


def room(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    """Returns how many cells or workers fit on a node. A part of a GPU is a part of one, not of two."""
    by_cpu = math.floor(node.get("CPU", 0.0) / cpus)
    if gpus == 0:
        return by_cpu
    owned = node.get("GPU", 0.0)
    by_gpu = math.floor(owned / gpus) if gpus >= 1 else math.floor(owned) * math.floor(1 / gpus)
    return min(by_cpu, by_gpu)


def no_room(nodes: Sequence[Mapping[str, float]], cpus: float, gpus: float, holder: Holder = "cell") -> str:
    largest: Mapping[str, float] = max(nodes, key=lambda node: (node.get("GPU", 0.0), node.get("CPU", 0.0)), default={})
    found = words(largest.get("CPU", 0.0), largest.get("GPU", 0.0))
    return (
        f"{OPTIONS[holder]}: a {holder} needs {words(cpus, gpus)}, but no node of the cluster has them "
        f"(the largest one has {found}); start a node with them, or ask for less"
    )


def words(num_cpus: float, num_gpus: float) -> str:
    return f"{num_cpus:g} CPU{'' if num_cpus == 1 else 's'} and {num_gpus:g} GPU{'' if num_gpus == 1 else 's'}"
