"""polytask predict: predicts with a trained run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

import polytask
from polytask.cli.console import plain_console
from polytask.cli.cuda import start_cuda
from polytask.cli.options import RunFolder, TrustPlugins

LEFT_OUT = "without spans whose probability is below the threshold"
COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
"""The classes of marked spans, in the order of their appearance in the text."""
WITHOUT_TEXT = "no text and no prediction"
TRUNCATED = "more tokens than max_length, and only a part of the text was used"
ABSTAINED = "no label, or fewer spans, because of probabilities below the threshold"


def run(
    folder: RunFolder,
    task: Annotated[
        list[str] | None,
        typer.Option(metavar="TASK", help="The task to predict. Repeatable. Default: all tasks that fit the input."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text to predict. Repeat it for tasks with several texts.", show_default=False),
    ] = None,
    text2: Annotated[str | None, typer.Option(help="The second text of a pair.", show_default=False)] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option, for tasks of kind choice. Repeatable.", show_default=False),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="FILE", help="A csv, tsv, jsonl, parquet or xlsx file to predict.", show_default=False
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The file to write: the input's columns and the predictions, as csv, tsv, jsonl or parquet.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="COLUMN[,COLUMN]", help="Text column(s) of the input. Default: as in the training data."),
    ] = None,
    probabilities: Annotated[
        str,
        typer.Option(
            help="top: the predicted class's probability (with --text, the five highest). all: every class's "
            "probability. none: only the prediction."
        ),
    ] = "top",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a row without text, instead of leaving its prediction empty.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing output file.")] = False,
    precision: Annotated[
        str, typer.Option(help="float32 or bf16. bf16 is faster if the hardware supports it; scores differ slightly.")
    ] = "float32",
    abstain_below: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Leave the label empty where no class has at least this probability, and leave out spans with less. "
            "Default: as in the recipe.",
            show_default=False,
        ),
    ] = None,
    trust_plugins: TrustPlugins = False,
) -> None:
    """Predict one text, one pair, or a file of any size, with one or more tasks.

    Examples:

        polytask predict runs/quickstart --task opinion --text "Not bad at all."

        polytask predict runs/quickstart --task question --text "How old is it?" --text2 "What is its age?"

        polytask predict runs/quickstart --task opinion --input new.csv --output predicted.csv

        polytask predict runs/quickstart --input new.csv --output predicted.csv --probabilities all
    """
    if (not text) == (source is None):
        raise typer.BadParameter("pass either --text or --input")
    if (source is None) != (target is None):
        raise typer.BadParameter("--input and --output must be used together")
    if probabilities not in ("top", "all", "none"):
        raise typer.BadParameter(f"--probabilities must be top, all or none, found {probabilities!r}")
    start_cuda("auto")
    predictor = polytask.load(
        folder, precision=precision, few=bool(text), abstain_below=abstain_below, trust_plugins=trust_plugins
    )
    if text:
        texts = (*text, *([] if text2 is None else [text2]))
        if not all(one.strip() for one in texts):
            raise polytask.UserError("predict: the text is empty")
        for prediction in predict_one(predictor, texts, option, task):
            print_prediction(prediction, texts[0], probabilities)
        return
    assert source is not None
    assert target is not None
    names = [name.strip() for name in columns.split(",")] if columns else None
    done = polytask.predict_file(
        predictor, task, source, target, names, probabilities=probabilities, strict=strict, force=force
    )
    counts = (done.without_text, WITHOUT_TEXT), (done.truncated, TRUNCATED), (done.abstained, ABSTAINED)
    print_plain(f"{done.rows:,} {'row' if done.rows == 1 else 'rows'}: {target}")
    for line in (line for count, what in counts for line in count_lines(done.rows, count, what)):
        print_plain(line)


def print_plain(line: str | Text) -> None:
    plain_console().print(line, highlight=False, soft_wrap=True)


def print_prediction(prediction: "polytask.Prediction", text: str, probabilities: str) -> None:
    """Prints one prediction; tags of words as spans that are marked in the text."""
    if prediction.spans is not None:
        print_plain(mark_spans(prediction, text, probabilities))
        return
    print_plain(format_prediction(prediction, probabilities))
    if prediction.truncated:
        print_plain(f"{prediction.task}: warning: the text has {prediction.tokens:,} tokens and was truncated")


def predict_one(
    predictor: "polytask.Predictor", texts: Sequence[str], options: Sequence[str] | None, tasks: Sequence[str] | None
) -> "list[polytask.Prediction]":
    """The predictions of all tasks, or of the given ones, for one example; with options, of tasks of kind choice."""
    if not options:
        return [prediction for (prediction,) in predictor.predict_tasks([tuple(texts)], tasks=tasks).values()]
    specs = predictor.bundle.specs
    tasks = [name for name in specs if specs[name].has_options] if tasks is None else tasks
    if not tasks or len(texts) > 1 or not all(predictor.spec(name).has_options for name in tasks):
        raise polytask.UserError("predict: --option is for one --text and tasks of kind choice")
    return [prediction for name in tasks for prediction in predictor.predict(name, texts[0], options)]


def mark_spans(prediction: "polytask.Prediction", text: str, probabilities: str = "top") -> Text:
    """`entities: [Ada Lovelace PERSON 0.98] lived in [London PLACE 0.97].`, with a colour for each class."""
    marked = Text(f"{prediction.task}: ")
    styles: dict[str, str] = {}
    end = 0
    for span in prediction.spans or ():
        style = styles.setdefault(span.label, COLOURS[len(styles) % len(COLOURS)])
        share = "" if probabilities == "none" else f" {span.probability:.2f}"
        marked.append(text[end : span.start])
        marked.append(f"[{span.text}", f"bold {style}").append(f" {span.label}{share}]", style)
        end = span.end
    marked.append(text[end:])
    return marked.append(f"  ({LEFT_OUT})", "dim") if prediction.abstained else marked


def format_prediction(prediction: "polytask.Prediction", probabilities: str = "top") -> str:
    """`opinion: positive (positive 0.81, neutral 0.12, ...)`, `topics: billing, login (...)`, or `similarity: 3.42`."""
    if prediction.probabilities is None:
        return f"{prediction.task}: {prediction.label:.2f}"
    label = "no label" if prediction.abstained else prediction.label
    if isinstance(label, tuple):
        label = ", ".join(label) or "no class"
    if probabilities == "none":
        return f"{prediction.task}: {label}"
    ordered = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
    most = 5 if probabilities == "top" else len(ordered)
    rest = f", and {len(ordered) - most} more" if len(ordered) > most else ""
    return f"{prediction.task}: {label} ({', '.join(f'{n} {p:.2f}' for n, p in ordered[:most])}{rest})"


def count_lines(rows: int, counts: Mapping[str, int], what: str) -> list[str]:
    """`12 of 1,000 rows have no text and no prediction`: one line, or one per task if the tasks differ."""
    lines = {
        task: f"{count:,} of {rows:,} {'row has' if rows == 1 else 'rows have'} {what}"
        for task, count in counts.items()
        if count
    }
    if len(set(counts.values())) == 1:
        return list(lines.values())[:1]
    return [f"{task}: {line}" for task, line in lines.items()]
