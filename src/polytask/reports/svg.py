"""Plots as SVG text: axes with ticks and a grid, lines, bands, markers, rectangles and text. Knows numbers only.

A `Plot` collects what is drawn, in the units of the data; `render` chooses limits and ticks, leaves room for the labels
and returns one `<svg>` element. Sizes are typographic points. A plotting library would take a hundred times as long.
"""

import base64
import html
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Near Okabe and Ito's colours, which people with any common colour blindness can tell apart; readable on white and on
# near-black.
BLUE, ORANGE, GREEN, PURPLE, DEEP = "#2a7fbf", "#d9822b", "#109a77", "#b5679b", "#1b67a8"
# Variables of the page, so that a plot follows its light and dark colours.
INK, GRID, PAGE = "var(--ink)", "var(--grid)", "var(--page)"
DASHED, DOTTED = "4 3", "1.2 2"
TEXT, TITLE, LEGEND = 10.0, 11.0, 9.0
MARGIN, GAP = 3.0, 5.0
MARKERS: dict[str, Sequence[tuple[float, float]]] = {  # corners around (0, 0), at a size of 1; "o" is a circle
    "s": [(-0.45, -0.45), (0.45, -0.45), (0.45, 0.45), (-0.45, 0.45)],
    "D": [(0, -0.6), (0.6, 0), (0, 0.6), (-0.6, 0)],
    "^": [(0, -0.55), (0.55, 0.45), (-0.55, 0.45)],
    "v": [(0, 0.55), (0.55, -0.45), (-0.55, -0.45)],
    "<": [(-0.55, 0), (0.45, -0.55), (0.45, 0.55)],
    ">": [(0.55, 0), (-0.45, -0.55), (-0.45, 0.55)],
    "P": [(x * s, y * s) for s in (0.55,) for x, y in ((-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33),
          (0.33, 0.33), (0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33))],
    "X": [(0, -0.25), (0.25, -0.5), (0.5, -0.25), (0.25, 0), (0.5, 0.25), (0.25, 0.5), (0, 0.25), (-0.25, 0.5),
          (-0.5, 0.25), (-0.25, 0), (-0.5, -0.25), (-0.25, -0.5)],
    "|": [(-0.06, -0.5), (0.06, -0.5), (0.06, 0.5), (-0.06, 0.5)],
}  # fmt: skip
Scale = Callable[[float], float]
Drawing = Callable[[Scale, Scale], str]
"""What is drawn, given the functions from data to points."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def number(value: float) -> str:
    """A coordinate with one decimal: a tenth of a point cannot be seen."""
    return f"{value:.1f}".removesuffix(".0")


def text_width(text: str, size: float = TEXT) -> float:
    """About how wide a text is; fonts differ."""
    return size * sum(1.0 if ord(c) > 0x2E80 else 0.32 if c in "iljft.,:;'|!()[] " else 0.62 for c in text)


def label(
    x: float, y: float, text: str, size: float = TEXT, anchor: str = "start", colour: str = INK, turn: float = 0
) -> str:
    """A text whose middle has the height y; with line breaks, several lines around it."""
    lines = text.split("\n")
    place = f' transform="rotate({number(turn)} {number(x)} {number(y)})"' if turn else ""
    return "".join(
        f'<text x="{number(x)}" y="{number(y + size * (0.35 + 1.2 * (i - (len(lines) - 1) / 2)))}" '
        f'font-size="{number(size)}" text-anchor="{anchor}" fill="{colour}"{place}>{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )


def path(
    points: Sequence[tuple[float, float]], colour: str, width: float = 1.6, dash: str | None = None, opacity: float = 1
) -> str:
    """A line through points."""
    more = f' stroke-dasharray="{dash}"' if dash else ""
    more += f' stroke-opacity="{opacity:g}"' if opacity < 1 else ""
    line = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width:g}"{more}/>'


def area(points: Sequence[tuple[float, float]], colour: str, opacity: float = 1, edge: str = "") -> str:
    """A filled polygon; `edge` has the attributes of its outline."""
    more = f' fill-opacity="{opacity:.2g}"' if opacity < 1 else ""
    return f'<polygon points="{" ".join(f"{number(x)},{number(y)}" for x, y in points)}" fill="{colour}"{more}{edge}/>'


def marker(x: float, y: float, shape: str, size: float, colour: str, opacity: float = 1, face: str = "") -> str:
    """One marker; with a `face` it is filled with that colour and has an outline of its own."""
    edge = f' stroke="{colour}" stroke-width="1.2"' if face else ""
    if shape == "o":
        more = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        return f'<circle cx="{number(x)}" cy="{number(y)}" r="{size / 2:g}" fill="{face or colour}"{more}{edge}/>'
    return area([(x + size * dx, y + size * dy) for dx, dy in MARKERS[shape]], face or colour, opacity, edge)


def draw_symbol(x: float, y: float, colour: str, width: float, dash: str | None = None, mark: float = 0) -> str:
    """A short line for a legend, with a marker in its middle if the curve has markers."""
    return path([(x, y), (x + 16, y)], colour, width, dash) + (marker(x + 8, y, "o", mark, colour) if mark else "")


def heat_map(box: Box, shades: NDArray[np.floating], colour: str, framed: bool = False) -> str:
    """A matrix of numbers from 0 (transparent) to 1 (the colour, #rrggbb), each cell a rectangle.

    The cells are the pixels of an image inside the page: thousands of rectangles would take megabytes.
    """
    left, top, right, bottom = box
    place = f'x="{number(left)}" y="{number(top)}" width="{number(right - left)}" height="{number(bottom - top)}"'
    pixels = base64.b64encode(_png(np.round(shades * 255).clip(0, 255).astype(np.uint8), colour)).decode("ascii")
    frame = f'<rect {place} fill="none" stroke="{GRID}" stroke-width="0.6"/>' if framed else ""
    return (
        f'<image {place} preserveAspectRatio="none" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{pixels}"/>{frame}'
    )


def _png(shades: NDArray[np.uint8], colour: str) -> bytes:
    """A PNG with a palette of 256 opacities of one colour (PNG specification, colour type 3)."""
    height, width = shades.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in shades)  # 0: the row is not filtered
    chunks = [(b"IHDR", header), (b"PLTE", bytes.fromhex(colour[1:]) * 256), (b"tRNS", bytes(range(256)))]
    chunks += [(b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    packed = (struct.pack(">I", len(b)) + a + b + struct.pack(">I", zlib.crc32(a + b)) for a, b in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def svg_element(name: str, title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """The page's `<svg>`; `name` is its id and must be its own in the page."""
    # 1.15: at full size a 10-point label is as large as the page's small text.
    return (
        f'<svg id="{name}" viewBox="0 0 {number(width)} {number(height)}" role="img" '
        f'aria-label="{html.escape(title)}" style="max-width: {width * 1.15:.0f}px">{"".join(parts)}</svg>'
    )


def nice_ticks(low: float, high: float, most: int, integer: bool = False) -> list[float]:
    """At most `most` + 1 round numbers from low to high."""
    span = high - low
    if not span > 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next(size * f for f in (1, 2, 2.5, 5, 10, 20) if span / (size * f) <= most)
    if integer:
        step = max(1.0, float(round(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """The ticks with as many decimals as tell them apart; very small and very large numbers as 2e-05 and 5M."""
    largest = max(map(abs, ticks), default=0.0)
    if 0 < largest < 1e-3 or largest >= 1e12:
        return [f"{tick:g}" for tick in ticks]
    for unit, letter in ((1e9, "B"), (1e6, "M")):
        if largest >= unit:
            texts = tick_labels([tick / unit for tick in ticks])
            return [text + letter if tick else text for tick, text in zip(ticks, texts, strict=True)]
    decimals = next((d for d in range(7) if all(abs(round(t, d) - t) < 1e-9 * max(1, abs(t)) for t in ticks)), 6)
    return [f"{tick + 0.0:,.{decimals}f}" for tick in ticks]


@dataclass
class Axis:
    """The limits and ticks of one direction; what is left open is chosen from the data."""

    label: str = ""
    limits: tuple[float, float] | None = None
    margin: float = 0.05
    """Of the range of the data, on both sides."""
    most_ticks: int = 6
    integer: bool = False
    log: bool = False
    names: Sequence[tuple[float, str]] | None = None
    """Ticks with their names, instead of numbers."""
    format: Callable[[float], str] | None = None
    grid: bool = True
    turn: float = 0
    """Degrees by which the names are turned."""
    data: list[float] = field(default_factory=list)

    def range(self) -> tuple[float, float]:
        if self.limits is not None:
            return self.limits
        low, high = min(self.data, default=0.0), max(self.data, default=1.0)
        if self.log:
            return low / 1.25, high * 1.25
        room = (high - low) * self.margin or abs(high) * 0.05 or 0.05
        return low - room, high + room

    def ticks(self) -> list[tuple[float, str]]:
        low, high = self.range()
        if self.names is not None:
            return list(self.names)
        if self.log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            values = [v for p in powers for v in (10.0**p, 3 * 10.0**p) if low <= v <= high]
        else:
            values = nice_ticks(low, high, self.most_ticks, self.integer)
        return list(zip(values, map(self.format, values) if self.format else tick_labels(values), strict=True))

    def scale(self, start: float, end: float) -> Scale:
        low, high = (math.log(v) if self.log else v for v in self.range())
        return lambda v: start + (end - start) * ((math.log(v) if self.log else v) - low) / (high - low or 1)


@dataclass
class Plot:
    """One plot. Add what it shows, then call `render`."""

    title: str
    width: float = 5.2 * 72
    height: float = 2.9 * 72
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    frame: bool = True
    """Draws the lines of the axes on the left and below."""
    top: bool = False
    """Puts the names of the x axis above the plot."""
    square: bool = False
    right: float = 0
    """Room on the right, for names."""
    drawings: list[Drawing] = field(default_factory=list)
    outside: list[Callable[[Box, Scale, Scale], str]] = field(default_factory=list)
    """What may be drawn outside the axes, given their left, top, right and bottom."""
    legend: list[tuple[str, Callable[[float, float], str]]] = field(default_factory=list)

    # --- what it shows ------------------------------------------------------------------------------------------------
    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        colour: str,
        width: float = 1.6,
        dash: str | None = None,
        opacity: float = 1,
        name: str = "",
        mark: float = 0,
    ) -> None:
        """A line through points, with a round marker of size `mark` at each."""
        self._data(xs, ys)
        points = list(zip(xs, ys, strict=True))

        def draw(x: Scale, y: Scale) -> str:
            places = [(x(a), y(b)) for a, b in points]
            marks = "".join(marker(*place, "o", mark, colour, opacity) for place in places) if mark else ""
            return (path(places, colour, width, dash, opacity) if len(places) > 1 else "") + marks

        self.drawings.append(draw)
        if name:
            self._name(name, lambda a, b: draw_symbol(a, b, colour, width, dash, mark))

    def band(
        self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str, opacity: float, name: str
    ) -> None:
        """The area between two curves."""
        self._data([*xs, *xs], [*low, *high])
        around = [*zip(xs, low, strict=True), *zip(reversed(xs), reversed(high), strict=True)]
        self.drawings.append(lambda x, y: area([(x(a), y(b)) for a, b in around], colour, opacity))
        if name:
            self._name(
                name, lambda a, b: area([(a, b - 3), (a + 16, b - 3), (a + 16, b + 3), (a, b + 3)], colour, opacity)
            )

    def markers(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        colour: str,
        shape: str = "o",
        size: float = 6,
        opacity: float = 1,
        name: str = "",
        face: str = "",
    ) -> None:
        self._data(xs, ys)
        points = list(zip(xs, ys, strict=True))
        self.drawings.append(
            lambda x, y: "".join(marker(x(a), y(b), shape, size, colour, opacity, face) for a, b in points)
        )
        if name:
            self._name(name, lambda a, b: marker(a + 8, b, shape, min(size, 11), colour, opacity, face))

    def level(self, value: float, colour: str, width: float = 0.9, dash: str | None = None, name: str = "") -> None:
        """A horizontal line across the plot."""
        self._data([], [value])
        self._across(lambda box, x, y: path([(box[0], y(value)), (box[2], y(value))], colour, width, dash))
        if name:
            self._name(name, lambda a, b: draw_symbol(a, b, colour, width, dash))

    def moment(self, value: float, colour: str, width: float = 0.9, dash: str | None = None, name: str = "") -> None:
        """A vertical line across the plot."""
        self._data([value], [])
        self._across(lambda box, x, y: path([(x(value), box[1]), (x(value), box[3])], colour, width, dash))
        if name:
            self._name(name, lambda a, b: draw_symbol(a, b, colour, width, dash))

    def rectangle(
        self, left: float, right: float, low: float, high: float, colour: str, opacity: float = 1, edge: str = ""
    ) -> None:
        self._data([left, right], [low, high])
        corners = [(left, low), (right, low), (right, high), (left, high)]
        self.drawings.append(lambda x, y: area([(x(a), y(b)) for a, b in corners], colour, opacity, edge))

    def text(
        self, at_x: float, at_y: float, text: str, size: float = LEGEND, colour: str = INK, shift: float = 0
    ) -> None:
        """A text around a point, or `shift` points to the right of it."""
        anchor = "start" if shift else "middle"
        self.outside.append(lambda box, x, y: label(x(at_x) + shift, y(at_y), text, size, anchor, colour))

    def _data(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x.data += xs
        self.y.data += ys

    def _across(self, draw: Callable[[Box, Scale, Scale], str]) -> None:
        self.outside.append(draw)

    def _name(self, name: str, symbol: Callable[[float, float], str]) -> None:
        self.legend.append((name, symbol))

    # --- the page's element -------------------------------------------------------------------------------------------
    def render(self, name: str) -> str:
        """The plot as an `<svg>` element; `name` is its id and must be its own in the page."""
        legend, rows = self._legend()
        box = self._box(rows)
        left, top, right, bottom = box
        x, y = self.x.scale(left, right), self.y.scale(bottom, top)
        inside = "".join(draw(x, y) for draw in self.drawings)
        parts = [
            label(MARGIN, MARGIN + TITLE / 2, self.title, TITLE),
            self._axes(box, x, y),
            f'<clipPath id="{name}-box"><rect x="{number(left)}" y="{number(top - 3)}" '
            f'width="{number(right - left + 3)}" height="{number(bottom - top + 6)}"/></clipPath>',
            f'<g clip-path="url(#{name}-box)">{inside}</g>',
            *(draw(box, x, y) for draw in self.outside),
            legend,
        ]
        return svg_element(name, self.title, self.width, self.height, parts)

    def _box(self, legend_rows: int) -> Box:
        """Left, top, right and bottom of the axes: what the labels leave."""
        x_names, y_names = self.x.ticks(), self.y.ticks()
        widest = max((text_width(text) for _, text in x_names), default=0.0)
        turned = abs(math.sin(math.radians(self.x.turn)))
        room = max(TEXT, widest * turned + TEXT * 0.7) + GAP
        top = MARGIN + TITLE + 2 * GAP + (room if self.top else 0)
        bottom = self.height - MARGIN - legend_rows * (LEGEND + GAP) - (0 if self.top else room)
        bottom -= TEXT + GAP if self.x.label else 0
        left = MARGIN + max((text_width(text) for _, text in y_names), default=0.0) + GAP
        left += TEXT + GAP if self.y.label else 0
        right = self.width - max(MARGIN + 6, self.right)
        if self.square:
            side = min(right - left, bottom - top)
            right, bottom = left + side, top + side
        return left, top, right, bottom

    def _axes(self, box: Box, x: Scale, y: Scale) -> str:
        left, top, right, bottom = box
        parts = []
        turn, anchor = self.x.turn, "middle" if not self.x.turn else "start" if self.top else "end"
        names_at = top - GAP - 4 if self.top else bottom + GAP + 5
        for value, text in self.x.ticks():
            parts += [path([(x(value), top), (x(value), bottom)], GRID, 0.6)] if self.x.grid else []
            parts.append(label(x(value), names_at, text, TEXT, anchor, turn=turn))
        for value, text in self.y.ticks():
            parts += [path([(left, y(value)), (right, y(value))], GRID, 0.6)] if self.y.grid else []
            parts.append(label(left - GAP, y(value), text, TEXT, "end"))
        if self.frame:
            parts.append(path([(left, top), (left, bottom), (right, bottom)], GRID, 0.9))
        if self.x.label:
            below = bottom + GAP + 5 if self.top else bottom + 3 * GAP + TEXT
            below = self.height - MARGIN - TEXT / 2 if self.x.turn else below
            parts.append(label((left + right) / 2, below, self.x.label, TEXT, "middle"))
        if self.y.label:
            parts.append(label(MARGIN + TEXT / 2, (top + bottom) / 2, self.y.label, TEXT, "middle", turn=-90))
        return "".join(parts)

    def _legend(self) -> tuple[str, int]:
        """The legend at the bottom, if there are two or more names, and its number of lines."""
        lines: list[list[tuple[float, str, Callable[[float, float], str]]]] = [[]]
        across = MARGIN
        for name, symbol in self.legend if len(self.legend) > 1 else []:
            width = 21 + text_width(name, LEGEND) + 12
            if lines[-1] and across + width > self.width:
                across = MARGIN
                lines.append([])
            lines[-1].append((across, name, symbol))
            across += width
        rows = len(lines) if lines[0] else 0
        parts = []
        for at, line in enumerate(lines):
            down = self.height - MARGIN - (rows - 1 - at) * (LEGEND + GAP) - LEGEND / 2
            parts += [symbol(left, down) + label(left + 21, down, name, LEGEND) for left, name, symbol in line]
        return "".join(parts), rows


def shorten(name: str, length: int) -> str:
    """A name on one line, shortened in the middle: similar names often differ at the end."""
    name = " ".join(name.split()) or "(empty)"
    return name if len(name) <= length else f"{name[: length - 6]}…{name[-5:]}"
