"""A store returns what was appended, is written atomically, and detects damage."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytask.text.store import DamagedStore, StoreWriter, TokenStore

Texts = list[tuple[npt.NDArray[np.integer], ...]]


def write(folder: Path, texts: Texts, *, vocabulary: int = 1000, width: int = 1, meta: Any = None) -> TokenStore:
    with StoreWriter(folder, width=width, vocabulary=vocabulary, label_type="int") as writer:
        writer.append(texts, list(range(len(texts))), [i + 2 for i in range(len(texts))])
        writer.close(meta or {})
    return TokenStore.open(folder)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([65_535, 65_536]))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, width: int, vocabulary: int) -> None:
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=5)
    batches = data.draw(st.lists(st.lists(st.tuples(*[ids] * width), max_size=4), max_size=4))
    folder = tmp_path_factory.mktemp("store") / "s"
    examples = [example for batch in batches for example in batch]
    with StoreWriter(folder, width=width, vocabulary=vocabulary, label_type="float") as writer:
        for batch in batches:
            texts = [tuple(np.array(text, dtype=np.int32) for text in example) for example in batch]
            writer.append(texts, [0.5] * len(batch), [7] * len(batch))
        writer.close({"names": ["a"]})
    store = TokenStore.open(folder)
    assert len(store) == len(examples)
    assert [tuple(text.tolist() for text in store.texts(i)) for i in range(len(store))] == examples
    assert store.lengths().tolist() == [[len(text) for text in example] for example in examples]
    assert store.lengths().shape == (len(examples), width)
    assert store.labels.tolist() == [0.5] * len(examples)
    assert store.rows.tolist() == [7] * len(examples)
    assert store.meta == {"names": ["a"]}
    assert (folder / "tokens").stat().st_size == store.lengths().sum() * (2 if vocabulary < 65_536 else 4)


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_pieces_hold_all_texts_in_their_order(tmp_path: Path, most: int) -> None:
    texts = [[1, 2], [], [3, 4, 5, 6, 7], [8], [9], [], []]
    store = write(tmp_path / "s", [(np.array(text, np.int32),) for text in texts])
    pieces = list(store.pieces(most))
    cut = [tokens[a:b].tolist() for tokens, borders in pieces for a, b in pairwise(borders.tolist())]
    assert cut == texts
    assert all(len(tokens) <= most or len(borders) == 2 for tokens, borders in pieces)
    assert list(write(tmp_path / "none", []).pieces(most)) == []


def test_a_store_appears_on_close_and_leaves_nothing_without_it(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", width=1, vocabulary=9, label_type="int") as writer:
        writer.append([(np.array([1]),)], [0], [1])
        assert not (tmp_path / "s").exists()
    assert list(tmp_path.iterdir()) == []


def test_arrays_cannot_be_written_to(tmp_path: Path) -> None:
    store = write(tmp_path / "s", [(np.array([1, 2]),)])
    with pytest.raises(ValueError, match="read-only"):
        store.texts(0)[0][0] = 5


def test_a_store_that_another_process_wrote_first_is_used(tmp_path: Path) -> None:
    texts: Texts = [(np.array([1, 2]),)]
    late = StoreWriter(tmp_path / "s", width=1, vocabulary=9, label_type="int")
    late.append(texts, [0], [1])
    write(tmp_path / "s", texts)
    late.close({})
    assert len(TokenStore.open(tmp_path / "s")) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("name", ["tokens", "offsets", "labels", "rows", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_damage_is_detected_and_the_store_can_be_built_again(tmp_path: Path, name: str, damage: str) -> None:
    texts: Texts = [(np.array([1, 2, 3]),), (np.array([4]),)]
    write(tmp_path / "s", texts)
    file = tmp_path / "s" / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(DamagedStore):
        TokenStore.open(tmp_path / "s")
    assert write(tmp_path / "s", texts).texts(0)[0].tolist() == [1, 2, 3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("name", ["tokens", "offsets", "labels", "rows"])
def test_a_file_that_is_too_long_is_damage(tmp_path: Path, name: str) -> None:
    write(tmp_path / "s", [(np.array([1, 2, 3]),)])
    with (tmp_path / "s" / name).open("ab") as file:
        file.write(bytes(8))
    with pytest.raises(DamagedStore, match=f"{name}: .* bytes, expected"):
        TokenStore.open(tmp_path / "s")


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 0}', "null"])
def test_a_meta_file_of_another_kind_is_damage(tmp_path: Path, content: str) -> None:
    write(tmp_path / "s", [(np.array([1]),)])
    (tmp_path / "s/meta.json").write_text(content)
    with pytest.raises(DamagedStore):
        TokenStore.open(tmp_path / "s")


def test_offsets_that_do_not_fit_the_tokens_are_damage(tmp_path: Path) -> None:
    write(tmp_path / "s", [(np.array([1, 2]),)])
    np.array([0, 1], "<i8").tofile(tmp_path / "s/offsets")
    with pytest.raises(DamagedStore, match="does not match"):
        TokenStore.open(tmp_path / "s")
    assert json.loads((tmp_path / "s/meta.json").read_text())["tokens"] == 2


def test_what_killed_processes_left_is_cleared_away(tmp_path: Path) -> None:
    killed, running = (StoreWriter(tmp_path / "s", width=1, vocabulary=9, label_type="int") for _ in range(2))
    killed._hidden.unlock()  # as the kernel does when the process ends
    alive = running._hidden.path
    write(tmp_path / "s", [(np.array([1, 2]),)])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([alive.name, "s"])
    running.close({})
    killed.abort()
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("vocabulary", [65_535, 65_536])
def test_a_part_has_the_chosen_examples_only(tmp_path: Path, vocabulary: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytask.text.store.PART_EXAMPLES", 2)
    texts: Texts = [(np.arange(n, dtype=np.int32), np.array([vocabulary - 1], dtype=np.int32)) for n in range(6)]
    whole = write(tmp_path / "whole", texts, vocabulary=vocabulary, width=2, meta={"names": ["a"]})
    whole.write_part(tmp_path / "part", np.array([1, 3, 5]))
    part = TokenStore.open(tmp_path / "part")
    assert [tuple(text.tolist() for text in part.texts(i)) for i in range(3)] == [
        tuple(text.tolist() for text in texts[i]) for i in (1, 3, 5)
    ]
    assert (part.labels.tolist(), part.rows.tolist()) == ([1, 3, 5], [3, 5, 7])
    assert part.meta == whole.meta
    assert part.texts(0)[0].dtype == whole.texts(0)[0].dtype
