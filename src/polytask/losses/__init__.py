"""Losses by name: what a task minimizes in place of its head's own loss."""

from polytask.losses.base import Loss
from polytask.losses.cross_entropy import CrossEntropy
from polytask.losses.focal import Focal
from polytask.losses.ordinal import Ordinal

LOSSES: dict[str, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "focal": Focal,
    "ordinal": Ordinal,
}
