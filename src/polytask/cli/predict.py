"""polytask predict: ask a trained run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import polytask
from polytask.cli.console import plain_console


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.", show_default=False)],
    task: Annotated[
        list[str] | None,
        typer.Option(help="A task of the run to ask; may be given several times. Left out: every task that fits."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text to ask about.", show_default=False)] = None,
    text2: Annotated[str | None, typer.Option(help="The second text of a pair.", show_default=False)] = None,
    source: Annotated[
        str | None,
        typer.Option("--input", help="A csv, tsv, jsonl, parquet or xlsx file of texts.", show_default=False),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Where the file with predictions goes: csv, tsv, jsonl or parquet by its ending.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Text column(s) of the input, with commas between; left out: as in training.")
    ] = None,
    probabilities: Annotated[
        str,
        typer.Option(
            help="top: of the predicted class (with --text, of the five likeliest). all: of every class. none: only "
            "the prediction."
        ),
    ] = "top",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row without text, instead of leaving it empty.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an output file that exists.")] = False,
    precision: Annotated[
        str, typer.Option(help="fp32, or bf16: faster where the hardware has it, with scores that differ a little.")
    ] = "fp32",
) -> None:
    """Predict one text, one pair, or a whole file of any size; one task, some, or all that the texts fit.

    Examples:

        polytask predict runs/quickstart --task opinion --text "Not bad at all."

        polytask predict runs/quickstart --task question --text "How old is it?" --text2 "What is its age?"

        polytask predict runs/quickstart --task opinion --input new.csv --output predicted.csv

        polytask predict runs/quickstart --input new.csv --output predicted.csv --probabilities all
    """
    if (text is None) == (source is None):
        raise typer.BadParameter("give either --text or --input")
    if (source is None) != (target is None):
        raise typer.BadParameter("--input and --output go together")
    if probabilities not in ("top", "all", "none"):
        raise typer.BadParameter(f"--probabilities must be top, all or none, found {probabilities!r}")
    predictor = polytask.load(folder, precision=precision, few=text is not None)
    console = plain_console()
    if text is not None:
        if not text.strip() or (text2 is not None and not text2.strip()):
            raise polytask.UserError("predict: the text is empty")
        for (prediction,) in predictor.predict_tasks(text, text2, task).values():
            console.print(shown(prediction, probabilities), highlight=False, soft_wrap=True)
    else:
        assert source is not None
        assert target is not None
        names = [name.strip() for name in columns.split(",")] if columns else None
        done = polytask.predict_file(
            predictor, task, source, target, names, probabilities=probabilities, strict=strict, force=force
        )
        console.print(f"{done.rows:,} {'row' if done.rows == 1 else 'rows'}: {target}", highlight=False, soft_wrap=True)
        for line in without_text(done.rows, done.without_text):
            console.print(line, highlight=False, soft_wrap=True)


def shown(prediction: "polytask.Prediction", probabilities: str = "top") -> str:
    """`opinion: positive (positive 0.81, neutral 0.12, ...)`, or `similarity: 3.42`."""
    if prediction.probabilities is None:
        return f"{prediction.task}: {prediction.label:.2f}"
    if probabilities == "none":
        return f"{prediction.task}: {prediction.label}"
    ordered = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    most = 5 if probabilities == "top" else len(ordered)
    rest = f", and {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{prediction.task}: {prediction.label} ({', '.join(f'{n} {p:.2f}' for n, p in ordered[:most])}{rest})"


def without_text(rows: int, counts: Mapping[str, int]) -> list[str]:
    """`12 of 1,000 rows have no text and got no prediction`: one line, or one for each task where they differ."""
    lines = {
        task: f"{count:,} of {rows:,} {'row has' if rows == 1 else 'rows have'} no text and got no prediction"
        for task, count in counts.items()
        if count
    }
    if len(set(counts.values())) == 1:
        return list(lines.values())[:1]
    return [f"{task}: {line}" for task, line in lines.items()]
