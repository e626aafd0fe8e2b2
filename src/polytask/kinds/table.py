"""The table of kinds of labels, by the name that recipes use."""

from dataclasses import replace

from polytask.kinds.base import Array, Kind, Meta
from polytask.kinds.choice import Choice
from polytask.kinds.classes import Classes
from polytask.kinds.match import Match
from polytask.kinds.multilabel import MultiLabel
from polytask.kinds.score import Score
from polytask.kinds.text import PlainText
from polytask.kinds.tokens import Tokens
from polytask.kinds.yes_no import YesNo
from polytask.settings import TaskSpec
from polytask.types import LabelKind, LabelSpace

_ALL: tuple[Kind, ...] = (Classes(), YesNo(), Score(), MultiLabel(), Tokens(), Match(), Choice(), PlainText())
KINDS: dict[LabelKind, Kind] = {kind.name: kind for kind in _ALL}


def kind_of(labels: LabelSpace) -> Kind:
    """Returns the kind of a label space, which may be that of a plug-in."""
    return KINDS[labels.kind_name]


def label_space(spec: TaskSpec, meta: Meta, vocabulary: int, stored: Array | None) -> LabelSpace:
    """Returns `Kind.space`; that of a plug-in's kind has the built-in kind whose form it has."""
    kind = KINDS[spec.kind]
    labels = kind.space(spec, meta, vocabulary, stored)
    return labels if kind.form is None else replace(labels, kind=kind.form, own_kind=spec.kind)
