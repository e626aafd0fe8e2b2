"""Losses by name: what a task learns to make small."""

from polytask.losses.base import Loss

LOSSES: dict[str, type[Loss]] = {}
