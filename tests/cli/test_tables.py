"""The tables commands print."""

import io

from rich.console import Console

from polytask import EvalReport
from polytask.cli.tables import scores_table
from polytask.types import MetricValue, TaskScore


def shown(report: EvalReport, baselines: dict[str, dict[str, object]] | None = None) -> str:
    said = io.StringIO()
    Console(file=said, width=120).print(scores_table(report, baselines))
    return said.getvalue()


def test_scores_stand_with_their_intervals_and_what_guessing_gives() -> None:
    metrics = {"accuracy": MetricValue(0.7344, 0.7, 0.77), "f1": MetricValue(0.5, 0.4, 0.6)}
    report = EvalReport(5, "dev", {"mood": TaskScore(0.1, metrics, "accuracy", 1234)})
    text = shown(report, {"mood": {"metric": "accuracy", "value": 0.25, "what": "always 'fine'"}})
    for words in ("mood", "1,234", "0.734", "0.700 to 0.770", "0.250 (always 'fine')", "f1"):
        assert words in text
    assert "lower is better" not in text


def test_of_a_perplexity_the_table_says_which_way_is_better() -> None:
    words = TaskScore(3.0, {"perplexity": MetricValue(20.5, 18, 23)}, "perplexity", 9, greater_is_better=False)
    assert "perplexity (lower is better)" in shown(EvalReport(5, "dev", {"words": words}))
