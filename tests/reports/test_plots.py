"""The plots are SVG that can stand in one page together: escaped, deterministic, with ids of their own."""

import re

import numpy as np
import pytest

from polytask.reports import plots

from ..conftest import assert_clean_svg, svg_ids, svg_texts

NASTY = [
    "<script>alert(1)</script>",
    '" onload="x',
    "$x^2$ & co",
    "日本語 😀",
    'id="figure_1" #010203',
    "",
    "two\nlines",
]
TRAIN = [(step, 1 / step) for step in range(1, 50)]
PLOTS = {
    "loss": lambda name: plots.loss_curve(name, "Loss & <b>", TRAIN, [(10, 0.5), (20, 0.4)], 20),
    "metric": lambda name: plots.metric_curve(name, "Accuracy", [(10, 0.5, 0.4, 0.6), (20, 0.6, 0.5, 0.7)], 20, 0.4),
    "small": lambda name: plots.small_curve(name, "Learning rate", TRAIN),
    "overview": lambda name: plots.score_overview(
        name,
        "Scores",
        [
            ("a", {"dev": (0.5, 0.4, 0.6), "test": (0.5, 0.4, 0.6)}, {"guessing": 0.3, "step 0": 0.2}),
            ("b", {"dev": (1, 1, 1)}, {}),
        ],
    ),
    "rates": lambda name: plots.rate_curves(name, "Learning rate", {"encoder": TRAIN, "heads": TRAIN[:3]}),
    "matrix": lambda name: plots.confusion_matrix(name, "Matrix", np.eye(7, dtype=np.int64), NASTY),
    "signed": lambda name: plots.signed_matrix(
        name, "Cosines", [[(0.5, "0.50"), None], [(-0.1, "-0.10"), (0.0, "0")]], NASTY[:2], [NASTY[3], ""]
    ),
    "cosine": lambda name: plots.cosine_curve(
        name, "a & <b>", [(1, 0.1), (2, -0.2)], [(1, 0.0, -0.1, 0.1), (2, 0.1, 0.0, 0.2)], 0.5
    ),
    "scores": lambda name: plots.score_matrix(name, "After each stage", np.eye(8, 7), NASTY, NASTY),
    "dots": lambda name: plots.score_scatter(name, "Scores", [0.0, 1.0, 2.0], [0.5, 0.5, 2.5]),
    "bins": lambda name: plots.score_scatter(name, "Scores", *np.random.default_rng(0).random((2, 5000)).tolist()),
    "bars": lambda name: plots.bars(name, "Labels", NASTY, range(7)),
    "histogram": lambda name: plots.histogram(name, "Lengths", [0, 10, 20], [3, 4], "tokens"),
}


@pytest.mark.parametrize("kind", PLOTS)
def test_a_plot_is_one_clean_svg_element(kind: str) -> None:
    svg = PLOTS[kind]("name")
    assert_clean_svg(svg)
    assert len(svg) < 200_000


@pytest.mark.parametrize("kind", PLOTS)
def test_the_same_numbers_give_the_same_text(kind: str) -> None:
    assert PLOTS[kind]("name") == PLOTS[kind]("name")


def test_ids_of_different_plots_are_different() -> None:
    seen: set[str] = set()
    for number, draw in enumerate([*PLOTS.values()] * 2):
        svg = draw(f"plot-{number}")
        ids = svg_ids(svg)
        assert not ids & seen
        assert set(re.findall(r'(?:href="|url\()#([\w-]+)', svg)) <= ids  # every reference is to its own plot
        seen |= ids
    assert seen


def test_colours_of_text_are_the_pages_own() -> None:
    svg = PLOTS["loss"]("name")
    assert "var(--ink)" in svg
    assert "var(--grid)" in svg


def test_names_are_shown_as_they_are() -> None:
    found = svg_texts(PLOTS["matrix"]("name"))
    for name in (*NASTY[1:4], NASTY[4], "(empty)", "two lines"):
        assert name in found, name
    assert plots.shorten(NASTY[0], 24) in found


def test_long_names_keep_their_end() -> None:
    names = [f"a name much too long for the plot, version {number}" for number in (1, 2)]
    short = [plots.shorten(name, 24) for name in names]
    assert short[0] != short[1]
    assert max(map(len, short)) == 24


def test_the_matrix_shows_counts_and_shares_of_the_row() -> None:
    counts = np.array([[6, 2], [0, 4]])
    assert {"6", "75%", "2", "25%", "4", "100%"} <= set(svg_texts(plots.confusion_matrix("m", "M", counts, ["a", "b"])))
    assert "6" not in svg_texts(plots.confusion_matrix("m", "M", counts, ["a", "b"], "share"))


def test_the_matrix_of_stages_shows_every_score_and_frames_the_learned_ones() -> None:
    scores = np.array([[0.2, -0.1], [0.61, 0.0], [float("nan"), 0.834]])
    svg = plots.score_matrix("s", "S", scores, ["b", "a", "text"], ["a", "b"])  # plain text has a stage and no column
    assert {"before", "after b", "after a", "0.200", "-0.100", "0.610", "0.834", "nan"} <= set(svg_texts(svg))
    assert svg.count(plots.ORANGE) == 2


def test_large_matrices_keep_room_for_each_cell() -> None:
    svg = plots.confusion_matrix("m", "M", np.eye(30, dtype=np.int64), [f"class {i}" for i in range(30)], "count")
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    assert width / 30 > 20  # points for each column, labels included: more than two digits' width


def test_long_and_broken_curves_stay_small() -> None:
    values = [(step, float("nan") if step % 7 == 0 else 1.0) for step in range(100_000)]
    svg = plots.loss_curve("l", "Loss", values, [(1, float("nan"))])
    assert "nan" not in svg
    assert len(svg) < 100_000


def test_a_curve_may_be_empty_or_one_point() -> None:
    assert plots.loss_curve("l", "Loss", [], [(5, 0.5)]).startswith("<svg")
    assert plots.metric_curve("m", "M", [(5, 0.5, 0.4, 0.6)], 5).startswith("<svg")
