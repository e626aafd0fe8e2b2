"""Checks of tasks that share rows (`share_rows`): different label columns of the same files."""

from collections.abc import Mapping

from polytask.recipe.records import TASK_NAME, Recipe
from polytask.settings import TaskSpec
from polytask.types import UserError

SAME = ("train", "dev", "test", "text", "tags", "format", "delimiter", "quoting", "encoding")
"""The fields that tasks of one group must have in common."""
OTHER_KINDS = {
    "text": "which has no labels",
    "match": "which has no labels",
    "tokens": "whose words have labels, and which encodes windows of texts",
}
"""The kinds that have no use for blank labels and shared rows."""


def groups_of(tasks: Mapping[str, TaskSpec]) -> dict[str, list[TaskSpec]]:
    """Returns the tasks of each group that share rows, by the group's name."""
    groups: dict[str, list[TaskSpec]] = {}
    for spec in tasks.values():
        if spec.share_rows is not None:
            groups.setdefault(spec.share_rows, []).append(spec)
    return groups


def check_shared_rows(recipe: Recipe, where: str) -> None:
    """Raises a UserError if tasks that share rows name different ones, or cannot share them."""
    for name, spec in recipe.tasks.items():
        if spec.share_rows is not None and spec.has_options:
            raise UserError(
                f"{where}: tasks.{name}.share_rows: must be left out for kind choice, which reads the text with each "
                "of its options; `blank_labels: skip` leaves out rows without a label"
            )
        if spec.skips_blanks and spec.kind in OTHER_KINDS:
            field, why = "blank_labels" if spec.share_rows is None else "share_rows", OTHER_KINDS[spec.kind]
            raise UserError(f"{where}: tasks.{name}.{field}: must be left out for kind {spec.kind}, {why}")
    for group, specs in groups_of(recipe.tasks).items():
        first, field = specs[0], f"{where}: tasks.{specs[0].name}.share_rows"
        if group in recipe.tasks or not TASK_NAME.fullmatch(group):
            why = "must not be that of a task" if group in recipe.tasks else "must be letters, digits, - and _"
            raise UserError(f"{field}: the name of the group {why}, found {group!r:.80}")
        if recipe.train.stop == "per_task":
            raise UserError(
                f"{field}: cannot be combined with train.stop: per_task, because a task cannot leave the rows that it "
                "shares"
            )
        for spec in specs:
            _check_member(spec, recipe, f"{where}: tasks.{spec.name}")
            for name in SAME:
                if getattr(spec, name) != getattr(first, name):
                    raise UserError(
                        f"{where}: tasks.{spec.name}.{name}: must be that of {first.name}, which has the same "
                        f"`share_rows: {group}`; found {_shown(getattr(spec, name))} and {_shown(getattr(first, name))}"
                    )


def _check_member(spec: TaskSpec, recipe: Recipe, where: str) -> None:
    for field, given in (("unlabelled", spec.unlabelled), ("teachers", recipe.teachers.get(spec.name))):
        if given:
            raise UserError(
                f"{where}.share_rows: cannot be combined with {field}: teachers have no outputs for shared rows"
            )


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
