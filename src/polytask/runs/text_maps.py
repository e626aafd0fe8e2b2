"""Heat maps of a finished run's encoder for one text: the arrays, and a page of them in the run's folder."""

from pathlib import Path

from polytask.disk.atomic import write_atomically
from polytask.evaluation.text_maps import TextMaps
from polytask.evaluation.text_maps import text_maps as maps_of
from polytask.reports.text_maps import text_page
from polytask.runs.bundle import Bundle, load_run
from polytask.runs.folder import RunFolder
from polytask.types import UserError, unknown


def text_maps(
    run: str | Path, text: str, text2: str | None = None, task: str | None = None, trust_plugins: bool = False
) -> tuple[TextMaps, ...]:
    """Computes attention and hidden states of a run's encoder for one text or pair, as a task reads it.

    The default is the first task that takes this number of texts. A pair is one sequence, two if the task's head reads
    the texts separately, or three if it does both. `trust_plugins` remembers that the run's plug-ins may run.
    """
    bundle, texts = load_run(Path(run), trust_plugins), _texts(text, text2)
    return _maps(bundle, _task(bundle, task, len(texts), run), texts)


def write_text_maps(
    run: str | Path, text: str, text2: str | None = None, task: str | None = None, trust_plugins: bool = False
) -> Path:
    """Writes the arrays of `text_maps` as heat maps to attention.html in the run's folder."""
    folder, bundle, texts = RunFolder(Path(run)), load_run(Path(run), trust_plugins), _texts(text, text2)
    name = _task(bundle, task, len(texts), run)
    page = text_page(folder.path.resolve().name, name, texts, _maps(bundle, name, texts))
    write_atomically(folder.attention, page)
    return folder.attention


def _maps(bundle: Bundle, task: str, texts: tuple[str, ...]) -> tuple[TextMaps, ...]:
    return maps_of(bundle.model, task, bundle.tokenize([texts]), bundle.packer, bundle.tokenizer.token)


def _texts(text: str, text2: str | None) -> tuple[str, ...]:
    texts = (text,) if text2 is None else (text, text2)
    if not all(one.strip() for one in texts):
        raise UserError("report: the text is empty")
    return texts


def _task(bundle: Bundle, task: str | None, texts: int, run: str | Path) -> str:
    if task is not None and task not in bundle.specs:
        raise UserError(unknown(str(run), task, bundle.specs, "task"))
    if task is not None and bundle.specs[task].has_options:
        raise UserError(f"{run}: task {task} has no maps: kind choice reads a text with each of its options")
    readable = {name: spec for name, spec in bundle.specs.items() if not spec.has_options}
    fitting = [name for name, spec in readable.items() if len(spec.text) == texts and task in (None, name)]
    if not fitting:
        takes = ", ".join(f"{name} {len(spec.text)}" for name, spec in bundle.specs.items())
        raise UserError(f"{run}: found {texts} text(s), but the tasks take: {takes}")
    return fitting[0]
