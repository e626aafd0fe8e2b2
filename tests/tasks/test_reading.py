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


@pytest.mark.parametrize("name", ["train.txt", "eng.testa"])
def test_files_of_conll_2003_are_recognized_by_their_first_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes("\ufeff-DOCSTART- -X- -X- O\r\n\r\nEU NNP I-NP I-ORG\r\n".encode())
    assert list(open_source(str(tmp_path / name)).rows(["0", "3"])) == [(3, [["EU"], ["I-ORG"]])]
    assert open_source(str(tmp_path / name), format="tsv").columns != ("0", "1", "2", "3")
    (tmp_path / name).write_text("word\ttag\n-DOCSTART-\tO\n")
    if name == "train.txt":
        assert open_source(str(tmp_path / name)).columns == ("word", "tag")
    else:
        with pytest.raises(UserError, match="unknown extension"):
            open_source(str(tmp_path / name))
