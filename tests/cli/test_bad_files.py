"""Files as they should not be: exit code 1, a message with file, row and field, and nothing written half-way.

And files that only look bad, which are read as they are meant.
"""

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polytask import Finished
from polytask.tasks.sources.lines import LONGEST_LINE

TINY = "encoder={layers: 1, hidden: 16, heads: 2, ffn: 16, positions: 128}"
ROWS = "".join(f"row number {i},{i % 2}\n" for i in range(20))
TABLE = f"text,label\n{ROWS}"
FIELDS = {"kind": "yes_no", "text": "text", "label": "label"}
Check = Callable[..., Any]


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def check(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """check(name, content, **fields): what `polytask check` says of a task trained on this file."""
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run(name: str, content: str | bytes, *arguments: str, **fields: Any) -> Any:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        before = {path.name for path in tmp_path.iterdir()}
        task = {**FIELDS, "train": name, "dev": name, **fields}
        (tmp_path / "recipe.yaml").write_text(json.dumps({"tasks": {"one": task}}))
        said = cli("check", "recipe.yaml", "--set", TINY, *arguments)
        assert "Traceback" not in said.err
        # The stores that were made are whole, and nothing stands beside them.
        assert {path.name for path in tmp_path.iterdir()} - before <= {"cache", "recipe.yaml"}
        stores = list((tmp_path / "cache").glob("tokens/*"))
        kept = [[name for name in tree(store) if not name.startswith("odd-texts-")] for store in stores]
        assert all(names == ["labels", "meta.json", "offsets", "rows", "tokens"] for names in kept)
        assert not [store for store in stores if store.name.startswith(".")]
        return said

    return run


BROKEN = "correct them, or set `broken_rows: skip`"
REFUSED: dict[str, tuple[str, str | bytes, list[str]]] = {
    "empty": ("x.csv", "", ["x.csv: the file is empty; expected a header line and rows"]),
    "blank lines": ("x.csv", "\n\n \n", ["x.csv: "]),
    "empty jsonl": ("x.jsonl", "", ["x.jsonl: the file is empty; expected one JSON object per line"]),
    "empty parquet": ("x.parquet", "", ["x.parquet: cannot read it as a parquet file"]),
    "header only": ("x.csv", "text,label\n", ["x.csv: no rows below the header line (text, label)"]),
    "neither UTF-8 nor Windows-1252": (
        "x.csv",
        f"{TABLE}очень хорошо,1\n".encode("cp1251"),
        [
            f"x.csv, line 22, byte {len(TABLE) + 1} of the file: 0xee is not valid utf-8",
            "set `encoding` to its encoding",
        ],
    ),
    "NUL": ("x.csv", f"{TABLE}a\0b,1\n", ["x.csv, line 22: expected a text file, found a NUL byte"]),
    "unclosed quote": (
        "x.csv",
        "text,label\n" + '"he said ""yes""",1\n' * 30 + f'"never closed,1\n{ROWS}',
        [BROKEN, "x.csv, line 32: a quote is opened here and never closed"],
    ),
    "ragged rows": (
        "x.csv",
        f"{TABLE}a,b,1\nalone\n",
        [BROKEN, "x.csv, line 22: 3 fields, expected 2 as in the header", "x.csv, line 23: 1 fields, expected 2"],
    ),
    "duplicate header": ("x.csv", f"text,label,text\n{ROWS}", ["x.csv: column names must be unique, found 'text'"]),
    "no such column": ("x.csv", f"words,label\n{ROWS}", ["x.csv: no column 'text'; its columns are: words, label"]),
    "jsonl with bad lines": (
        "x.jsonl",
        '{"text": "a", "label": 1}\n{"text": oops}\n{"text": "b"}\n[1]\n{"text": ["c"], "label": 1}\n',
        [
            "x.jsonl, line 2: '{\"text\": oops}': not valid JSON",
            "x.jsonl, line 3, column 'label': the line has no such key",
            "x.jsonl, line 4: '[1]': not a JSON object",
            "x.jsonl, line 5, column 'text': \"['c']\": a list or table; expected text",
        ],
    ),
    "no such label": (
        "x.csv",
        f"{TABLE}so,perhaps\n",
        ["x.csv, line 22, column 'label': 'perhaps': neither yes nor no"],
    ),
    "words": (
        "x.conll",
        "text label\nso O\n" * 9,
        ["x.conll: CoNLL files have words with tags, for kind tokens; task"],
    ),
    "no text": ("x.csv", f"{TABLE} ,1\n", ["x.csv, line 22, column 'text': ' ': the text is empty"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(check: Check, case: str) -> None:
    name, content, messages = REFUSED[case]
    said = check(name, content)
    assert said.code == 1
    for message in messages:
        assert message in said.err
    assert "The recipe is valid" not in said.out


def test_scores_that_are_not_numbers(check: Check) -> None:
    fields = {"kind": "score", "range": [0, 5]}
    said = check("x.csv", "text,label\na,1\nb,nan\nc,inf\nd,-Infinity\ne,1e999\nf,5.1\ng,\n", **fields)
    assert said.code == 1
    for line, value in ((3, "nan"), (4, "inf"), (5, "-Infinity"), (6, "1e999")):
        assert f"x.csv, line {line}, column 'label': '{value}': not a number; expected a number from 0 to 5" in said.err
    assert "x.csv, line 7, column 'label': '5.1': outside the range" in said.err
    assert "x.csv, line 8, column 'label': the label is empty" in said.err
    lines = "".join(f'{{"text": "a", "label": {value}}}\n' for value in (1, "NaN", "Infinity", "-Infinity"))
    said = check("x.jsonl", lines, **fields)
    assert said.code == 1
    assert all(f"x.jsonl, line {line}, column 'label': " in said.err for line in (2, 3, 4))


@pytest.mark.parametrize(
    ("content", "fields", "rows"),
    [
        pytest.param(b"\xef\xbb\xbf" + TABLE.encode(), {}, 20, id="byte order mark"),
        pytest.param(TABLE.encode("utf-16"), {"encoding": "utf-16"}, 20, id="utf-16, given"),
        pytest.param(TABLE.encode("utf-16"), {}, 20, id="utf-16"),
        pytest.param(TABLE.encode("utf-16-be"), {}, 20, id="utf-16 without a mark"),
        pytest.param(TABLE.encode("utf-32"), {}, 20, id="utf-32"),
        pytest.param(f"{TABLE}café,1\n".encode("cp1252"), {}, 21, id="Windows-1252"),
        pytest.param(TABLE.replace(",", ";"), {}, 20, id="semicolons"),
        pytest.param("sep=;\n" + TABLE.replace(",", ";"), {}, 20, id="semicolons, declared"),
        pytest.param(f"text,label\ncafé,1\n{ROWS}".encode("latin-1"), {"encoding": "latin-1"}, 21, id="latin-1, given"),
        pytest.param(f'text,label\n"one\rtwo\r\nthree",1\n{ROWS}', {}, 21, id="carriage returns in quotes"),
        pytest.param(TABLE.replace("\n", "\r"), {}, 20, id="carriage returns as line ends"),
        pytest.param(f"text,label\n[CLS] a [SEP] b [MASK] [PAD],1\n{ROWS}", {}, 21, id="special tokens in a text"),
        pytest.param(
            f"text,label\na\u200bb\u2060 e\u0301\u0308\u0323,1\n{ROWS}", {}, 21, id="zero-width and combining"
        ),
        pytest.param(
            f"text,label\n\U0001f469\u200d\U0001f4bb \u202eabc,1\n{ROWS}", {}, 21, id="emoji and right to left"
        ),
        pytest.param(f"text,label\n{ROWS}x,y,1\n,1\n", {"broken_rows": "skip"}, 20, id="broken rows, skipped"),
    ],
)
def test_unusual_files_are_read_as_intended(
    check: Check, content: str | bytes, fields: dict[str, Any], rows: int
) -> None:
    said = check("x.csv", content, **fields)
    assert said.code == 0, said.err
    assert re.search(rf" train +{rows} ", said.out)


def test_half_a_surrogate_pair_becomes_the_replacement_character(check: Check) -> None:
    lines = [
        '{"text": "half \\ud83d of one", "label": "\\udc00x"}',
        '{"text": "whole \\ud83d\\ude00", "label": "b"}',
    ] * 5
    said = check("x.jsonl", "\n".join(lines), kind="classes")
    assert said.code == 0, said.err
    assert "b 5, \ufffdx 5" in said.out
    assert "5 of 10 rows (50 %) have the replacement character U+FFFD" in said.out


@pytest.mark.parametrize("letter", ["x", "語", "\u0301", "!", "\u200b", "İ"])
def test_a_text_of_a_million_characters_without_a_space(check: Check, letter: str) -> None:
    said = check("x.csv", f"text,label\na{letter * 1_000_000},1\n{ROWS}")
    assert said.code == 0, said.err
    assert re.search(r" train +21 ", said.out)


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_a_line_that_does_not_end(check: Check, name: str) -> None:
    start = "text,label\n" if name == "x.csv" else '{"text": "a", "label": 1}\n'
    said = check(name, start + "a" * (LONGEST_LINE + 10))
    assert said.code == 1
    assert f"{name}, line 2: the line has 16,777,216 characters or more; expected one row per line" in said.err


def test_a_gigabyte_in_one_line_takes_little_memory(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Path("x.csv").open("wb") as file:  # the hole takes no room on the disk, and reads as NUL bytes
        file.write(b"text,label\na,1\n")
        file.seek(2**30)
        file.write(b"z,1\n")
    tracemalloc.start()
    said = cli("init", "recipe.yaml", "--task", "one=x.csv")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said.code == 1
    assert "x.csv, line 3: expected a text file, found a NUL byte" in said.err
    assert peak < 10 * LONGEST_LINE
    assert tree(tmp_path) == ["x.csv"]


def test_a_folder_or_a_device_in_place_of_a_file(check: Check, tmp_path: Path) -> None:
    said = check("x.csv", TABLE, dev=str(tmp_path))
    assert said.code == 1
    assert f"{tmp_path}: expected a file, found a folder" in said.err
    said = check("x.csv", TABLE, dev="/dev/null", format="csv")
    assert said.code == 1
    assert "/dev/null: no such file" in said.err


NAMES = ["[/b]", "[red]a", "<script>alert(1)</script>", ":cat:", "$x_{$", "a\nb"]


def test_class_names_with_markup(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    rows = [{"body": f"some words of row {i}", "team": NAMES[i % len(NAMES)]} for i in range(60)]
    Path("x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = cli("init", "recipe.yaml", "--task", "team=x.jsonl")
    assert made.code == 0, made.err
    settings = ["--set", TINY, "--set", "train.epochs=1", "--set", "train.steps_per_epoch=2"]
    trained = cli("train", "recipe.yaml", *settings)
    assert trained.code == 0, trained.err
    asked = cli("predict", "runs/recipe", "--task", "team", "--text", "some words")
    assert asked.code == 0, asked.err
    assert sum(name in asked.out for name in NAMES) == 5  # the five likeliest are shown, as they are
    page = Path("runs/recipe/report.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    two = [row for row in rows if row["team"] in NAMES[:2]]
    Path("two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in two))
    task = {"kind": "classes", "text": "body", "label": "team", "train": "two.jsonl", "dev": "two.jsonl"}
    Path("two.yaml").write_text(json.dumps({"tasks": {"team": task}}))
    said = cli("check", "two.yaml", "--set", TINY)
    assert "[/b] 10, [red]a 10" in said.out


def test_init_leaves_nothing_when_a_later_file_is_bad(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text(TABLE)
    Path("few.csv").write_text("text,label\nfirst words,1\nother words,0\n")
    Path("empty.csv").write_text("")
    for bad, message in [("empty.csv", "empty.csv: the file is empty"), ("few.csv", "few.csv: 2 rows are too few")]:
        said = cli("init", "--task", "one=good.csv", "--task", f"two={bad}")
        assert said.code == 1
        assert message in said.err
        assert tree(tmp_path) == ["empty.csv", "few.csv", "good.csv"]


def test_train_leaves_no_run_when_data_is_bad(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTASK_CACHE", str(tmp_path / "cache"))
    Path("x.csv").write_text(f"text,label\n{ROWS},1\n")
    Path("recipe.yaml").write_text(json.dumps({"tasks": {"one": {**FIELDS, "train": "x.csv", "dev": "x.csv"}}}))
    said = cli("train", "recipe.yaml", "--set", TINY)
    assert said.code == 1
    assert "x.csv, line 22, column 'text': the text is empty" in said.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", b"", "in.csv: the file is empty"),
        ("in.csv", b"text\n", "in.csv: no rows below the header line"),
        ("in.csv", b"text\nfine\nbad \xff\n", "in.csv, line 3, byte 15 of the file: 0xff is not valid utf-8"),
        ("in.csv", b"text,n\nfine,1\na,b,c\n", "in.csv, line 3: 3 fields, expected 2"),
        ("in.jsonl", b'{"text": "fine"}\n{"text": 1', "in.jsonl, line 2: "),
        ("in.jsonl", b'{"txt": "a"}\n{"txt": "b"}\n', "in.jsonl: no column 'text'; its columns are: txt"),
        ("in.jsonl", b'{"text": "fine"}\n{"text": ["b"]}\n', "in.jsonl, line 2, column 'text': \"['b']\": a list"),
        ("in.parquet", b"PAR1", "in.parquet: cannot read it as a parquet file"),
    ],
)
def test_predict_leaves_no_output(
    cli: Any, tiny_run: Finished, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    arguments = ["--input", tmp_path / name, "--output", tmp_path / "out.csv"]
    said = cli("predict", tiny_run.folder, "--task", "opinion", *arguments)
    assert said.code == 1
    assert message in said.err
    assert tree(tmp_path) == [name]
