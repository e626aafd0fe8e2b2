"""The recipes of published systems: a file for every row, a study for every table, and a reason for every change."""

from pathlib import Path

import pytest
import yaml

from polytask import read_recipe, read_study

PAPERS = Path(__file__).parent.parent.parent / "recipes" / "papers"
STUDIES = sorted(PAPERS.glob("*/study-*.yaml"))
RECIPES = sorted(path for path in PAPERS.rglob("*.yaml") if path not in STUDIES)
BASES = ("minbert", "base", "later-base")
ROWS = {
    "conditional-norm": ["cond-norm-off", "cond-norm-on"],
    "smart-adapters": [
        f"smart-adapters-{row}"
        for row in (
            *("plain", "baseline", "smart", "before", "after", "lhuc", "lnsr"),
            *("smooth-only", "bregman-only", "rate-1e-5", "frozen", "lambda-1e-6"),
        )
    ],
    "round-robin-cosine": [
        f"round-robin-{row}"
        for row in (
            *("baseline", "pretrain", "basic", "cosine", "cosine-siar", "bregman", "contrastive"),
            *("opt-adamw", "opt-adamax", "opt-qhadam", "opt-lamb-1e-4", "opt-lamb-1e-5"),
        )
    ],
    "pal-samplers": [
        f"pal-samplers-{row}"
        for row in (
            *("single-sst", "single-quora", "single-sts"),
            *("hard-annealed", "hard-round-robin", "hard-proportional", "hard-square-root"),
            *("pal-annealed", "pal-round-robin", "pal-proportional", "pal-square-root", "pal-annealed-wide"),
            *("mlm-before", "mlm-after", "pos", "soft-l2", "soft-trace"),
        )
    ],
    "pal-gem": [
        f"pal-gem-{row}"
        for row in (
            *("single-sst", "single-quora", "single-sts", "pals", "pals-shared", "gem", "gem-sequence"),
            *("pals-sequence", "joint", "pals-final", "gem-final"),
        )
    ],
}
"""The rows of the five documents' tables, and what they describe or plan without a row."""


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_DATA", "/data")


def header(path: Path) -> str:
    """The comment that a file starts with."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(lines[:end])


def test_every_row_has_a_file_and_every_file_is_a_row() -> None:
    found = {system: {path.stem for path in RECIPES if path.parent.name == system} for system in ROWS}
    assert {system: stems - set(BASES) for system, stems in found.items()} == {s: set(rows) for s, rows in ROWS.items()}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.relative_to(PAPERS).as_posix())
def test_a_recipe_says_what_was_published(path: Path) -> None:
    assert "# Published:" in header(path)
    fields = yaml.safe_load(path.read_text(encoding="utf-8")).keys() - {"name", "base"}
    assert path.stem in BASES or len(fields) <= 4, "a row states only what differs"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.relative_to(PAPERS).as_posix())
def test_the_encoder_can_be_replaced(path: Path) -> None:
    assert read_recipe(path).encoder == "minilm"
    assert read_recipe(path, ["encoder=bert-base-uncased"]).encoder == "bert-base-uncased"


def test_every_file_is_in_the_list() -> None:
    text = (PAPERS / "README.md").read_text(encoding="utf-8")
    assert not [path.stem for path in [*RECIPES, *STUDIES] if f"{path.stem}" not in text]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.relative_to(PAPERS).as_posix())
def test_a_study_compares_rows(path: Path) -> None:
    study = read_study(path)
    assert len(study.seeds) >= 3
    assert all("recipe" in settings for settings in study.settings.values())
    assert str(path.relative_to(PAPERS.parent.parent)) in header(path), "the header shows the command"


def test_every_row_is_in_a_study() -> None:
    compared = {str(settings["recipe"]) for path in STUDIES for settings in read_study(path).settings.values()}
    rows = {f"{row}.yaml" for rows in ROWS.values() for row in rows}
    assert rows - compared == {"pal-samplers-mlm-after.yaml"}, "that one takes two commands"
