"""Dates and times are recognized in the usual formats."""

import datetime

import pytest

from polytask.tasks.dates import are_dates

DAY = datetime.datetime(2024, 5, 1, 13, 30, 5)


@pytest.mark.parametrize(
    "form",
    [
        *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%a, %d %b %Y %H:%M:%S"),
        *(
            "%Y-%m-%dT%H:%M:%S",
            "%Y-%m-%d %H:%M:%S.%f",
            "%Y-%m-%dT%H:%M:%SZ",
            "%Y-%m-%d %H:%M:%S+00:00",
            "%d/%m/%Y %H:%M",
        ),
        *("%H:%M", "%I:%M %p", "%c", "%Y%m%d", "%s"),
    ],
)
def test_forms(form: str) -> None:
    days = [DAY + datetime.timedelta(days=17 * i, minutes=i) for i in range(30)]
    values = [str(int(day.timestamp())) if form == "%s" else day.strftime(form) for day in days]
    numbers = [float(value) for value in values] if form in ("%Y%m%d", "%s") else []
    assert are_dates("when", values, numbers)


@pytest.mark.parametrize("name", ["year", "created_at", "createdAt", "Birth Date", "timestamp"])
def test_numbers_by_their_names(name: str) -> None:
    assert are_dates(name, ["7", "8"], [7.0, 8.0])
    assert not are_dates(name, ["early", "late"], [])


@pytest.mark.parametrize("name", ["rating", "sentiment", "update", "holiday", "format", "days_open"])
def test_other_numbers_and_words(name: str) -> None:
    for values in (["1", "5"], ["0.5", "4.25"], ["12345678", "99999999"], ["-1", "1"]):
        assert not are_dates(name, values, [float(value) for value in values])
    for values in (["good", "bad"], ["may", "march"], ["v1.2", "v1.3"], ["see 2024-05-01", "later"], []):
        assert not are_dates(name, values, [])
