"""Cells of an Excel sheet: their values as text, and the reasons why some are empty. Knows no workbook."""

import datetime
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

ESCAPED = re.compile(r"_x000([9AaDd])_")  # a tab or a line end in a workbook
ERRORS = {"#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!", "#SPILL!", "#CALC!"}
MERGED = re.compile(rb'<(?:\w+:)?mergeCell\s[^>]*?ref="([A-Z]{1,3})([0-9]{1,7}):([A-Z]{1,3})([0-9]{1,7})"')
NOT_COMPUTED = re.compile(
    rb'<(?:\w+:)?c r="([A-Z]{1,3})([0-9]{1,7})"[^>]*>'
    rb"<(?:\w+:)?f(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)(?:<(?:\w+:)?v ?/>|<v></v>)?</(?:\w+:)?c>"
)
MOST_EXPLAINED = 100_000  # merged cells that a reason is stored for


def explained_cells(chunks: Iterable[bytes]) -> dict[tuple[int, int], str]:
    """Returns, by row and column, why a cell without a value looks filled in Excel; read from a sheet's XML."""
    reasons: dict[tuple[int, int], str] = {}
    room = MOST_EXPLAINED
    for xml in chunks:
        for letters, number in NOT_COMPUTED.findall(xml):
            problem = "a formula without a saved value; open the workbook in Excel and save it"
            reasons[int(number), _column_index(letters)] = problem
        for left, top, right, bottom in MERGED.findall(xml):
            problem = f"merged with cell {left.decode()}{top.decode()}; unmerge the cells and fill in each of them"
            columns = range(_column_index(left), _column_index(right) + 1)
            cells = ((row, column) for row in range(int(top), int(bottom) + 1) for column in columns)
            some = list(islice(cells, room)) if columns else []
            reasons.update(dict.fromkeys(some, problem))
            room -= len(some)
    return reasons


def as_text(cell: Any) -> str:
    """Returns a cell's value as text: 1.0 is 1, dates are ISO dates, and an empty cell is ""."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return ESCAPED.sub(lambda match: {"9": "\t", "A": "\n", "D": ""}[match[1].upper()], cell)
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return format(cell, ".15g")  # as many digits as Excel has
    if isinstance(cell, datetime.datetime):
        return cell.date().isoformat() if cell.time() == datetime.time() else cell.isoformat(" ", "seconds")
    if isinstance(cell, datetime.time):
        return cell.isoformat("seconds")
    return str(cell)


def is_empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def column_letters(index: int) -> str:
    """Returns Excel's name of a column: A for 0, AA for 26."""
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _column_index(letters: bytes) -> int:
    index = 0
    for letter in letters:
        index = 26 * index + letter - ord("A") + 1
    return index - 1
