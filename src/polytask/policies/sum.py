"""The sum of the tasks' losses with fixed weights."""

from polytask.policies.base import Policy


class WeightedSum(Policy):
    """`sum_i w_i loss_i`, where w_i is the task's `weight` in the recipe times its `train.loss_scale`."""

    capturable = True
