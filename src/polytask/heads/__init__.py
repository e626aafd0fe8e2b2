"""Heads by name: trunk output -> a task's outputs, loss and predictions."""

from polytask.heads.base import Head
from polytask.heads.bi import BiHead
from polytask.heads.cosine import CosineHead
from polytask.heads.cross import CrossHead
from polytask.heads.linear import SingleHead
from polytask.heads.mlm import MlmHead
from polytask.heads.simcse import SimcseHead

HEADS: dict[str, type[Head]] = {
    "bi": BiHead,
    "cosine": CosineHead,
    "cross": CrossHead,
    "linear": SingleHead,
    "mlm": MlmHead,
    "simcse": SimcseHead,
}
