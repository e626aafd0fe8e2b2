"""Values that a process keeps between runs."""

import pytest

from polytask.disk.kept import MOST_VALUES, keeping_values, kept


class Maker:
    def __init__(self) -> None:
        self.made: list[str] = []

    def get(self, key: str, kind: str = "letters") -> str:
        def make() -> str:
            self.made.append(key)
            return key.upper()

        return kept(kind, key, make)


def test_outside_the_context_nothing_is_kept() -> None:
    maker = Maker()
    assert [maker.get("a"), maker.get("a")] == ["A", "A"]
    assert maker.made == ["a", "a"]


def test_inside_the_context_a_value_is_made_once_per_kind_and_key() -> None:
    maker = Maker()
    with keeping_values():
        assert [maker.get("a"), maker.get("a"), maker.get("b"), maker.get("a", "others")] == ["A", "A", "B", "A"]
    assert maker.made == ["a", "b", "a"]


def test_the_least_recently_used_value_is_dropped() -> None:
    maker = Maker()
    keys = [str(number) for number in range(MOST_VALUES)]
    with keeping_values():
        for key in [*keys, keys[0], "new", keys[0], keys[1]]:
            maker.get(key)
    assert maker.made == [*keys, "new", keys[1]]


def test_a_value_that_cannot_be_made_is_not_kept() -> None:
    def fail() -> str:
        raise OSError("no such file")

    with keeping_values():
        with pytest.raises(OSError, match="no such file"):
            kept("letters", "a", fail)
        assert Maker().get("a") == "A"


def test_the_values_end_with_their_context() -> None:
    maker = Maker()
    with keeping_values():
        maker.get("a")
    with keeping_values():
        maker.get("a")
    assert maker.made == ["a", "a"]
