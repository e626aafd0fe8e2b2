"""The table of kinds of labels, by the name that recipes use."""

from polytask.kinds.base import Kind
from polytask.kinds.choice import Choice
from polytask.kinds.classes import Classes
from polytask.kinds.multilabel import MultiLabel
from polytask.kinds.score import Score
from polytask.kinds.text import PlainText
from polytask.kinds.tokens import Tokens
from polytask.kinds.yes_no import YesNo
from polytask.types import LabelKind

_ALL: tuple[Kind, ...] = (Classes(), YesNo(), Score(), MultiLabel(), Tokens(), Choice(), PlainText())
KINDS: dict[LabelKind, Kind] = {kind.name: kind for kind in _ALL}
