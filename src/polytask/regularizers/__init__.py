"""Regularizers by name: penalties added to the loss."""

from collections.abc import Callable

from polytask.regularizers.base import Regularizer

REGULARIZERS: dict[str, Callable[..., Regularizer]] = {}
