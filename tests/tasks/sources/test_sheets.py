"""Sheets are read as Excel shows them; an invalid workbook is one error that names it."""

import datetime
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.settings import TaskSpec
from polytask.tasks.reading import open_source
from polytask.tasks.sources import sheets
from polytask.tasks.sources.source import BrokenRow
from polytask.tasks.task import read_tasks
from polytask.text.tokenizer import TextTokenizer
from polytask.types import UserError

Read = Callable[..., list[object]]
Workbook = Callable[..., str]


@pytest.fixture
def workbook(tmp_path: Path) -> Workbook:
    """workbook(Sheet=[[cell, ...], ...], ...): the full path of a workbook with these sheets."""

    def write(**tables: list[list[Any]]) -> str:
        book = openpyxl.Workbook()
        book.remove(book.active)  # type: ignore[arg-type]
        for title, rows in tables.items():
            sheet = book.create_sheet(title)
            for row in rows:
                sheet.append(row)
        book.save(tmp_path / "book.xlsx")
        return str(tmp_path / "book.xlsx")

    return write


def test_a_sheet_is_read_with_its_own_row_numbers(workbook: Workbook, read: Read) -> None:
    source = workbook(
        First=[
            [],
            ["text", "label", "when", "sure"],
            ["one, two", 1.0, datetime.datetime(2024, 5, 1), True],
            [],
            ["  ", None],
            ["three", 2.5, None, False, None],
        ]
    )
    assert open_source(source).columns == ("text", "label", "when", "sure")
    assert read(source) == [(3, ["one, two", "1", "2024-05-01", "TRUE"]), (6, ["three", "2.5", "", "FALSE"])]
    assert next(open_source(source).rows(["sure", "text"])) == (3, ["TRUE", "one, two"])


def test_sheets_by_their_names(workbook: Workbook, read: Read) -> None:
    source = workbook(One=[["text"], ["a"]], Two=[["text"], ["b"]])
    assert read(source) == [(2, ["a"])]
    assert read(f"{source}#Two") == read(f"{source}#two") == [(2, ["b"])]
    with pytest.raises(
        UserError, match=r"book\.xlsx#Tow: no sheet 'Tow'; its sheets are: One, Two; did you mean 'Two'"
    ):
        read(f"{source}#Tow")
    assert open_source(source).fingerprint() == open_source(f"{source}#One").fingerprint()
    assert open_source(source).fingerprint() != open_source(f"{source}#Two").fingerprint()
    with pytest.raises(UserError, match=r"x\.csv#Two: no such file"):
        read("x.csv#Two")


def test_hidden_sheets_are_not_the_first(tmp_path: Path, read: Read) -> None:
    book = openpyxl.Workbook()
    book.active.sheet_state = "hidden"  # type: ignore[union-attr]
    book.create_sheet("Shown").append(["text"])
    book["Shown"].append(["seen"])
    book.save(tmp_path / "x.xlsx")
    assert read(str(tmp_path / "x.xlsx")) == [(2, ["seen"])]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.lists(
            st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cn"]), max_size=8)
            | st.integers(-(10**12), 10**12)
            | st.booleans(),
            min_size=2,
            max_size=2,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_openpyxl_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, read: Read, rows: list[list[Any]]
) -> None:
    file = tmp_path_factory.mktemp("sheets") / "x.xlsx"
    book = openpyxl.Workbook()
    for row in [["a", "b"], *rows]:
        book.active.append([None if isinstance(cell, str) and cell[:1] == "=" else cell for cell in row])  # type: ignore[union-attr]
    book.save(file)

    def shown(cell: Any) -> str:
        text = str(cell).upper() if isinstance(cell, bool) else str(cell)
        return "" if text[:1] == "=" else text

    expected = [[shown(cell) for cell in row] for row in rows]
    expected = [row for row in expected if any(cell.strip() for cell in row)]
    if not expected:
        with pytest.raises(UserError, match="no rows below the header row"):
            read(str(file))
        return
    found = [row[1] for row in read(str(file)) if not isinstance(row, BrokenRow)]  # type: ignore[index]
    assert [[cell.strip() for cell in row] for row in found] == [[cell.strip() for cell in row] for row in expected]


