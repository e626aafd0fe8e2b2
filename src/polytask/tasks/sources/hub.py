"""Data sets of the Hugging Face hub as a source of rows, with the optional `datasets` library."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from polytask.tasks.sources.source import BATCH, BrokenRow, Row, Unit, numbered
from polytask.types import UserError


@dataclass(frozen=True)
class HubSource:
    """A split of a data set of the Hugging Face hub, or of a local folder, read with the `datasets` library.

    Class labels are the stored numbers, but in lists (tags of words, several classes) they are names. A revision of the
    data set is a commit, a tag or a branch: hub:DATASET@REVISION#SPLIT.
    """

    name: str
    unit: Unit = "row"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.columns).encode())
        for table in self._data.with_format("arrow").iter(BATCH):
            for batch in table.to_batches():
                digest.update(batch.serialize())
        return digest.hexdigest()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._data.column_names)

    def rows(self, columns: Sequence[str], needed: Sequence[str] | None = None) -> Iterator[Row | BrokenRow]:
        batches = self._data.select_columns(list(columns)).iter(BATCH)
        names = [names_in_lists(self._data, column) for column in columns]
        parts = ([named(batch[one], known) for one, known in zip(columns, names, strict=True)] for batch in batches)
        yield from numbered(parts)

    @cached_property
    def _data(self) -> Any:
        try:
            import datasets  # noqa: PLC0415  an optional extra
        except ImportError as error:
            raise UserError(f"{self.name}: needs the datasets library: pip install 'polytask[hub]'") from error
        path, _, split = self.name.removeprefix("hub:").rpartition("#")
        if not path or not split:
            raise UserError(f"{self.name}: expected hub:DATASET#SPLIT or hub:DATASET/CONFIG#SPLIT, for example #train")
        revision = None
        if not os.path.exists(os.path.expanduser(path)):
            path, _, revision = path.partition("@")
        problems = []
        for dataset, config in hub_names(path):
            try:
                data = datasets.load_dataset(dataset, config, split=split, revision=revision or None)
            except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
                problems.append(f"{dataset}{f' ({config})' if config else ''}: {error}")
                continue
            if len(data) == 0:
                raise UserError(f"{self.name}: the split has no rows")
            return data
        raise UserError(
            f"{self.name}: cannot load the data set; " + "; ".join(problems or ["expected OWNER/NAME/CONFIG at most"])
        )


def names_in_lists(data: Any, column: str) -> Sequence[str]:
    """Returns the names of the class labels that a column of a data set has in lists; none if it has no such lists."""
    names: Sequence[str] = getattr(getattr(data.features[column], "feature", None), "names", None) or ()
    return names


def named(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Returns lists of class labels with their names; a number without a name stays a number."""
    if not names:
        return list(values)
    known = dict(enumerate(names))
    return [None if one is None else [known.get(number, number) for number in one] for one in values]


def hub_names(path: str) -> list[tuple[str, str | None]]:
    """Returns the data sets and configurations that a name can mean, the likeliest first.

    A name is a local folder, FOLDER/CONFIG, NAME, OWNER/NAME, NAME/CONFIG or OWNER/NAME/CONFIG.
    """
    local = Path(os.path.expanduser(path))
    if os.path.isdir(local):
        return [(str(local), None)]
    if os.path.isdir(local.parent) and "/" in path:
        return [(str(local.parent), local.name)]
    parts = path.split("/")
    if len(parts) == 1:
        return [(path, None)]
    if len(parts) == 2:
        return [(path, None), (parts[0], parts[1])]
    return [("/".join(parts[:2]), parts[2])] if len(parts) == 3 else []
