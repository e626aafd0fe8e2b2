"""The tables commands print."""

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from polytask import EvalReport
from polytask.cli.tables import scores_table
from polytask.types import MetricValue, TaskScore


def shown(report: EvalReport, summary: dict[str, Any] | None = None, width: int = 140) -> str:
    said = io.StringIO()
    Console(file=said, width=width).print(scores_table(report, SimpleNamespace(**summary or {})))  # type: ignore[arg-type]
    return said.getvalue()


def test_scores_stand_with_their_intervals_and_what_guessing_gives() -> None:
    metrics = {"accuracy": MetricValue(0.7344, 0.7, 0.77), "f1": MetricValue(0.5, 0.4, 0.6)}
    report = EvalReport(5, "dev", {"mood": TaskScore(0.1, metrics, "accuracy", 1234)})
    text = shown(report, {"baselines": {"mood": {"metric": "accuracy", "value": 0.25, "what": "always 'fine'"}}})
    for words in ("mood", "1,234", "0.734", "0.700 to 0.770", "0.250", "f1"):
        assert words in text
    assert "lower is better" not in text


def test_scores_are_shown_with_those_of_the_untrained_model() -> None:
    metrics = {"accuracy": MetricValue(0.7344, 0.7, 0.77), "f1": MetricValue(0.5, 0.4, 0.6)}
    report = EvalReport(5, "dev", {"mood": TaskScore(0.1, metrics, "accuracy", 1234)})
    start = {"mood": {"metrics": {"accuracy": {"value": 0.311}, "f1": {"value": 0.222}}}}
    simple = {"mood": {"metric": "accuracy", "value": 0.444, "what": "near"}}
    text = shown(report, {"start": start, "untrained": simple})
    assert [words in text for words in ("step 0", "untrained", "0.311", "0.222", "0.444")] == [True] * 5
    assert "guess" not in text


def test_a_table_is_short_and_has_the_users_own_metrics() -> None:
    names = ("accuracy", "f1", "matthews", "f1_weighted", "auc", "log_loss", "mine")
    metrics = {name: MetricValue(0.5, 0.4, 0.6, name != "log_loss") for name in names}
    report = EvalReport(5, "dev", {"mood": TaskScore(0.1, metrics, "log_loss", 9, greater_is_better=False)})
    text = shown(report)
    assert [name for name in names if f" {name} " in text] == ["accuracy", "f1", "log_loss", "mine"]
    assert text.index("log_loss \u2193") < text.index("accuracy")


def test_the_table_shows_that_a_lower_perplexity_is_better() -> None:
    words = TaskScore(3.0, {"perplexity": MetricValue(20.5, 18, 23)}, "perplexity", 9, greater_is_better=False)
    text = shown(EvalReport(5, "dev", {"words": words}))
    assert "perplexity \u2193" in text
    assert "\u2193: lower is better" in text


def test_a_usual_table_fits_a_terminal_of_80_columns() -> None:
    metrics = {name: MetricValue(0.7344, 0.7, 0.77) for name in ("accuracy", "matthews", "spearman")}
    report = EvalReport(5, "dev", {"similarity": TaskScore(0.1, metrics, "accuracy", 12345)})
    simple = {"similarity": {"metric": "accuracy", "value": 0.25, "what": "always the same score"}}
    text = shown(report, {"baselines": simple, "start": simple, "untrained": simple}, width=80)
    assert "similarity" in text
    assert "0.700 to 0.770" in text
    assert "\u2026" not in text  # nothing is cut
    assert len(text.splitlines()) == 8
