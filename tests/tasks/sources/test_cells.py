"""Cells become the text that Excel shows."""

import datetime

import pytest

from polytask.tasks.sources.cells import MOST_EXPLAINED, as_text, column_letters, explained_cells


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        ("two_x000D_\nlines_x000a_tab_x0009_", "two\nlines\ntab\t"),
        ("_x0041_", "_x0041_"),
        (1, "1"),
        (1.0, "1"),
        (-0.5, "-0.5"),
        (0.1 + 0.2, "0.3"),
        (1234567.0, "1234567"),
        (True, "TRUE"),
        (False, "FALSE"),
        (datetime.datetime(2024, 5, 1), "2024-05-01"),
        (datetime.datetime(2024, 5, 1, 13, 30), "2024-05-01 13:30:00"),
        (datetime.date(2024, 5, 1), "2024-05-01"),
        (datetime.time(13, 30), "13:30:00"),
        (datetime.timedelta(hours=2), "2:00:00"),
    ],
)
def test_values(cell: object, text: str) -> None:
    assert as_text(cell) == text


def test_letters_of_columns() -> None:
    assert [column_letters(i) for i in (0, 25, 26, 701, 702, 16383)] == ["A", "Z", "AA", "ZZ", "AAA", "XFD"]


def test_merged_cells_and_formulas_without_a_value() -> None:
    xml = b'<c r="B2"><f>A1&amp;"x"</f><v /></c><c r="B3"><f>A1</f><v>2</v></c><mergeCell ref="A4:B5"/>'
    found = explained_cells([xml[:60], xml])
    assert found.keys() == {(2, 1), (4, 0), (4, 1), (5, 0), (5, 1)}
    assert found[2, 1].startswith("a formula without a saved value")
    assert found[5, 1].startswith("merged with cell A4")
    whole_sheet = explained_cells([b'<mergeCell ref="A1:XFD1048576"/>' * 3, b'<mergeCell ref="B1:A9999999"/>'])
    assert len(whole_sheet) == MOST_EXPLAINED
