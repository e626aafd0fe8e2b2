"""The scale of a task's loss, which makes different losses comparable at the start of a run."""

import torch
from torch import Tensor

from polytask.heads.base import Head
from polytask.kinds.score import LEAST_DEVIATION
from polytask.losses.base import Loss

MAX_OUTPUTS = 1_000_000
"""Outputs that are computed for a scale. With more classes and rows than this, some of the rows are enough."""
LEAST_LOSS = LEAST_DEVIATION**2
"""A loss up to this is a rounding error of scores that are all the same, which have no scale."""


def even_scale(head: Head, loss: Loss | None, labels: Tensor, batch_size: int) -> float:
    """Return `1 / L0`, with L0 the task's loss for outputs that ignore the texts (`Head.uninformed_outputs`).

    L0 is log C for C classes and log 2 for yes_no, the variance of the scores, the log of the vocabulary for masked
    tokens, and the log of the batch size for simcse and match, which compare the texts of a batch. A task's own loss is
    used if it has one. The scale is 1 if L0 is 0, because all scores are the same.

    Paper: Chen et al., "GradNorm", 2018: its loss ratio, with log C as the initial loss of C classes, but without its
    learned weights.
    """
    rows = (
        labels[:batch_size]
        if not head.kind.has_labels
        else labels[:: 1 + len(labels) * head.num_outputs // MAX_OUTPUTS]
    )
    outputs = head.uninformed_outputs(rows)
    with torch.no_grad():
        value = (head.loss(outputs, rows) if loss is None else loss(outputs, rows)).item()
    return 1 / value if value > LEAST_LOSS else 1.0
