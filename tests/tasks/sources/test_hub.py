"""Data sets are read with the datasets library from a local folder, without network access."""

import json
import sys
from pathlib import Path

import datasets
import pytest

from polytask.tasks.in_memory import rows_of
from polytask.tasks.reading import open_source
from polytask.tasks.sources.hub import hub_names
from polytask.types import UserError


@pytest.fixture
def local_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set in a local folder, and no way to the net."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "data"
    folder.mkdir()
    for split, count in (("train", 3), ("test", 1)):
        rows = [{"text": f"{split} {i}", "label": i} for i in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"hub:{folder}"


def test_a_local_folder_through_the_hub_library(local_hub: str) -> None:
    source = open_source(f"{local_hub}#train")
    assert (source.columns, source.unit) == (("text", "label"), "row")
    assert list(source.rows(["label", "text"])) == [(1, [0, "train 0"]), (2, [1, "train 1"]), (3, [2, "train 2"])]
    assert source.fingerprint() == open_source(f"{local_hub}#train").fingerprint()
    assert source.fingerprint() != open_source(f"{local_hub}#test").fingerprint()
    with pytest.raises(UserError, match='Unknown split "dev"'):
        _ = open_source(f"{local_hub}#dev").columns
    with pytest.raises(UserError, match="expected hub:DATASET#SPLIT"):
        _ = open_source(local_hub).columns


def test_class_labels_in_lists_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tags = datasets.ClassLabel(names=["O", "B-PER"])
    features = datasets.Features(words=datasets.List(datasets.Value("string")), tags=datasets.List(tags), kind=tags)
    rows = {"words": [["Ada", "left"], ["x"], ["y"]], "tags": [[1, 0], None, [-1]], "kind": [1, 0, 1]}
    data = datasets.Dataset.from_dict(rows, features)
    named = [["B-PER", "O"], None, [-1]]
    assert [row["tags"] for row in rows_of(data, ["words", "tags"], "data")] == named
    assert [row["kind"] for row in rows_of(data, ["kind"], "data")] == [1, 0, 1]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: data)
    source = open_source("hub:wikiann#train")
    assert [entry[1] for entry in source.rows(["tags", "kind"])] == [[named[0], 1], [None, 0], [[-1], 1]]


def test_the_hub_library_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"hub:imdb#train: .*pip install 'polytask\[hub\]'"):
        _ = open_source("hub:imdb#train").columns


def test_a_revision_is_handed_to_the_hub_library(
    local_hub: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def load(path: str, config: str | None, split: str, revision: str | None) -> None:
        asked.append((path, config, split, revision))
        raise ValueError("not here")

    monkeypatch.setattr(datasets, "load_dataset", load)
    for name in ("imdb@v2#train", "nyu-mll/glue/mrpc@abc#dev", "imdb#train", f"{tmp_path}#train"):
        with pytest.raises(UserError, match="not here"):
            _ = open_source(f"hub:{name}").columns
    assert asked == [
        ("imdb", None, "train", "v2"),
        ("nyu-mll/glue", "mrpc", "dev", "abc"),
        ("imdb", None, "train", None),
        (str(tmp_path), None, "train", None),
    ]


def test_what_a_hub_name_can_mean(tmp_path: Path) -> None:
    assert hub_names("imdb") == [("imdb", None)]
    assert hub_names("glue/mrpc") == [("glue/mrpc", None), ("glue", "mrpc")]
    assert hub_names("nyu-mll/glue/mrpc") == [("nyu-mll/glue", "mrpc")]
    assert hub_names(str(tmp_path)) == [(str(tmp_path), None)]
    assert hub_names(f"{tmp_path}/config") == [(str(tmp_path), "config")]
    with pytest.raises(UserError, match="expected OWNER/NAME/CONFIG at most"):
        _ = open_source("hub:a/b/c/d#train").columns
