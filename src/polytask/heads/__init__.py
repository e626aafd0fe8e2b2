"""Heads by name: trunk output -> a task's outputs, loss and predictions."""

from polytask.heads.base import Head
from polytask.heads.bi import BiHead
from polytask.heads.cosine import CosineHead
from polytask.heads.cross import CrossHead
from polytask.heads.linear import SingleHead

HEADS: dict[str, type[Head]] = {
    "bi": BiHead,
    "cosine": CosineHead,
    "cross": CrossHead,
    "linear": SingleHead,
}
