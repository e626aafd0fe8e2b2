"""Fixtures: files that a test writes, and a tokenizer of letters and digits."""

import csv
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from polytask.settings import TaskSpec
from polytask.tasks.reading import open_source
from polytask.text.tokenizer import TextTokenizer

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]
Table = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name, content): the file's full path."""

    def write_file(name: str, content: str | bytes) -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write_file


@pytest.fixture(scope="session")
def read() -> Read:
    """read(source, **options): all its rows, with all their columns."""

    def read_source(source: str, **options: object) -> list[object]:
        opened = open_source(source, **options)  # type: ignore[arg-type]
        return list(opened.rows(opened.columns))

    return read_source


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    letters = string.ascii_lowercase + string.digits
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    return TextTokenizer.load(folder)


@pytest.fixture
def opinions(write: Write) -> TaskSpec:
    """Two classes in three training rows and two dev rows."""
    train = write("o-train.csv", "text,opinion\nab,10\nc d,9\nab,10.0\n")
    dev = write("o-dev.csv", "text,opinion\nx,9\ny,10\n")
    return TaskSpec("opinions", "classes", ("text",), "opinion", train, dev)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """table(name, header, rows, delimiter=","): the full path of a file as the csv module writes it."""

    def write_table(name: str, header: list[str], rows: list[list[object]], delimiter: str = ",") -> str:
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=delimiter).writerows([header, *rows])
        return str(tmp_path / name)

    return write_table
