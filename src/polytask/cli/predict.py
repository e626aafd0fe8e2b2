"""polytask predict: ask a trained run."""

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
        str | None, typer.Option("--input", help="A csv, tsv, jsonl or parquet file of texts.", show_default=False)
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--output", help="Where the file with predictions goes.", show_default=False)
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Text column(s) of the input, with commas between; left out: as in training.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, or bf16: faster where the hardware has it, with scores that differ a little.")
    ] = "fp32",
) -> None:
    """Predict one text, one pair, or a whole file of any size; one task, some, or all that the texts fit.

    Examples:

        polytask predict runs/quickstart --task opinion --text "Not bad at all."

        polytask predict runs/quickstart --task question --text "How old is it?" --text2 "What is its age?"

        polytask predict runs/quickstart --task opinion --input new.csv --output predicted.csv

        polytask predict runs/quickstart --input new.csv --output predicted.csv
    """
    if (text is None) == (source is None):
        raise typer.BadParameter("give either --text or --input")
    if (source is None) != (target is None):
        raise typer.BadParameter("--input and --output go together")
    predictor = polytask.load(folder, precision=precision)
    console = plain_console()
    if text is not None:
        if not text.strip() or (text2 is not None and not text2.strip()):
            raise polytask.UserError("predict: the text is empty")
        for (prediction,) in predictor.predict_tasks(text, text2, task).values():
            console.print(shown(prediction), highlight=False, soft_wrap=True)
    else:
        assert source is not None
        assert target is not None
        names = [name.strip() for name in columns.split(",")] if columns else None
        count = polytask.predict_file(predictor, task, source, target, names)
        console.print(f"{count:,} predictions: {target}", highlight=False, soft_wrap=True)


def shown(prediction: "polytask.Prediction") -> str:
    """`opinion: positive (positive 0.81, neutral 0.12, ...)`, or `similarity: 3.42`."""
    if prediction.probabilities is None:
        return f"{prediction.task}: {prediction.label:.2f}"
    ordered = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    rest = f", and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return f"{prediction.task}: {prediction.label} ({', '.join(f'{n} {p:.2f}' for n, p in ordered[:5])}{rest})"
