"""Regularizers by name: penalties added to the loss."""

from collections.abc import Callable

from polytask.regularizers.base import Regularizer
from polytask.regularizers.bregman import Bregman
from polytask.regularizers.r_drop import RDrop
from polytask.regularizers.smart import Smart

REGULARIZERS: dict[str, Callable[..., Regularizer]] = {
    "bregman": Bregman,
    "r_drop": RDrop,
    "smart": Smart,
}
