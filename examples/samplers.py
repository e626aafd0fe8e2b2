"""Polytask's samplers as batch samplers of a DataLoader: which task is in which batch, and how to resume."""

from collections import Counter

from torch.utils.data import ConcatDataset, DataLoader, Dataset

from polytask.samplers import Annealed, Mixed, SquareRoot, TaskBatchSampler

SIZES = {"reviews": 6400, "questions": 400, "pairs": 100}


class Rows(Dataset[tuple[str, int]]):
    """A dataset whose items say which task they belong to."""

    def __init__(self, task: str) -> None:
        self.task = task

    def __len__(self) -> int:
        return SIZES[self.task]

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.task, index


if __name__ == "__main__":
    data = ConcatDataset([Rows(task) for task in SIZES])
    for method in (SquareRoot, Annealed, Mixed):
        batches = TaskBatchSampler(method, SIZES, batch_size=32, epochs=3, steps_per_epoch=100, seed=0)
        loader = DataLoader(data, batch_sampler=batches, collate_fn=list)
        for epoch in range(3):
            counts = Counter(task for batch in loader for task, _ in batch)
            print(f"{method.__name__:10} epoch {epoch + 1}:", *(f"{counts[task]} {task}" for task in SIZES))

    batches = TaskBatchSampler(SquareRoot, SIZES, batch_size=32, steps_per_epoch=100)
    all_batches = list(batches)
    resumed = TaskBatchSampler(SquareRoot, SIZES, batch_size=32, steps_per_epoch=100)
    resumed.load_state_dict({"steps": 60})
    print("resumed after 60 batches:", "equal" if list(resumed) == all_batches[60:] else "different")
