"""polytask predict: predicts with a trained run."""

import os
from collections.abc import Mapping, Sequence
from glob import has_magic
from typing import Annotated, Literal, cast

import typer
from rich.text import Text

import polytask
from polytask.cli.bulk_prediction import predict_in_bulk
from polytask.cli.console import plain_console
from polytask.cli.cuda import start_cuda
from polytask.cli.options import RunFolder, TrustPlugins

BULK = ("local", "ray")
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
        typer.Option(
            "--task", metavar="TASK", help="The task to predict. Repeatable. Default: all tasks that fit the input."
        ),
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
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="A csv, tsv, jsonl, parquet or xlsx file to predict. With --engine local or ray: a pattern in quotes, "
            "a folder or a file, as a path or a URL (s3://..., gs://...). Repeatable.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The file to write: the input's columns and the predictions, as csv, tsv, jsonl or parquet. With "
            "--engine local or ray: a folder, as a path or a URL.",
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
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Overwrite an existing output file; with --engine local or ray, delete the folder's shards and start "
            "again.",
        ),
    ] = False,
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
    engine: Annotated[
        str,
        typer.Option(
            help="torch: one input, in this process. onnx: the same, with a folder written by `polytask export "
            "--format onnx`, or its run. local, ray: bulk prediction of many files, with torch, in several processes "
            "on this machine or with Ray; can be stopped and continued."
        ),
    ] = "torch",
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Workers of --engine local or ray. Default: one per GPU or, without GPUs, per CPU core, at most 16.",
            show_default=False,
        ),
    ] = None,
    rows_per_shard: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --engine local or ray: the most rows of a file of the output, and of work that a killed worker "
            "loses. Default: 16384.",
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: the cluster's address. Default: RAY_ADDRESS, else Ray is started on this machine.",
            show_default=False,
        ),
    ] = None,
    gpus_per_worker: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="With --engine ray: the GPUs that each worker reserves; with 0.5, two workers share one. Default: 1 "
            "if the cluster has GPUs, else 0.",
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

        polytask predict runs/quickstart/onnx --engine onnx --task opinion --text "Not bad at all."

        polytask predict runs/quickstart --input 'folder/*.parquet' --output predicted --engine local
    """
    if (not text) == (not sources):
        raise typer.BadParameter("pass either --text or --input")
    if (not sources) != (target is None):
        raise typer.BadParameter("--input and --output must be used together")
    if probabilities not in ("top", "all", "none"):
        raise typer.BadParameter(f"--probabilities must be top, all or none, found {probabilities!r}")
    if engine not in ("torch", "onnx", *BULK):
        raise typer.BadParameter(f"--engine must be torch, onnx, local or ray, found {engine!r}")
    if engine in BULK:
        if sources is None or target is None:
            raise typer.BadParameter(f"--engine {engine} is for --input and --output")
        if engine == "local" and (address is not None or gpus_per_worker is not None):
            raise typer.BadParameter("--address and --gpus-per-worker are for --engine ray")
        settings = polytask.BulkSettings(
            engine=cast(Literal["local", "ray"], engine),
            tasks=task,
            columns=split_names(columns),
            probabilities=probabilities,
            precision=precision,
            abstain_below=abstain_below,
            rows_per_shard=rows_per_shard,
            strict=strict,
            force=force,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            address=address,
            trust_plugins=trust_plugins,
        )
        in_bulk = predict_in_bulk(folder, sources, target, settings)
        print_counts(in_bulk.computed_rows, in_bulk)
        return
    if workers or rows_per_shard or address or gpus_per_worker is not None:
        raise typer.BadParameter(
            "--workers, --rows-per-shard, --address and --gpus-per-worker are for --engine local or ray"
        )
    if engine == "onnx" and precision != "float32":
        raise typer.BadParameter("--precision is for --engine torch; an ONNX model has its own")
    if engine == "onnx":
        predictor = polytask.load_onnx(folder, abstain_below=abstain_below, trust_plugins=trust_plugins)
    else:
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
    assert sources is not None
    assert target is not None
    check_one_file(sources)
    done = polytask.predict_file(
        predictor,
        task,
        sources[0],
        target,
        split_names(columns),
        probabilities=probabilities,
        strict=strict,
        force=force,
    )
    print_plain(f"{done.rows:,} {'row' if done.rows == 1 else 'rows'}: {target}")
    print_counts(done.rows, done)


def split_names(columns: str | None) -> list[str] | None:
    return [name.strip() for name in columns.split(",")] if columns else None


def check_one_file(sources: Sequence[str]) -> None:
    """Raises a UserError for what only bulk prediction can read."""
    first, what = sources[0], ""
    if len(sources) > 1:
        what = "several files"
    elif "://" in first:
        what = "a URL"
    elif not os.path.isfile(first) and (os.path.isdir(first) or has_magic(first)):
        what = "a folder" if os.path.isdir(first) else "a pattern"
    if what:
        raise polytask.UserError(f"{first}: --input is {what}; pass --engine local (or ray), which reads many files")


def print_counts(rows: int, done: "polytask.PredictedFile | polytask.PredictedFiles") -> None:
    """Prints how many rows have no prediction, were truncated or have no label."""
    counts = (done.without_text, WITHOUT_TEXT), (done.truncated, TRUNCATED), (done.abstained, ABSTAINED)
    for line in (line for count, what in counts for line in count_lines(rows, count, what)):
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
