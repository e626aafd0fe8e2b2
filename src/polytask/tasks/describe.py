"""What a split holds, in numbers for people: label balance, lengths, and what guessing would score."""

from typing import Any

import numpy as np

from polytask.tasks.task import Split
from polytask.text.packing import Packer
from polytask.types import LabelSpace

SHOWN_BROKEN_ROWS = 50


def describe_split(split: Split, labels: LabelSpace, packer: Packer, apart: bool) -> dict[str, Any]:
    """Rows, skipped rows, label balance, and sequence lengths with special tokens."""
    text_lengths = split.store.lengths()
    room = packer.max_length
    if text_lengths.shape[1] == 2 and not apart:
        lengths = text_lengths.sum(axis=1) + 3
    else:
        lengths = text_lengths.max(axis=1) + 2
    counts, edges = np.histogram(np.minimum(lengths, room), bins=min(20, room), range=(0, room))
    return {
        "rows": len(split),
        "skipped": split.num_broken,
        "skipped_rows": [
            {"row": b.row, "column": b.column, "value": b.value, "problem": b.problem}
            for b in split.broken[:SHOWN_BROKEN_ROWS]
        ],
        "labels": label_balance(split, labels),
        "lengths": {
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "mean": float(np.minimum(lengths, room).mean()),
            "max": int(lengths.max()),
            "truncated": int((lengths > room).sum()),
        },
    }


def label_balance(split: Split, labels: LabelSpace) -> dict[str, Any]:
    if labels.kind == "score":
        edges = np.linspace(0, 1, 11)
        counts, _ = np.histogram(split.labels, bins=edges)
        return {"edges": [labels.unscaled(edge) for edge in edges.tolist()], "counts": counts.tolist()}
    counts = np.bincount(split.labels.astype(np.int64), minlength=len(labels.classes))
    return {"names": list(labels.classes), "counts": counts.tolist()}


def baseline(split: Split, labels: LabelSpace) -> dict[str, Any]:
    """What the best constant answer scores: the commonest class's share, or no correlation at all."""
    if labels.kind == "score":
        return {"metric": "pearson", "value": 0.0, "what": "always the same score"}
    counts = np.bincount(split.labels.astype(np.int64), minlength=len(labels.classes))
    commonest = labels.classes[int(counts.argmax())]
    return {"metric": "accuracy", "value": float(counts.max() / counts.sum()), "what": f"always '{commonest}'"}
