"""The output folder of a bulk prediction: which command it belongs to, what it holds already, and what is removed."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from polytask.bulk.plan import AGAIN, NAME, READERS, Plan, plan_id
from polytask.bulk.shards import FORMATS, Shard, num_rows
from polytask.bulk.storage import Storage
from polytask.disk.lock import FolderLock
from polytask.disk.writable import make_folder
from polytask.types import UserError

SUCCESS, FAILED = "_SUCCESS.json", "_FAILED.json"
PART = "part-"
BUSY = "is writing to this folder; wait for it, stop it, or choose another output folder"


class OtherPlan(UserError):
    """Another command has written its plan into the folder."""

    def __init__(self, folder: Storage) -> None:
        super().__init__(f"{folder.url}: another command has written its plan here meanwhile; {AGAIN}")


def lock_folder(folder: Storage) -> FolderLock | None:
    """Creates and locks a local folder, so that two commands do not write to it; other file systems have no locks."""
    if not folder.is_local:
        return None
    path = Path(folder.path)
    make_folder(path)
    lock = FolderLock(path, BUSY)
    lock.acquire()
    return lock


def check_plan(folder: Storage, expected: str | None) -> None:
    """Raises unless the folder has the plan with this id; None: no plan, or one that this version cannot read."""
    if plan_id(folder) != expected:
        raise OtherPlan(folder)


def earlier_plan(folder: Storage, force: bool) -> Plan | None:
    """The plan to continue: none if its shards are to be removed, or if none of them is written.

    Without a plan, there must be no shards, and no other data: who reads the folder would read it as predictions.
    """
    names = folder.names()
    if NAME in names:
        plan = None if force else Plan.read(folder)
        return plan if plan and any(shard.output in names for shard in plan.shards) else None
    if others := sorted(name for name in names if name.startswith(PART) or _is_data(name)):
        raise UserError(
            f"{folder.url}: has {len(others):,} file(s) such as {others[0]} but no {NAME}, so they are not ours; "
            "choose another output folder, or move them away"
        )
    return None


def _is_data(name: str) -> bool:
    """Whether a file of this name has rows, for who reads the folder; .txt files are more likely to be notes."""
    return PurePosixPath(name).suffix.lower() in FORMATS.keys() - {".txt"} and name[:1] not in ("_", ".")


def remove_earlier(folder: Storage) -> None:
    """Removes the shards of the plan in this folder, and the plan last: what is left can be removed again."""
    names = folder.names()
    if NAME not in names:
        return
    shards = {name for name in names if name.startswith(PART)}
    with suppress(UserError):  # a plan that cannot be read: all parts are of the version that wrote it
        shards = {shard.output for shard in Plan.read(folder).shards}
    for name in (SUCCESS, FAILED, *sorted(shards & names), NAME):
        (folder / name).remove()


def is_written(shard: Shard, folder: Storage) -> bool:
    """Whether a shard is there with all of its rows."""
    target = folder / shard.output
    return target.exists() and num_rows(target) == shard.rows


def missing_shards(plan: Plan, folder: Storage) -> Sequence[Shard]:
    """The shards of a plan that are not there, or not whole."""
    there = folder.names()
    with ThreadPoolExecutor(READERS) as readers:
        whole = readers.map(lambda shard: shard.output in there and is_written(shard, folder), plan.shards)
        return [shard for shard, written in zip(plan.shards, whole, strict=True) if not written]
