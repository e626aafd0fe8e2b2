"""Fingerprints of sources, and errors that list the existing columns."""

from collections.abc import Callable

from polytask.tasks.reading import open_source
from polytask.tasks.sources.source import no_column

Write = Callable[[str, str | bytes], str]


def test_fingerprint_follows_the_content_not_the_name(write: Write) -> None:
    one, same = write("1.csv", "a,b\n1,2\n"), write("2.csv", "a,b\n1,2\n")
    other = write("3.csv", "a,b\n1,3\n")
    assert open_source(one).fingerprint() == open_source(same).fingerprint() != open_source(other).fingerprint()


def test_a_missing_column_is_reported_with_the_existing_ones(write: Write) -> None:
    source = open_source(write("x.csv", ",sentence,sentiment\n0,a,1\n"))
    message = str(no_column(source, "sentense"))
    assert message.endswith("no column 'sentense'; its columns are: sentence, sentiment; did you mean 'sentence'?")
