"""The settings of a bulk prediction, and which of them are impossible."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polytask.bulk.storage import Storage
from polytask.serving.predictor import PRECISIONS
from polytask.types import UserError, unknown

Engine = Literal["local", "ray"]
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class BulkSettings:
    """The options of `predict_files`, where they are explained."""

    engine: Engine = "local"
    tasks: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    probabilities: str = "top"
    precision: str = "float32"
    abstain_below: float | None = None
    rows_per_shard: int | None = None
    strict: bool = False
    force: bool = False
    workers: int | None = None
    gpus_per_worker: float | None = None
    address: str | None = None
    trust_plugins: bool = False


def check_settings(settings: BulkSettings, places: Sequence[Storage]) -> None:
    """Raises a UserError for impossible settings; `places` are the output and the inputs."""
    if settings.engine not in ENGINES:
        raise UserError(unknown("predict", settings.engine, ENGINES, "engine for bulk prediction"))
    if settings.precision not in PRECISIONS:
        raise UserError(unknown("predict", settings.precision, PRECISIONS, "precision"))
    for name, least in (("workers", 1), ("rows_per_shard", 1), ("gpus_per_worker", 0)):
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"predict: {name}: must be at least {least}, found {value}")
    if settings.engine == "local" and (settings.address is not None or settings.gpus_per_worker is not None):
        raise UserError("predict: address and gpus_per_worker are for the engine ray")
    hidden = [place.url for place in places if place.is_in_memory]
    if hidden and (settings.engine == "ray" or (settings.workers or 1) > 1):
        raise UserError(f"{hidden[0]}: only this process can see its memory; use the engine local with one worker")
