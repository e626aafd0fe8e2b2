"""A memory of past examples of each task. Knows indices; knows no text, no model and no policy.

Which examples are kept and drawn depends only on (seed, task, number of examples seen or step), so the state is the
kept indices and the counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from polytask import seeds
from polytask.policies.base import MemoryPlan


class Memory:
    """Keeps up to `plan.size` examples of each task."""

    def __init__(self, plan: MemoryPlan, tasks: Sequence[str], seed: int) -> None:
        self.plan = plan
        self.seed = seed
        self.kept: dict[str, list[int]] = {task: [] for task in tasks}
        self.seen = dict.fromkeys(tasks, 0)

    def observe(self, task: str, indices: Sequence[int]) -> None:
        """Add examples that were part of a step."""
        kept, size, number = self.kept[task], self.plan.size, self.seen[task]
        self.seen[task] += len(indices)
        free = max(size - len(kept), 0)
        kept += indices[:free]
        others = list(enumerate(indices[free:], start=number + free))
        if self.plan.keep == "ring":
            for number, index in others:
                kept[number % size] = index
        elif self.plan.keep == "reservoir":
            rngs = seeds.generators(self.seed, "keep", task, numbers=[number for number, _ in others])
            for (number, index), rng in zip(others, rngs, strict=True):
                place = int(rng.integers(number + 1))
                if place < size:
                    kept[place] = index

    def fill(self, task: str, examples: int) -> None:
        """Fill the memory of a task that was trained before with a uniform sample of all its examples."""
        order = seeds.generator(self.seed, "fill", task).permutation(examples)
        self.kept[task], self.seen[task] = order[: self.plan.size].tolist(), examples

    def draw(self, task: str, count: int, step: int) -> list[int]:
        """Draw up to `count` of a task's kept examples without replacement."""
        kept = self.kept[task]
        rng = seeds.generator(self.seed, "remember", task, step)
        return [kept[i] for i in rng.permutation(len(kept))[:count].tolist()]

    def others(self, tasks: Sequence[str]) -> list[str]:
        """Return the tasks with a non-empty memory, except these."""
        return [task for task, kept in self.kept.items() if kept and task not in tasks]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": {task: list(kept) for task, kept in self.kept.items()}, "seen": dict(self.seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.kept = {task: [int(i) for i in state["kept"].get(task, ())] for task in self.kept}
        self.seen = {task: int(state["seen"].get(task, 0)) for task in self.seen}
