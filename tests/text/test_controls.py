"""Control characters are escaped, and nothing else changes."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from polytask.text.controls import visible

ANY = st.text(st.characters(categories=None), max_size=40)


@given(ANY)
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    """Compared with the character database of Python, which is Unicode's."""
    for letter in visible(text):
        assert unicodedata.category(letter) not in ("Cc", "Cs", "Zl", "Zp") or letter in "\n\t"
        assert unicodedata.bidirectional(letter) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    visible(text).encode()


@given(ANY)
def test_the_rest_stays_and_a_second_time_changes_nothing(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    kept = "".join(letter for letter in text if visible(letter) == letter)
    assert visible(kept) == kept


def test_how_it_looks() -> None:
    assert visible("a\x1b[31mb\u202ec\r\n\td") == "a\\x1b[31mb\\u202ec\\r\n\td"
    assert visible("\udcff.csv") == "\\udcff.csv"
    assert visible("שלום, 👩‍🚀 naïve 日本") == "שלום, 👩‍🚀 naïve 日本"
