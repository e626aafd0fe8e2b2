"""Ticks are round numbers inside the limits, and labels have room."""

import base64
import io
import re

import numpy as np
import pytest

from polytask.reports.svg import Axis, Plot, heat_map, nice_ticks, text_width, tick_labels


@pytest.mark.parametrize(
    ("low", "high", "most", "integer", "ticks"),
    [
        (0, 1, 5, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.31, 0.69, 6, False, [0.4, 0.5, 0.6]),
        (-3, 7, 5, False, [-2, 0, 2, 4, 6]),
        (0, 3, 6, True, [0, 1, 2, 3]),
        (1, 272, 6, True, [50, 100, 150, 200, 250]),
        (4, 4, 6, False, [4]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, integer: bool, ticks: list[float]) -> None:
    assert nice_ticks(low, high, most, integer) == pytest.approx(ticks)


def test_tick_labels_have_as_many_decimals_as_they_need() -> None:
    assert tick_labels([0, 0.25, 0.5]) == ["0.00", "0.25", "0.50"]
    assert tick_labels([-0.0, 5000]) == ["0", "5,000"]
    assert tick_labels([0, 2e-5]) == ["0", "2e-05"]
    assert tick_labels([-5e6, 0, 500_000, 5e6]) == ["-5.0M", "0.0", "0.5M", "5.0M"]
    assert tick_labels([0, 250_000, 750_000]) == ["0", "250,000", "750,000"]
    assert tick_labels([0, 2e9]) == ["0", "2B"]
    assert tick_labels([0, 1e30]) == ["0", "1e+30"]


def test_what_is_drawn_stays_inside_the_axes_limits() -> None:
    plot = Plot("A", x=Axis(limits=(0, 10)), y=Axis(limits=(0, 1)))
    plot.line([0, 10], [0, 1], "red")
    svg = plot.render("p")
    assert 'clip-path="url(#p-box)"' in svg
    x0, y0, x1, y1 = map(
        float, re.search(r'points="([\d.]+),([\d.]+) ([\d.]+),([\d.]+)" fill="none" stroke="red"', svg).groups()
    )  # type: ignore[union-attr]
    assert 0 < x0 < x1 < plot.width
    assert 0 < y1 < y0 < plot.height


def test_long_labels_get_room() -> None:
    def left(name: str) -> float:
        return Plot("A", y=Axis(names=[(0.5, name)]))._box(0)[0]

    assert left("a much longer name") - left("a") > 60
    assert text_width("日本語") > text_width("abc")


def test_a_legend_is_shown_for_two_or_more_names_and_breaks_into_lines() -> None:
    plot = Plot("A")
    plot.level(0.5, "red", name="only one")
    assert "only one" not in plot.render("p")
    for number in range(8):
        plot.level(number, "red", name=f"a name of some length {number}")
    assert plot._legend()[1] > 1
    assert "only one" in plot.render("p")


def test_a_heat_map_is_an_image_of_one_pixel_per_cell() -> None:
    image = pytest.importorskip("PIL.Image")
    svg = heat_map((10, 20, 40, 50), np.array([[0, 0.5, 1], [1, 2, -1]]), "#1b67a8")
    assert 'x="10" y="20" width="30" height="30"' in svg
    pixels = base64.b64decode(re.search(r'base64,([^"]+)"', svg)[1])  # type: ignore[index]
    found = np.asarray(image.open(io.BytesIO(pixels)).convert("RGBA"))
    assert found.shape == (2, 3, 4)
    assert (found[..., :3] == [0x1B, 0x67, 0xA8]).all()
    assert found[..., 3].tolist() == [[0, 128, 255], [255, 255, 0]]