def test_cells_that_look_filled_and_are_not(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for row in (["text", "label"], ["one", "x"], ["two", None], ["=A2", "y"], ["#REF!", "z"], ["good", "w", "extra"]):
        sheet.append(row)
    sheet.merge_cells("B2:B3")
    book.save(tmp_path / "x.xlsx")
    source = open_source(str(tmp_path / "x.xlsx"))
    first, merged, formula, error, extra = source.rows(["text", "label"])
    assert first == (2, ["one", "x"])
    assert "row 3, column 'label': merged with cell B2; unmerge the cells" in str(merged)
    assert "row 4, column 'text': a formula without a saved value; open the workbook in Excel" in str(formula)
    assert "row 5, column 'text': '#REF!': an error of Excel" in str(error)
    assert "row 6: 'extra': a value in column C, which has no name in the header" in str(extra)
    # Only what is needed must be right.
    assert [isinstance(row, BrokenRow) for row in source.rows(["text", "label"], needed=["label"])] == [
        False,
        True,
        False,
        False,
        True,
    ]


def test_a_workbook_as_excel_writes_it(workbook: Workbook, read: Read) -> None:
    """With a table of shared texts, texts in pieces, saved values of formulas, numbers as Excel stores them."""
    source = Path(workbook(S=[["text"]]))
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    texts = ["<t>text</t>", "<t>label</t>", "<r><t>one </t></r><r><rPr><b/></rPr><t>bold</t></r>", "<t>a_x000D_\nb</t>"]
    strings = f'<sst {main} count="4">{"".join(f"<si>{text}</si>" for text in texts)}</sst>'
    cells = [
        '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>',
        '<row r="2"><c r="A2" t="s"><v>2</v></c><c r="B2"><v>4.4000000000000004</v></c></row>',
        '<row r="5"><c r="A5" t="s"><v>3</v></c><c r="B5"><f>1+1</f><v>2</v></c><c r="C5" s="1"/></row>',
        '<row r="6"><c r="A6" t="str"><f>A2</f><v>one bold</v></c><c r="B6" t="b"><v>1</v></c></row>',
        '<row r="7"><c r="A7" t="e"><v>#N/A</v></c><c r="B7"><v>1E3</v></c></row>',
    ]
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings"
    relation = f'<Relationship Id="rId99" Type="{kind}" Target="sharedStrings.xml"/>'
    content = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    override = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{content}"/>'
    rewrite(
        source,
        "xl/worksheets/sheet1.xml",
        lambda _: f"<worksheet {main}><sheetData>{''.join(cells)}</sheetData></worksheet>".encode(),
    )
    rewrite(source, "xl/_rels/workbook.xml.rels", lambda xml: xml.replace(b"</Rel", relation.encode() + b"</Rel"))
    rewrite(source, "[Content_Types].xml", lambda xml: xml.replace(b"</Types", override.encode() + b"</Types"))
    with zipfile.ZipFile(source, "a") as archive:
        archive.writestr("xl/sharedStrings.xml", strings)
    *rows, error = read(str(source))
    assert rows == [(2, ["one bold", "4.4"]), (5, ["a\nb", "2"]), (6, ["one bold", "TRUE"])]
    assert "row 7, column 'text': '#N/A': an error of Excel" in str(error)


def test_a_size_in_the_file_that_is_too_small(workbook: Workbook, read: Read) -> None:
    source = Path(workbook(S=[["text", "label"], ["a", 1], ["b", 2]]))
    rewrite(source, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(b'ref="A1:B3"', b'ref="A1"'))
    assert read(str(source)) == [(2, ["a", "1"]), (3, ["b", "2"])]


def rewrite(file: Path, entry: str, change: Callable[[bytes], bytes]) -> None:
    with zipfile.ZipFile(file) as old:
        contents = {name: old.read(name) for name in old.namelist()}
    changed = change(contents[entry])
    assert changed != contents[entry]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in contents.items():
            new.writestr(name, changed if name == entry else content)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "sheet 'S' is empty; expected a header row and rows"),
        ([["text", "label"]], r"no rows below the header row \(text, label\)"),
        ([["text", "text"], ["a", "b"]], "column names must be unique, found 'text'"),
        ([["a good film", 4.5], ["a bad one", 1.5]], "row 1, column B: expected the name of a column, found 4.5"),
        (
            [[datetime.date(2024, 5, 1), "x"], ["a", "b"]],
            "row 1, column A: expected the name of a column, found 2024-05-01",
        ),
    ],
)
def test_sheets_that_cannot_be_read(workbook: Workbook, read: Read, rows: list[list[Any]], message: str) -> None:
    with pytest.raises(UserError, match=rf"book\.xlsx.*{message}"):
        read(workbook(S=rows))


