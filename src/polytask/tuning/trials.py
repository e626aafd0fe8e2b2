"""The trials of a search, in an Optuna database that optuna-dashboard opens. The only file that imports Optuna.

A trial is one choice of settings. Its score at each length that it was trained for is an intermediate value, whose step
is the number of ninths of the recipe's steps: 1, 3 or 9. A trial that was trained for all steps is complete, one that
was dropped earlier is pruned. The database is all that a search remembers, together with its runs.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polytask.disk.writable import make_folder
from polytask.studies.table import is_finite
from polytask.tuning.fields import Field, Range
from polytask.types import UserError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

DATABASE = "trials.sqlite3"
MOST_SUGGESTIONS = 20
"""Suggestions to ask for in a row, before a space that has no untried settings counts as exhausted."""
FEWEST_TRIALS = 6
"""Importances of fewer trials would be noise."""


@dataclass(frozen=True)
class Trial:
    """One choice of settings, and its scores so far."""

    number: int
    bracket: int
    settings: Mapping[str, Any]
    """The value of each varied field, as a recipe has it."""
    state: str
    """running, complete, pruned or fail."""
    scores: Mapping[int, float]
    """By ninths of the recipe's steps."""
    seconds: Mapping[int, float]
    runs: Mapping[int, str]
    """The key of the run of each length."""
    error: str | None = None

    @property
    def rank(self) -> tuple[int, float]:
        """A longer run counts more than a higher score."""
        longest = max(self.scores, default=0)
        return longest, self.scores.get(longest, float("-inf"))


