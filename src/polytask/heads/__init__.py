"""Heads by name: encoder output -> a task's outputs, loss and predictions."""

from polytask.heads.base import Head
from polytask.heads.bi import BiHead
from polytask.heads.choice import ChoiceHead
from polytask.heads.cosine import CosineHead
from polytask.heads.cross import CrossHead
from polytask.heads.joint import JointHead
from polytask.heads.linear import LinearHead
from polytask.heads.match import MatchHead
from polytask.heads.mlm import MlmHead
from polytask.heads.simcse import SimcseHead
from polytask.heads.tags import TagsHead

HEADS: dict[str, type[Head]] = {
    "bi": BiHead,
    "choice": ChoiceHead,
    "cosine": CosineHead,
    "cross": CrossHead,
    "joint": JointHead,
    "linear": LinearHead,
    "match": MatchHead,
    "mlm": MlmHead,
    "simcse": SimcseHead,
    "tags": TagsHead,
}
