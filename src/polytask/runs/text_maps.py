"""Heat maps of a finished run's encoder for one text: the arrays, and a page of them in the run's folder."""

from collections.abc import Sequence
from pathlib import Path

from polytask.disk.atomic import write_atomically
from polytask.evaluation.text_maps import TextMaps
from polytask.evaluation.text_maps import text_maps as maps_of
from polytask.kinds.names import LabelProblem
from polytask.kinds.options import read_options
from polytask.reports.text_maps import text_page
from polytask.runs.bundle import Bundle, load_run
from polytask.runs.folder import RunFolder
from polytask.text.texts import Texts
from polytask.types import UserError, unknown


def text_maps(
    run: str | Path,
    text: str | Sequence[str],
    text2: str | None = None,
    task: str | None = None,
    trust_plugins: bool = False,
    *,
    options: Sequence[str] = (),
) -> tuple[TextMaps, ...]:
    """Computes attention and hidden states of a run's encoder for one example, as a task reads it.

    An example is one text, a pair, a list of texts or, for a task of kind choice, a text with `options`. The default is
    the first task that takes such an example. A pair is one sequence, two if the task's head reads the texts
    separately, or three if it does both; a text with options is one sequence for each option. `trust_plugins`
    remembers that the run's plug-ins may run.
    """
    bundle, texts = load_run(Path(run), trust_plugins), _texts(text, text2)
    name = _task(bundle, task, len(texts), bool(options), run)
    return _maps(bundle, name, _tokens(bundle, name, texts, options))


def write_text_maps(
    run: str | Path,
    text: str | Sequence[str],
    text2: str | None = None,
    task: str | None = None,
    trust_plugins: bool = False,
    *,
    options: Sequence[str] = (),
) -> Path:
    """Writes the arrays of `text_maps` as heat maps to attention.html in the run's folder."""
    folder, bundle, texts = RunFolder(Path(run)), load_run(Path(run), trust_plugins), _texts(text, text2)
    name = _task(bundle, task, len(texts), bool(options), run)
    tokens = _tokens(bundle, name, texts, options)
    maps, notes = _maps(bundle, name, tokens), _notes(bundle, name, (*texts, *options), tokens)
    write_atomically(folder.attention, text_page(folder.path.resolve().name, name, texts, maps, options, notes))
    return folder.attention


def _tokens(bundle: Bundle, task: str, texts: tuple[str, ...], options: Sequence[str]) -> Texts:
    try:
        given = read_options([list(options)]) if bundle.specs[task].has_options else ()
    except LabelProblem as problem:
        raise UserError(f"report: task {task}: {problem}") from None
    return bundle.tokenize([(*texts, *given)], options=bool(given))


def _maps(bundle: Bundle, task: str, tokens: Texts) -> tuple[TextMaps, ...]:
    return maps_of(bundle.model, task, tokens, bundle.packer, bundle.tokenizer.token)


def _notes(bundle: Bundle, task: str, example: tuple[str, ...], tokens: Texts) -> list[str]:
    """What the maps leave out: tokens of a text that is too long, and tags of words that come from columns."""
    notes, packer, form = [], bundle.packer, bundle.model.input_format(task)
    (length,) = packer.full_lengths(bundle.text_lengths([example], tokens), form.reading).tolist()
    if length > packer.max_length:
        how = "reads longer texts in several windows" if form.has_windows else "truncates longer texts"
        notes.append(f"At most {packer.max_length} of {length:,} tokens are shown (max_length): the task {how}.")
    if bundle.specs[task].tags:
        notes.append("The task was trained with word tags from columns; the words of this text have none.")
    return notes


def _texts(text: str | Sequence[str], text2: str | None) -> tuple[str, ...]:
    texts = (*([text] if isinstance(text, str) else text), *([] if text2 is None else [text2]))
    if not all(one.strip() for one in texts):
        raise UserError("report: the text is empty")
    return texts


def _task(bundle: Bundle, task: str | None, texts: int, has_options: bool, run: str | Path) -> str:
    if task is not None and task not in bundle.specs:
        raise UserError(unknown(str(run), task, bundle.specs, "task"))
    wanted = (texts, has_options)
    for name, spec in bundle.specs.items():
        if task in (None, name) and (len(spec.text), spec.has_options) == wanted:
            return name
    takes = (
        f"{name} {len(spec.text)}{' and options (--option)' if spec.has_options else ''}"
        for name, spec in bundle.specs.items()
    )
    found = f"{texts} text(s){' and options' if has_options else ''}"
    raise UserError(f"{run}: found {found}, but the tasks take: {', '.join(takes)}")
