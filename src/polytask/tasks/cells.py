"""What cells of an Excel sheet hold: their values as text, and why some are empty. Knows no workbook and no row."""

import datetime
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

ESCAPED = re.compile(r"_x000([9AaDd])_")  # how a workbook writes a tab and line ends
ERRORS = {"#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!", "#SPILL!", "#CALC!"}
MERGED = re.compile(rb'<(?:\w+:)?mergeCell\s[^>]*?ref="([A-Z]{1,3})([0-9]{1,7}):([A-Z]{1,3})([0-9]{1,7})"')
NOT_COMPUTED = re.compile(
    rb'<(?:\w+:)?c r="([A-Z]{1,3})([0-9]{1,7})"[^>]*>'
    rb"<(?:\w+:)?f(?:[^>]*/>|[^>]*>[^<]*</(?:\w+:)?f>)(?:<(?:\w+:)?v ?/>|<v></v>)?</(?:\w+:)?c>"
)
MOST_EXPLAINED = 100_000  # merged cells whose reason is kept


def explained_cells(chunks: Iterable[bytes]) -> dict[tuple[int, int], str]:
    """Row and column -> why a cell without a value looks filled in Excel. Read from a sheet's XML."""
    found: dict[tuple[int, int], str] = {}
    room = MOST_EXPLAINED
    for xml in chunks:
        for letters, number in NOT_COMPUTED.findall(xml):
            problem = "a formula without a saved value; open the workbook in Excel and save it"
            found[int(number), _place(letters)] = problem
        for left, top, right, bottom in MERGED.findall(xml):
            problem = f"merged with cell {left.decode()}{top.decode()}; unmerge the cells and fill in each of them"
            columns = range(_place(left), _place(right) + 1)
            cells = ((row, place) for row in range(int(top), int(bottom) + 1) for place in columns)
            some = list(islice(cells, room)) if columns else []
            found.update(dict.fromkeys(some, problem))
            room -= len(some)
    return found


def as_text(cell: Any) -> str:
    """A cell's value as its reader sees it: 1.0 is 1, dates are ISO dates; an empty cell is no text."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return ESCAPED.sub(lambda found: {"9": "\t", "A": "\n", "D": ""}[found[1].upper()], cell)
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


def column_letters(place: int) -> str:
    """0 -> A, 26 -> AA."""
    letters = ""
    place += 1
    while place:
        place, letter = divmod(place - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def _place(letters: bytes) -> int:
    place = 0
    for letter in letters:
        place = 26 * place + letter - ord("A") + 1
    return place - 1
