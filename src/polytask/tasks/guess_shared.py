"""Guesses which tasks are different label columns of one file, some of whose labels are empty (`share_rows`)."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from polytask.settings import TaskSpec
from polytask.tasks.guess import LEFT_OUT, Guess
from polytask.tasks.siblings import TRAIN

KINDS = ("classes", "yes_no", "score", "multilabel")


def with_shared_rows(guesses: Mapping[str, Guess]) -> dict[str, Guess]:
    """Returns the guesses, in which tasks of the same files and texts share rows if a label of one of them is empty.

    An empty label of kind multilabel is a row without a class, so such a task keeps its rows to itself.
    """
    groups: dict[object, list[Guess]] = {}
    for guess in guesses.values():
        spec = guess.spec
        if spec.kind in KINDS and spec.text and spec.label and not (spec.kind == "multilabel" and guess.has_blanks):
            groups.setdefault((os.path.abspath(str(spec.train)), spec.dev, spec.text), []).append(guess)
    shared = dict(guesses)
    for members in groups.values():
        if len(members) > 1 and any(guess.has_blanks for guess in members):
            group = _name(members[0].spec, guesses)
            others = {guess.spec.name: [m.spec.name for m in members if m is not guess] for guess in members}
            for guess in members:
                reason = f"share_rows: the rows of {', '.join(others[guess.spec.name])}; empty labels are masked"
                *others_given, dev = (given.replace(LEFT_OUT, "") for given in guess.reasons)
                spec = replace(guess.spec, share_rows=group, blank_labels="stop")
                shared[spec.name] = replace(guess, spec=spec, reasons=[*others_given, reason, dev])
    return shared


def _name(spec: TaskSpec, tasks: Mapping[str, Guess]) -> str:
    """Returns the name of the file without `train`, which no task may have."""
    stem = Path(str(spec.train).rpartition(":")[2]).stem
    name = re.sub(r"[^A-Za-z0-9_]+", "-", TRAIN.sub("", stem)).strip("-_")[:40] or "rows"
    return name if name not in tasks else f"{name}-rows"
