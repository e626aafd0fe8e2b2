"""Heat maps of one text as a self-contained HTML page. Knows arrays, no model and no run."""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2
import numpy as np
from numpy.typing import NDArray

from polytask.evaluation.text_maps import TextMaps
from polytask.reports.svg import (
    DEEP,
    GAP,
    INK,
    LEGEND,
    MARGIN,
    TEXT,
    TITLE,
    heat_map,
    label,
    shorten,
    svg_element,
    text_width,
)
from polytask.text.controls import visible

Floats = NDArray[np.float32]
MOST_NAMES = 64
"""Of more tokens, only some have their name at the side of a heat map."""
WIDE = 24
"""Heat maps of more tokens take the whole width of the page."""
WIDER = 1.25
"""Room for names of word pieces, such as ##ume, which are wider in some fonts than `text_width` says."""
HEAD, HEADS_PER_ROW = 84.0, 6


def text_page(
    name: str,
    task: str,
    texts: Sequence[str],
    maps: Sequence[TextMaps],
    options: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page as HTML. With options, each is a sequence of its own, together with the text."""
    titled = zip(_titles(len(texts), maps, options), maps, strict=True)
    sequences = [{"title": title, **_sequence(one, f"s{at}")} for at, (title, one) in enumerate(titled, 1)]
    content = {"texts": texts, "options": options, "notes": notes, "sequences": sequences}
    return visible(_template().render(name=name, task=task, **content))


def _titles(num_texts: int, maps: Sequence[TextMaps], options: Sequence[str]) -> list[str]:
    """The heading of each sequence."""
    if options:
        return [f"Option {number}: {shorten(option, 80)}" for number, option in enumerate(options, 1)]
    if len(maps) == 1:
        return [f"{len(maps[0].tokens)} tokens"]
    separate = [f"Text {number}" for number in range(1, num_texts + 1)]
    return separate if len(maps) == num_texts else ["All texts", *separate]


def _sequence(maps: TextMaps, name: str) -> dict[str, object]:
    layers = range(len(maps.attention))
    means = maps.attention.mean(1)
    return {
        "wide": len(maps.tokens) > WIDE,
        "activations": activations_map(f"{name}-activations", maps.activations, maps.tokens),
        "means": [
            token_map(f"{name}-mean-{i}", f"Layer {i + 1}, mean of the heads", means[i], maps.tokens, maps.sources)
            for i in layers
        ],
        "heads": [head_maps(f"{name}-heads-{i}", f"Layer {i + 1}", maps.attention[i]) for i in layers],
    }


def token_map(name: str, title: str, weights: Floats, rows: Sequence[str], columns: Sequence[str]) -> str:
    """One matrix of tokens by tokens, with the tokens' names on the left and above."""
    cell = min(22.0, max(9.0, 560 / max(len(columns), 1)))
    return _named_map(name, _with_scale(title, weights), _shades(weights), (cell, cell), (rows, columns))


def activations_map(name: str, norms: Floats, tokens: Sequence[str]) -> str:
    """Layers by tokens: the norm of each token's vector. Values are written where cells have room for them."""
    cell = min(30.0, max(9.0, 620 / max(len(tokens), 1)))
    rows = ["embeddings", *(f"layer {number}" for number in range(1, len(norms)))]
    shades = (norms - norms.min()) / max(float(np.ptp(norms)), 1e-9)
    title = _with_scale("Norm of each token's vector", norms)
    return _named_map(name, title, shades, (cell, 18.0), (rows, tokens), norms if cell >= 24 else None)


def head_maps(name: str, title: str, weights: Floats) -> str:
    """The matrices of all heads of a layer as small multiples, each with its own scale."""
    pitch_x, pitch_y = HEAD + 10, HEAD + LEGEND + 10
    top, parts = MARGIN + TITLE + 2 * GAP, [label(MARGIN, MARGIN + TITLE / 2, title, TITLE)]
    for head, matrix in enumerate(weights):
        left, above = MARGIN + head % HEADS_PER_ROW * pitch_x, top + head // HEADS_PER_ROW * pitch_y
        parts.append(label(left, above + LEGEND / 2, f"head {head + 1}: {matrix.max():.2f}", LEGEND))
        box = left, above + LEGEND + 4, left + HEAD, above + LEGEND + 4 + HEAD
        parts.append(heat_map(box, _shades(matrix), DEEP, framed=True))
    rows = math.ceil(len(weights) / HEADS_PER_ROW)
    return svg_element(name, title, MARGIN + HEADS_PER_ROW * pitch_x, top + rows * pitch_y, parts)


def _with_scale(title: str, values: Floats) -> str:
    return f"{title}: {_short(float(values.min()))} (faint) to {_short(float(values.max()))} (strong)"


def _shades(weights: Floats) -> Floats:
    """Square roots, so that small weights can be seen next to the large ones that [CLS] and [SEP] often get."""
    shades: Floats = np.sqrt(weights / max(float(weights.max()), 1e-9))
    return shades


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _named_map(
    name: str,
    title: str,
    shades: Floats,
    cell: tuple[float, float],
    names: tuple[Sequence[str], Sequence[str]],
    values: Floats | None = None,
) -> str:
    size = min(TEXT, cell[0] - 0.5)
    rows, columns = ([shorten(name, 14) for name in side] for side in names)
    left = MARGIN + WIDER * max(text_width(row, size) for row in rows) + GAP
    above = WIDER * max(text_width(column, size) for column in columns)
    top = MARGIN + TITLE + 2 * GAP + above
    right, bottom = left + cell[0] * len(columns), top + cell[1] * len(rows)
    parts = [label(MARGIN, MARGIN + TITLE / 2, title, TITLE)]
    parts.append(heat_map((left, top, right, bottom), shades, DEEP, framed=True))
    for at in range(0, len(columns), math.ceil(len(columns) / MOST_NAMES)):
        parts.append(label(left + cell[0] * (at + 0.5), top - GAP, columns[at], size, "start", turn=-90))
    for at in range(0, len(rows), math.ceil(len(rows) / MOST_NAMES)):
        parts.append(label(left - GAP, top + cell[1] * (at + 0.5), rows[at], size, "end"))
    if values is not None:
        for (row, column), value in np.ndenumerate(values):
            place = left + cell[0] * (column + 0.5), top + cell[1] * (row + 0.5)
            colour = "white" if shades[row, column] > 0.6 else INK
            parts.append(label(*place, _short(float(value)), LEGEND, "middle", colour))
    width = max(right + MARGIN, MARGIN + text_width(title, TITLE) + MARGIN)
    return svg_element(name, title, width, bottom + MARGIN, parts)


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    pages = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return pages.get_template("text_maps.html.jinja")
