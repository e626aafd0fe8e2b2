"""JSON lines are read as they were written, and every broken line is reported."""

from collections.abc import Callable

import pytest

from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import BrokenRow
from polytask.types import UserError

Write = Callable[[str, str | bytes], str]
Read = Callable[..., list[object]]


def test_json_lines_and_their_broken_rows(write: Write) -> None:
    lines = [
        '{"text": "a", "label": 1}',
        "",
        "{oops",
        '["list"]',
        '{"text": "b"}',
        '{"label": 2.5, "text": null, "x": 0}',
    ]
    source = open_source(write("x.jsonl", "\r\n".join(lines)))
    assert source.columns == ("text", "label")
    first, bad, no_object, no_label, last = source.rows(["text", "label"])
    assert (first, last) == ((1, ["a", 1]), (6, [None, 2.5]))
    assert "x.jsonl, line 3: '{oops': not valid JSON: " in str(bad)
    assert "line 4: '[\"list\"]': not a JSON object" in str(no_object)
    assert "line 5, column 'label': the line has no such key" in str(no_label)
    assert list(source.rows(["text", "label"], needed=["text"]))[3] == (5, ["b", None])


@pytest.mark.parametrize(("content", "message"), [("", "file is empty"), ("{oops\n", "line 1: '{oops'")])
def test_json_lines_without_a_first_object(write: Write, read: Read, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write("x.ndjson", content))


def test_json_that_is_too_deep_or_too_long_is_a_broken_row(write: Write, read: Read) -> None:
    source = write("x.jsonl", '{"a": 1}\n' + "[" * 200_000 + "\n" + '{"a": ' + "1" * 5000 + "}\n")
    first, deep, long = read(source)
    assert first == (1, [1])
    assert isinstance(deep, BrokenRow)
    assert len(deep.value) == 80
    assert isinstance(long, BrokenRow)
