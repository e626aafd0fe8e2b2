"""The plots of a study are clean SVG, with the right Pareto front and names that do not overlap."""

import itertools
from typing import Any

import pytest

from polytask.studies import charts

from ..conftest import assert_clean_svg, svg_ids, svg_texts

NASTY = ["<script>alert(1)</script>", "plain", '" onload="x', "$x^2$ & co", "日本語", "", 'id="figure_1" #010203']
DRAWN = charts.looks(NASTY, "plain")
CURVE = [(step, 0.9 - 1 / step) for step in range(10, 100, 10)]


def comparison(variant: str, claim: str, difference: float, **more: Any) -> dict[str, Any]:
    ends = {"low": difference - 0.01, "high": difference + 0.01, "detectable": 0.02}
    return {"variant": variant, "claim": claim, "difference": difference, **ends, **more}


ROWS = [
    comparison(name, claim, (at - 3) / 100)
    for at, (name, claim) in enumerate(zip(NASTY, ["better", "worse", "same", "undecided"] * 2, strict=False))
]
PLOTS = {
    "forest": lambda name: charts.forest(name, "Differences <b>", ROWS),
    "tradeoff": lambda name: charts.tradeoff(
        name, "Cost", "seconds", {n: (10.0**at, 0.5 + at / 100, 0.4, 0.6) for at, n in enumerate(NASTY)}, DRAWN
    ),
    "overlay": lambda name: charts.overlay(name, "Curves", {n: [CURVE, CURVE[:5]] for n in NASTY}, DRAWN),
}


@pytest.mark.parametrize("kind", PLOTS)
def test_a_plot_is_one_clean_svg_with_every_variant_in_the_pages_colours(kind: str) -> None:
    svg = PLOTS[kind]("name")
    assert_clean_svg(svg)
    assert "var(--ink)" in svg
    names = svg_texts(svg)
    for name in ("plain", '" onload="x', "$x^2$ & co", "日本語", "(empty)"):
        assert name in names, name
    assert svg == PLOTS[kind]("name")


def test_ids_of_different_plots_are_different() -> None:
    seen: set[str] = set()
    for svg in [PLOTS["forest"]("other"), *(draw(f"plot-{kind}") for kind, draw in PLOTS.items())]:
        ids = svg_ids(svg)
        assert ids
        assert not ids & seen
        seen |= ids


def test_the_front_has_what_no_other_beats() -> None:
    points = {"cheap": (1, 0.5), "best": (9, 0.9), "beaten": (9, 0.8), "middle": (4, 0.7), "dear": (5, 0.7)}
    assert charts.pareto(points) == ["cheap", "middle", "best"]
    assert charts.pareto({"one": (1, 0.5), "same": (1, 0.5)}) == ["one", "same"]
    assert charts.pareto({}) == []


def test_claims_have_their_colours() -> None:
    for claim, (colour, _, _) in charts.CLAIMS.items():
        others = {other for other, _, _ in charts.CLAIMS.values()} - {colour, charts.INK}
        svg = charts.forest("name", "F", [comparison("a", claim, 0.01)])
        assert not [other for other in others if other in svg]
        assert colour in svg or "var(--ink)" in svg


def test_the_reference_has_the_colour_of_the_text_and_every_other_look_is_its_own() -> None:
    names = [f"variant {number}" for number in range(30)]
    looks = charts.looks(names, "variant 3")
    assert looks["variant 3"].colour == charts.INK
    assert len(set(looks.values())) == len(names)


def test_names_do_not_overlap_and_stay_inside() -> None:
    heights = charts._spread([0.5, 0.51, 0.99, 0.98, 0.0], 0.1)
    ranked = sorted(heights)
    assert min(b - a for a, b in itertools.pairwise(ranked)) > 0.0999
    assert ranked[0] >= 0
    assert ranked[-1] <= 1
    assert heights[0] < heights[1] < heights[3] < heights[2]
    assert len(set(charts._spread([0.5] * 40, 0.1))) == 40


def test_the_mean_curve_is_over_the_steps_that_all_seeds_have() -> None:
    first, second = {10: 0.5, 20: 0.7, 30: 0.9}, {10: 0.7, 20: 0.9}
    assert charts._mean([first, second]) == pytest.approx({10: 0.6, 20: 0.8})
    assert charts._mean([]) == {}


def test_long_and_broken_curves_stay_small() -> None:
    broken = [(step, float("nan") if step % 7 == 0 else 0.5) for step in range(1, 20_001)]
    svg = charts.overlay("c", "Curves", {"plain": [broken, broken]}, DRAWN)
    assert "nan" not in svg
    assert len(svg) < 60_000
    assert charts._xy(charts._known(broken))[0][-1] == 20_000  # where a curve ends is what counts


def test_nan_is_left_out() -> None:
    missing = {"plain": (1.0, float("nan"), 0.1, 0.2), "": (2.0, 0.5, 0.4, 0.6)}
    assert "plain" not in svg_texts(charts.tradeoff("t", "T", "x", missing, DRAWN))
    rows = [comparison("plain", "undecided", float("nan")), comparison("b", "undecided", 0.0, detectable=float("inf"))]
    assert {"plain", "b"} & set(svg_texts(charts.forest("f", "F", rows))) == {"b"}
    assert charts.overlay("o", "O", {"plain": [[]]}, DRAWN).startswith("<svg")


def test_very_different_costs_have_a_logarithmic_scale() -> None:
    points = {"plain": (3e5, 0.5, 0.4, 0.6), "": (2.2e7, 0.6, 0.5, 0.7)}
    assert {"1M", "10M"} <= set(svg_texts(charts.tradeoff("t", "T", "parameters", points, DRAWN)))
