"""Experience replay: past examples are trained on again together with the new ones."""

from polytask.policies.base import Keep, MemoryPlan, Policy, PolicyContext
from polytask.settings import Count


class Replay(Policy):
    """Experience replay: `sum_i w_i loss_i` over the step's tasks and a batch from the memory of every other task.

    Memories as for `gem`, but their losses are trained on like any other, including heads and adapters.
    Paper: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
    """

    capturable = True

    def __init__(
        self, context: PolicyContext, *, size: Count = 256, keep: Keep = "reservoir", batch: Count | None = None
    ) -> None:
        super().__init__(context)
        self.memory = MemoryPlan(size, keep, batch, trained=True)
