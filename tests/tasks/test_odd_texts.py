"""Findings about the characters in the first rows of a file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from polytask.settings import TaskSpec
from polytask.tasks import odd_texts as module
from polytask.tasks.finding import Finding
from polytask.tasks.odd_texts import odd_texts
from polytask.tasks.task import Split, read_tasks
from polytask.text.tokenizer import TextTokenizer

Table = Callable[..., str]
Look = Callable[..., dict[str, Finding]]
PLAIN = [f"a plain text of number {i}" for i in range(30)]


@pytest.fixture
def split(tmp_path: Path, tokenizer: TextTokenizer, table: Table) -> Callable[..., Split]:
    def read(texts: list[str], second: list[str] | None = None) -> Split:
        columns = [texts] if second is None else [texts, second]
        rows = [[*row, i % 2] for i, row in enumerate(zip(*columns, strict=True))]
        names = ["text", "other"][: len(columns)]
        file = table("x.csv", [*names, "label"], rows)
        spec = TaskSpec("t", "yes_no", tuple(names), "label", file, file)
        return read_tasks([spec], tokenizer, tmp_path / "cache")[0].splits["train"]

    return read


@pytest.fixture
def look(split: Callable[..., Split]) -> Look:
    """look(texts, second=None): what is odd about these texts, by code."""
    return lambda *columns: {finding.what: finding for finding in odd_texts("t", split(*columns))}


def test_plain_texts_are_fine(look: Look) -> None:
    fine = [
        "Ein Café für Übermut, ça va? NÃO! 5 < 6 > 4 & so on",
        "naïve \u2018quotes\u2019 \u2013 and dashes…",
        "می‌خواهم 👩‍💻 你好",
    ]
    fine += ["AT&T; R&D; a <3 b", "line\r\nend\tand tab", "[a] [sep] [CL S]", "x@y.z 100 % €20", "Â, or â"]
    assert look(PLAIN + fine) == {}


@pytest.mark.parametrize(
    ("text", "what", "severity"),
    [
        ("a cafÃ© in town", "mojibake", "warning"),
        ("itâ€™s mine", "mojibake", "warning"),
        ("price: Â£20", "mojibake", "warning"),
        ("Ã€ la carte", "mojibake", "warning"),
        ("lost \ufffd here", "lost_characters", "warning"),
        ("bell \x07 and escape \x1b[0m", "control_characters", "warning"),
        ("from latin-1 \x92 quotes", "control_characters", "warning"),
        ("zero\u200bwidth", "zero_width", "note"),
        ("soft\u00adhyphen", "zero_width", "note"),
        ("one<br />two", "markup", "warning"),
        ("fish &amp; chips &#39;n&#x27; more", "markup", "warning"),
        ('<a href="x">link</a>', "markup", "warning"),
        ("[CLS] and [SEP]", "special_tokens", "note"),
    ],
)
def test_odd_texts(look: Look, text: str, what: str, severity: str) -> None:
    (finding,) = look([*PLAIN, text, "fine", f"again {text}"]).values()
    assert (finding.what, finding.severity, finding.rows, finding.count) == (what, severity, (32, 34), 2)
    assert finding.sentence.startswith("2 of 33 rows (6.1 %) have ")


def test_what_is_rare_is_a_note_and_a_row_counts_once(look: Look) -> None:
    texts = [f"{text} {i}" for i in range(10) for text in PLAIN]
    finding = look(["cafÃ©", *texts], ["cafÃ©", *texts])["mojibake"]
    assert (finding.severity, finding.rows, finding.count) == ("note", (2,), 1)
    assert finding.sentence.startswith("1 of 301 rows (0.3 %) has letters such as")


def test_only_the_first_rows_are_read(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEXTS_READ", 10)
    assert look([*PLAIN, "cafÃ©"]) == {}
    finding = look(["cafÃ©", *PLAIN])["mojibake"]
    assert finding.sentence.startswith("1 of the first 10 rows (10 %) has letters")


@pytest.mark.parametrize(
    "value",
    [
        lambda i: str(1000 + i),
        lambda i: f"{i:032x}",
        lambda i: f"{i:08x}-aaaa-4bbb-8ccc-{i:012x}",
        lambda i: f"ticket-{i}",
        lambda i: f"20{i:02}-01-01",
    ],
)
def test_ids_as_text(look: Look, value: Callable[[int], str]) -> None:
    (finding,) = look(PLAIN, [value(i) for i in range(30)]).values()
    assert (finding.what, finding.severity, finding.count) == ("ids_as_text", "problem", 30)
    assert finding.sentence.startswith(
        f"nearly every value of column 'other' is a different id or number, such as '{value(0)}'"
    )


def test_words_and_repeated_numbers_are_no_ids(look: Look) -> None:
    assert look([str(i % 7) for i in range(30)]) == {}
    assert look(["beaded", "facade", *(f"word{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(40))]) == {}
    assert look([str(i) for i in range(19)]) == {}  # too few to say


def test_a_file_that_has_changed_since_is_passed_over(split: Callable[..., Split]) -> None:
    read = split(["cafÃ©", *PLAIN])
    file = Path(read.source)
    content = file.read_bytes()
    file.unlink()
    assert odd_texts("t", read) == []
    file.write_bytes(content)
    assert [finding.what for finding in odd_texts("t", read)] == ["mojibake"], "what was not read is not remembered"


def test_findings_are_kept_in_the_cache(split: Callable[..., Split]) -> None:
    read = split(["cafÃ©", *PLAIN])
    found = odd_texts("t", read)
    Path(read.source).unlink()
    assert [(f.what, f.rows) for f in odd_texts("another", read)] == [(f.what, f.rows) for f in found]
    assert {f.task for f in odd_texts("another", read)} == {"another"}
    for kept in read.store.folder.glob("odd-texts-*.json"):
        kept.write_text('{"findings": [1]}')
    assert odd_texts("t", read) == [], "a damaged entry is not used, and the file cannot be read again"
