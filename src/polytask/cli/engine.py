"""The options of compare and tune that choose where the runs are trained."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

import polytask

if TYPE_CHECKING:
    from polytask import LocalEngine, RayEngine


class EngineName(StrEnum):
    """What runs the cells."""

    local = "local"
    ray = "ray"


EngineOption = Annotated[
    EngineName,
    typer.Option("--engine", help="local: worker processes of this machine. ray: the nodes of a Ray cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="ADDRESS",
        help="With --engine ray: the cluster's address, such as auto or HOST:6379. Default: RAY_ADDRESS, else a Ray "
        "that is started on this machine.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of parallel runs, each in a worker process; workers can share a GPU. Default: 1; with --engine "
        "ray, as many as the cluster has room for.",
        show_default=False,
    ),
]
CpusPerCell = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", help="With --engine ray: the CPUs, and CPU threads, of each run. Default: 1."),
]
GpusPerCell = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        help="With --engine ray: the GPUs of each run; with 0.5, two runs share one. Default: 1 if the cluster has "
        "GPUs, else 0.",
    ),
]


def make_engine(
    command: str,
    name: EngineName,
    workers: int | None,
    address: str | None,
    cpus_per_cell: float | None,
    gpus_per_cell: float | None,
) -> "LocalEngine | RayEngine":
    """Returns what runs the cells; connects to the cluster, or starts Ray here."""
    check_options(name, workers, address, cpus_per_cell, gpus_per_cell)
    if name is EngineName.ray:
        cpus = 1.0 if cpus_per_cell is None else cpus_per_cell
        return polytask.RayEngine(address, workers, cpus, gpus_per_cell, f"polytask {command} --engine ray")
    return polytask.LocalEngine(1 if workers is None else workers)


def check_options(
    name: EngineName,
    workers: int | None,
    address: str | None,
    cpus_per_cell: float | None,
    gpus_per_cell: float | None,
) -> None:
    """Refuses options that do not fit the engine, and impossible numbers; starts nothing."""
    if name is EngineName.ray:
        polytask.RayEngine.check_numbers(workers, 1.0 if cpus_per_cell is None else cpus_per_cell, gpus_per_cell)
        return
    refuse({"--address": address, "--cpus-per-cell": cpus_per_cell, "--gpus-per-cell": gpus_per_cell}, "--engine ray")
    polytask.LocalEngine(1 if workers is None else workers)


def refuse(options: Mapping[str, object], required: str) -> None:
    """Raises for the first option that was passed although it requires something else."""
    for option, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"{option} requires {required}")
