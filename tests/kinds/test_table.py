"""The table of kinds: every name of a recipe has a kind, and label spaces know the kind of a plug-in."""

from typing import get_args

import numpy as np
import pytest

from polytask.kinds.classes import Classes
from polytask.kinds.table import KINDS, kind_of, label_space
from polytask.settings import ABSTAINING, TaskSpec
from polytask.types import KINDS_WITHOUT_LABEL, LabelKind, LabelSpace


def test_every_kind_of_a_recipe_is_in_the_table() -> None:
    assert tuple(sorted(KINDS)) == tuple(sorted(get_args(LabelKind)))
    assert all(kind.form is None for kind in KINDS.values())


def test_what_recipes_know_without_torch_is_what_the_kinds_say() -> None:
    assert {*KINDS_WITHOUT_LABEL} == {name for name, kind in KINDS.items() if not kind.has_labels}
    assert {*ABSTAINING} == {name for name, kind in KINDS.items() if kind.has_confidence}


def test_the_label_space_of_a_plug_in_has_the_form_of_a_built_in_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stars(Classes):
        name = "stars"  # type: ignore[assignment]
        form = "classes"

    monkeypatch.setitem(KINDS, "stars", Stars())  # type: ignore[arg-type,misc]
    spec = TaskSpec("t", "stars", ("text",), "label", "train.csv", "dev.csv")  # type: ignore[arg-type]
    labels = label_space(spec, {"names": ["5", "1"]}, 0, np.array([0, 1]))
    assert labels == LabelSpace("classes", ("1", "5"), own_kind="stars")  # type: ignore[arg-type]
    assert isinstance(kind_of(labels), Stars)
    assert kind_of(LabelSpace("classes", ("1", "5"))) is KINDS["classes"]