def test_a_merged_header(tmp_path: Path, read: Read) -> None:
    book = openpyxl.Workbook()
    assert book.active is not None
    for row in (["text", None, "label"], ["a", "b", "c"]):
        book.active.append(row)
    book.active.merge_cells("A1:B1")
    book.save(tmp_path / "x.xlsx")
    with pytest.raises(UserError, match=r"row 1, column B: the header is merged with cell A1; unmerge"):
        read(str(tmp_path / "x.xlsx"))


def test_files_that_are_no_workbooks(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.xlsx"
    for content in (b"", b"text,label\na,1\n", b"PK\x03\x04", b"<html>"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"x\.xlsx: cannot read it as an Excel workbook"):
            read(str(file))
    file.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(1000))
    with pytest.raises(UserError, match=r"x\.xlsx: protected with a password, or in the old Excel format"):
        read(str(file))
    (tmp_path / "old.xls").write_bytes(b"")
    with pytest.raises(UserError, match=r"old\.xls: the old Excel format is not supported; .* save it as \.xlsx"):
        read(str(tmp_path / "old.xls"))


def test_what_would_unpack_to_gigabytes_is_refused_unread(
    workbook: Workbook, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = workbook(S=[["text"], *([["the same text again"]] * 500)])
    monkeypatch.setattr(sheets, "LARGEST_CONTENT", 10_000)
    monkeypatch.setattr(openpyxl, "load_workbook", None)
    with pytest.raises(UserError, match=r"book\.xlsx: .* when unpacked"):
        read(source)


def test_entities_that_unfold_to_gigabytes(workbook: Workbook, read: Read) -> None:
    source = Path(workbook(S=[["text"], ["a"]]))
    entities = b"".join(b'<!ENTITY e%d "%s">' % (i, b"&e%d;" % (i - 1) * 20) for i in range(1, 12))
    start = b'<!DOCTYPE x [<!ENTITY e0 "text">' + entities + b"]>"

    def bomb(xml: bytes) -> bytes:
        return start + xml.replace(b"<t>a</t>", b"<t>&e11;</t>")

    rewrite(source, "xl/worksheets/sheet1.xml", bomb)
    with pytest.raises(UserError, match=r"book\.xlsx: cannot read it as an Excel workbook"):
        read(str(source))


def test_a_row_number_beyond_every_sheet(workbook: Workbook, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(workbook(S=[["text"], ["a"], ["b"]]))
    rewrite(source, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(b'<row r="3"', b'<row r="99999999999"'))
    monkeypatch.setattr(sheets, "MOST_ROWS", 5_000)
    with pytest.raises(UserError, match="more than 5,000 rows"):
        read(str(source))


@settings(max_examples=40, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), damage=st.binary(min_size=1, max_size=40))
def test_a_workbook_damaged_anywhere(
    tmp_path_factory: pytest.TempPathFactory, read: Read, place: float, damage: bytes
) -> None:
    file = tmp_path_factory.mktemp("damaged") / "x.xlsx"
    book = openpyxl.Workbook()
    for row in [["text", "label"], *([f"row {i}", i] for i in range(20))]:
        book.active.append(row)  # type: ignore[union-attr]
    book.save(file)
    whole = file.read_bytes()
    at = int(place * len(whole))
    file.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
    try:
        message = str(read(str(file)) and file)
    except UserError as error:
        message = str(error)
    assert str(file) in message


def test_without_openpyxl(workbook: Workbook, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    source = workbook(S=[["text"], ["a"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(UserError, match=r"book\.xlsx: needs the openpyxl library: pip install 'polytask\[excel\]'"):
        read(source)


def test_two_sheets_are_two_stores(workbook: Workbook, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    source = workbook(**{"v1.2": [["text", "same"], ["a", 1]], "v2.2": [["text", "same"], ["b", 0], ["c", 1]]})
    spec = TaskSpec("t", "yes_no", ("text",), "same", f"{source}#v1.2", f"{source}#v2.2")
    (task,) = read_tasks([spec], tokenizer, tmp_path / "cache")
    assert [example.texts for example in task.splits["train"].examples()] == [("a",)]
    assert [example.texts for example in task.splits["dev"].examples()] == [("b",), ("c",)]
