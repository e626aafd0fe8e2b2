"""The answer of a search that has no final runs: the best trial, and why the question stays open."""

from types import SimpleNamespace
from typing import cast

from polytask.tuning.plan import START, TunePlan
from polytask.tuning.result import _answer, _winner
from polytask.tuning.trials import Trial

PLAN = cast(TunePlan, SimpleNamespace(hold_back=0.5, start={"lr": 1.0}))


def trial(number: int, score: float | None, lr: float = 2.0) -> Trial:
    return Trial(number, 0, {"lr": lr}, "running", {} if score is None else {9: score}, {}, {})


def test_no_trial_has_finished() -> None:
    trials = [trial(0, None)]
    assert _winner(PLAN, [], None, trials) == START
    answer, sentence = _answer(PLAN, START, None, trials)
    assert answer == "cannot be told"
    assert sentence == "Beats the recipe on held-back rows: cannot be told. No trial has finished."


def test_without_final_runs_the_best_trial_wins_and_the_answer_is_open() -> None:
    trials = [trial(0, 0.4, lr=1.0), trial(1, 0.6), trial(2, None)]
    assert _winner(PLAN, [], None, trials) == "trial 1"
    assert _winner(PLAN, [], None, trials[:1]) == START  # the recipe's own settings
    answer, sentence = _answer(PLAN, "trial 1", None, trials)
    assert answer == "cannot be told"
    assert sentence.endswith("There are no final runs with fresh seeds; trial 1 has the best score of the search.")
