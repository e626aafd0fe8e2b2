"""The cards of exported models, in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from polytask.export.replay import Replay
from polytask.runs.folder import find_model


def export_card(
    run: Path, replays: Mapping[str, Replay], left_out: Mapping[str, str], unchecked: Sequence[str], precision: str
) -> str:
    """The card of an ONNX model, with its comparison with the run."""
    return card_with(run, "\n".join(_section(replays, left_out, unchecked, precision)))


def card_with(run: Path, section: str) -> str:
    """The run's own card, with one more section before the others."""
    model = find_model(run)
    own = model.card.read_text(encoding="utf-8") if model is not None and model.card.is_file() else f"# {run.name}\n"
    head, mark, rest = own.partition("\n## ")
    return f"{head.rstrip()}\n\n{section.rstrip()}\n{mark}{rest}"


def _section(
    replays: Mapping[str, Replay], left_out: Mapping[str, str], unchecked: Sequence[str], precision: str
) -> Iterator[str]:
    yield f"## ONNX export ({precision})\n"
    yield "`model.onnx` has all tasks; `export.json` says what its outputs mean; `tokenizer.json` is the tokenizer."
    yield "Load it with `polytask.load_onnx` or `polytask predict --engine onnx`, or with onnxruntime alone.\n"
    yield "The dev rows were predicted with the run and with the export:\n"
    yield from replay_table(replays)
    for task in unchecked:
        yield f"\n{task} has no dev rows, so its export was not compared."
    for task, reason in left_out.items():
        yield f"\n{task} is not part of the export: {reason}."


def replay_table(replays: Mapping[str, Replay]) -> Iterator[str]:
    """The comparison as a Markdown table."""
    yield "| task | rows | largest difference of an output | other labels | metric | score | change | 95 % interval |"
    yield "|---|---|---|---|---|---|---|---|"
    for task, one in replays.items():
        flipped = "" if one.flipped is None else f"{one.flipped:,}"
        change = f"{one.change:+.4f} | {one.change_low:+.4f} to {one.change_high:+.4f}"
        yield f"| {task} | {one.rows:,} | {one.largest:.1e} | {flipped} | {one.metric} | {one.score:.3f} | {change} |"
