"""Strict YAML: plain values only, and errors that say where."""

import pytest

from polytask.recipe.yaml_files import MAX_VALUES, load_yaml
from polytask.types import UserError

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]\n" for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {k0: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{inner}'] * 9)}]}}\n"
    for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)


REFUSED = {
    "unclosed bracket": ("a: [1", "expected ',' or ']'"),
    "duplicate key": ("seed: 1\nseed: 2\n", "line 2, column 1: duplicate key 'seed'"),
    "duplicate key inside": ("a:\n  one: 1\n  one: 2\n", "line 3, column 3: duplicate key 'one'"),
    "aliases of aliases": (LAUGHS, "more than 100,000 values with all aliases expanded"),
    "merges of merges": (MERGES, "more than 100,000 values with all aliases expanded"),
    "alias of itself": ("x: &a [*a]\n", "line 1, column 4: an alias contains itself"),
    "Python tag": ("seed: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
    "other tag": ("seed: !mine 3\n", "could not determine a constructor for the tag '!mine'"),
    "invalid date": ("name: 2026-13-32\n", "line 1, column 7: '2026-13-32' is not a valid timestamp"),
    "invalid number": ("seed: !!int many\n", "line 1, column 7: 'many' is not a valid int"),
    "large number": (f"seed: 0x{'f' * 4000}\n", "line 1, column 7: the number is too large"),
    "list as a key": ("? [seed]\n: 1\n", "line 1, column 3: a key must be a name, found a list or a mapping"),
    "nested brackets": (f"name: {'[' * 5000}", "its brackets are nested too deeply"),
    "two documents": ("a: 1\n---\nb: 2\n", "expected a single document"),
    "control character": ("name: a\x07b\n", "unacceptable character #x0007"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_yaml_is_refused_with_the_place(case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(UserError) as caught:
        load_yaml(text, "file.yaml")
    assert str(caught.value).startswith("file.yaml: not valid YAML: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 20_000


def test_plain_values_aliases_and_merges_are_read() -> None:
    assert load_yaml("a: [1, 2.5, yes, text, null]", "f") == {"a": [1, 2.5, True, "text", None]}
    merged = load_yaml("one: &one {kind: score, weight: 1}\ntwo: {<<: *one, weight: 2}\nthree: *one\n", "f")
    assert merged["two"] == {"kind": "score", "weight": 2}
    assert merged["three"] == merged["one"]


@pytest.mark.slow
def test_a_file_with_as_many_values_as_allowed_is_read() -> None:
    most = MAX_VALUES - 1  # the list is a value too
    assert len(load_yaml(f"[{'0,' * most}]", "f")) == most
    with pytest.raises(UserError, match="more than 100,000 values"):
        load_yaml(f"[{'0,' * (most + 1)}]", "f")
