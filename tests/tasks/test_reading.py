"""Sources are opened by the name that a user writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from polytask.tasks.reading import open_source
from polytask.types import UserError

Read = Callable[..., list[object]]


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.csv: no such file"):
        open_source(str(tmp_path / "nothing.csv"))
    with pytest.raises(UserError, match="expected a file, found a folder"):
        open_source(str(tmp_path))


def test_samples(read: Read) -> None:
    assert open_source("sample:opinions-train").columns == ("text", "opinion")
    assert all(isinstance(row, tuple) for row in read("sample:opinions-train"))
    with pytest.raises(UserError, match=r"sample:nothing: no such sample; expected one of .*opinions-train"):
        open_source("sample:nothing")
    with pytest.raises(UserError, match="no such sample"):
        open_source("sample:../sample/opinions-train")
