"""Recognizes columns of dates and times by their values, or by their names if the values are numbers."""

import re
from collections.abc import Sequence

ALMOST_ALL = 0.9
MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mär|mai|okt|dez)[a-zä]*\.?"
DAY = (
    r"[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{2}){1,2}"
    rf"|[0-9]{{1,2}}[. /-]+{MONTH}[. /-]+(?:[0-9]{{2}}){{1,2}}"
    rf"|{MONTH}[ -]+[0-9]{{1,2}}(?:st|nd|rd|th)?(?:,? +[0-9]{{4}})?"
)
TIME = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?: ?[ap]m)? ?(?:Z|UTC|GMT)?(?: ?[+-][0-9]{2}:?[0-9]{2})?"
DATE = re.compile(rf"(?:[a-z]{{3,9}},? )?(?:{DAY})(?:(?:T|,? +){TIME})?(?: [0-9]{{4}})?|{TIME}", re.IGNORECASE)
DIGITS = re.compile(r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])")  # 20240501
NAMES = re.compile(r"(?i:(?:.*[_ -])?(?:date|datetime|time|timestamp|year|month|day))|.*_at|.*[a-z]At")
SECONDS = (9.0e8, 2.6e9)
"""Unix times of the years 1998 to 2052."""


def are_dates(name: str, values: Sequence[str], numbers: Sequence[float]) -> bool:
    """Whether a column holds dates or times; `numbers` are the values as numbers, if all of them are numbers."""
    if not values:
        return False
    if not numbers:
        return sum(DATE.fullmatch(value.strip()) is not None for value in values) >= ALMOST_ALL * len(values)
    if NAMES.fullmatch(name.strip()) or all(DIGITS.fullmatch(value.strip()) for value in values):
        return True
    return any(all(SECONDS[0] <= number / scale <= SECONDS[1] for number in numbers) for scale in (1, 1e3, 1e6))