class Trials:
    """The trials of one search."""

    def __init__(self, folder: Path, name: str, fields: Sequence[Field], seed: int) -> None:
        self.optuna = _import_optuna()
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        self.fields, self.seed = fields, seed
        make_folder(folder)
        # A dashboard that reads at the same time makes sqlite wait.
        storage = self.optuna.storages.RDBStorage(
            f"sqlite:///{folder.resolve() / DATABASE}", engine_kwargs={"connect_args": {"timeout": 60}}
        )
        self.study = self.optuna.create_study(
            study_name=name, storage=storage, direction="maximize", load_if_exists=True
        )

    def all(self) -> list[Trial]:
        return [_trial(frozen) for frozen in self.study.get_trials(deepcopy=False)]

    def running(self) -> list[Trial]:
        """Returns the trials of a bracket that was interrupted."""
        return [trial for trial in self.all() if trial.state == "running"]

    def start(self, bracket: int, count: int, first: Mapping[str, Any] | None = None) -> list[Trial]:
        """Adds up to `count` trials with settings that were not tried before, `first` among them."""
        known = self.all()
        chosen = [] if first is None else [dict(first)]
        tried = [trial.settings for trial in known if trial.scores or trial.error or trial.state == "running"]
        chosen += self._suggest(count - len(chosen), [*tried, *chosen])
        for settings in chosen:
            self.study.add_trial(
                self.optuna.trial.create_trial(
                    state=self.optuna.trial.TrialState.RUNNING,
                    params={field.field: field.parameter(settings[field.field]) for field in self.fields},
                    distributions=self._distributions(),
                    user_attrs={"bracket": bracket, "settings": settings},
                )
            )
        return self.all()[len(known) :]

    def _suggest(self, count: int, tried: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        seen = {json.dumps(settings, sort_keys=True) for settings in tried}
        finished = [t for t in self.study.get_trials(deepcopy=False) if t.state.is_finished()]
        # In memory, so that suggestions which were tried before never reach the database.
        sampler = self.optuna.samplers.TPESampler(seed=self.seed + len(finished))
        memory = self.optuna.create_study(direction="maximize", sampler=sampler)
        memory.add_trials(finished)
        chosen: list[dict[str, Any]] = []
        in_a_row = 0
        while len(chosen) < count and in_a_row < MOST_SUGGESTIONS:
            parameters = memory.ask(self._distributions()).params
            settings = {field.field: field.value(parameters[field.field]) for field in self.fields}
            key = json.dumps(settings, sort_keys=True)
            in_a_row = in_a_row + 1 if key in seen else 0
            chosen += [] if key in seen else [settings]
            seen.add(key)
        return chosen

    def _distributions(self) -> "dict[str, BaseDistribution]":
        return {field.field: self._distribution(field) for field in self.fields}

    def _distribution(self, field: Field) -> "BaseDistribution":
        kinds = self.optuna.distributions
        distribution: BaseDistribution
        if not isinstance(field, Range):
            distribution = kinds.CategoricalDistribution([field.parameter(value) for value in field.values])
        elif field.integer:
            distribution = kinds.IntDistribution(int(field.low), int(field.high), log=field.log)
        else:
            distribution = kinds.FloatDistribution(field.low, field.high, log=field.log)
        return distribution

    # --- results ------------------------------------------------------------------------------------------------------
    def report(self, trial: Trial, ninths: int, score: float, seconds: float, run: str) -> None:
        """Records the score of a run."""
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        if ninths not in frozen.intermediate_values:
            live = self.optuna.trial.Trial(self.study, frozen._trial_id)  # also of a process that was killed
            attributes = frozen.user_attrs
            live.set_user_attr("seconds", {**attributes.get("seconds", {}), str(ninths): seconds})
            live.set_user_attr("runs", {**attributes.get("runs", {}), str(ninths): run})
            live.report(score, ninths)

    def end(self, trial: Trial, state: str, error: str | None = None) -> None:
        """Ends a trial as complete, pruned or fail."""
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        if error is not None:
            self.optuna.trial.Trial(self.study, frozen._trial_id).set_user_attr("error", error)
        values = max(frozen.intermediate_values.items())[1] if state == "complete" else None
        self.study.tell(trial.number, values, state=self.optuna.trial.TrialState[state.upper()])

    def note(self, name: str) -> Any:
        """Returns what `take_note` has kept in the database; None if it is not there."""
        return self.study.user_attrs.get(name)

    def take_note(self, name: str, value: Any) -> None:
        self.study.set_user_attr(name, value)

    def importances(self) -> dict[str, float]:
        """Returns each field's share of the differences between the scores of the shortest runs, which all trials have.

        They are those of PED-ANOVA; empty for fewer than six trials, or if nearly all have the same score.
        """
        shortest = [t for t in self.study.get_trials(deepcopy=False) if t.intermediate_values]
        if len(shortest) < FEWEST_TRIALS:
            return {}
        memory = self.optuna.create_study(direction="maximize")
        memory.add_trials(
            [
                self.optuna.trial.create_trial(
                    params=t.params, distributions=t.distributions, value=min(t.intermediate_values.items())[1]
                )
                for t in shortest
            ]
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Target and region quantiles")
            try:
                shares: dict[str, float] = self.optuna.importance.get_param_importances(memory)
            except UserWarning:  # too many equal scores
                return {}
        return {field: float(share) for field, share in shares.items() if is_finite(share)}


def _trial(frozen: "FrozenTrial") -> Trial:
    attributes = frozen.user_attrs
    return Trial(
        frozen.number,
        attributes["bracket"],
        attributes["settings"],
        frozen.state.name.lower(),
        dict(frozen.intermediate_values),
        {int(ninths): seconds for ninths, seconds in attributes.get("seconds", {}).items()},
        {int(ninths): run for ninths, run in attributes.get("runs", {}).items()},
        attributes.get("error"),
    )


def check_optuna() -> None:
    """Raises a UserError that names the extra if Optuna is not installed."""
    _import_optuna()


def _import_optuna() -> Any:
    try:
        import optuna  # noqa: PLC0415  (an extra)
        import optuna.importance  # noqa: PLC0415
    except ImportError as error:
        raise UserError("polytask tune needs the Optuna library: pip install 'polytask[tune]'") from error
    return optuna
