"""Figures as inline SVG text, in the style of our pages.

An `<svg>` is safe to put into a page: it has no ids that clash with another plot's (the `name` argument is their
prefix), loads nothing, escapes all text, and is the same for the same numbers. Ink and grid are CSS variables (--ink,
--grid, --page) of the page, so that a plot follows its light and dark colours.
"""

import html
import io
import re
import warnings
from contextlib import AbstractContextManager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Near Okabe and Ito's colours, which people with any common colour blindness can tell apart; readable on white and on
# near-black.
BLUE, ORANGE, GREEN, PURPLE, DEEP = "#2a7fbf", "#d9822b", "#109a77", "#b5679b", "#1b67a8"
# Placeholders that render() replaces by the page's own variables: matplotlib knows no CSS.
INK, GRID, PAGE = "#010203", "#040506", "#070809"
DASHED, DOTTED = (0, (4, 3)), (0, (1, 1.5))
STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), GRID),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "text.parse_math"), False),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "svg.fonttype"), "none"),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **{"font.size": 10, "axes.titlesize": 11, "legend.fontsize": 9, "grid.linewidth": 0.6, "lines.linewidth": 1.6},
    "axes.titlelocation": "left",
}


def style(name: str) -> AbstractContextManager[None]:
    """Everything drawn inside looks alike; `name` makes the ids of a plot its own."""
    settings: Any = {**STYLE, "svg.hashsalt": name}
    return matplotlib.rc_context(settings)


def new_figure(width: float = 5.2, height: float = 2.9) -> tuple[Figure, Axes]:
    """One figure with one pair of axes, in inches."""
    figure = Figure(figsize=(width, height), dpi=72, layout="constrained")  # SVG's own dots: see `render`
    return figure, figure.add_subplot()


def render(figure: Figure, name: str, description: str) -> str:
    """A figure as an `<svg>` element; `name` keeps its ids apart from other plots', `description` is read aloud."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # Names in scripts that matplotlib's font lacks are only measured here: the browser draws them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # savefig would draw twice, each time with a new layout: most of the time of a report.
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    head, body = text[text.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) [\d.]+"', head)
    assert box is not None
    # matplotlib's style sheet would act on the whole page.
    body = re.sub(r"<(metadata|style).*?</\1>", "", body, flags=re.DOTALL)
    used = set(re.findall(r"[(\"]#([\w-]+)[)\"]", body))

    def own_tag(tag: re.Match[str]) -> str:
        text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag[0])
        text = re.sub(r"(?<=[(\"]#)([\w-]+)(?=[)\"])", rf"{name}-\1", text)
        return text.replace(INK, "var(--ink)").replace(GRID, "var(--grid)").replace(PAGE, "var(--page)")

    body = re.sub(r"\n\s*", "\n", re.sub(r"<[^>]+>", own_tag, body))  # only tags: names may look like ids or colours
    # 1.15: at full size a 10-point label is as large as the page's small text.
    width = f"max-width: {float(box[1]) * 1.15:.0f}px"
    return f'<svg {box[0]} role="img" aria-label="{html.escape(description)}" style="{width}">{body}'


def shorten(name: str, length: int) -> str:
    """A name on one line, shortened in the middle: similar names often differ at the end."""
    name = " ".join(name.split()) or "(empty)"
    return name if len(name) <= length else f"{name[: length - 6]}…{name[-5:]}"
