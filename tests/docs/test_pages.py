"""What the pages say is run: every shell command and Python block of README and docs, with a tiny encoder."""

import re
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import polytask
from polytask import TABLES, options_of, read_recipe, read_study, recipe_from
from polytask.cli.main import main
from polytask.disk.records import convert

ROOT = Path(__file__).parent.parent.parent


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("polytask ")]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the pages assume it: the recipes, and files of the user's own."""
    sample = resources.files("polytask.tasks") / "sample"
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for source, name in [("opinions", "reviews"), ("questions", "pairs"), ("opinions", "tickets"), ("opinions", "new")]:
        (tmp_path / f"{name}.csv").write_text((sample / f"{source}-train.csv").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str], tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    takes_settings = words[1] in ("train", "check", "pretrain", "interference")
    if words[1] == "add-task":  # the encoder is the run's; one that has learned nothing forgets it by chance
        tiny, takes_settings = [*(s for s in tiny if not s.startswith("encoder")), "add.max_drop=100"], True
    extra = [w for setting in tiny for w in ("--set", setting)] if takes_settings else []
    monkeypatch.setattr(sys, "argv", [*words, *extra])
    code: Any = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    assert not code, f"{shlex.join(words)}: {said.err}"
    return str(said.out)


@pytest.mark.parametrize("page", ["README.md", "docs/adding-a-task.md", "docs/your-own-files.md"])
def test_commands_and_python_work_in_order(
    page: str, workplace: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    found = commands(ROOT / page)
    assert len(found) >= 5
    real = polytask.train
    monkeypatch.setattr(
        polytask,
        "train",
        lambda recipe, run=None, settings=(), **more: real(recipe, run, [*settings, *tiny_settings], **more),
    )
    comparing = [words for words in found if words[1] == "compare"]
    for words in found:
        if words not in comparing:
            run(words, tiny_settings, monkeypatch, capsys)
    for block in blocks(ROOT / page, "python"):
        exec(compile(block, page, "exec"), {})
        assert capsys.readouterr().out
    for words in comparing:  # runs; studies have tests of their own, and take minutes
        if not words[2].endswith(".yaml"):
            run(words, tiny_settings, monkeypatch, capsys)


def test_readme_example_is_about_ten_lines() -> None:
    (block,) = blocks(ROOT / "README.md", "python")
    assert len(block.strip().splitlines()) <= 10


def test_the_recipe_shown_in_the_readme_is_one(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "README.md", "yaml")
    assert set(recipe_from(yaml.safe_load(text), folder=tmp_path).tasks) == {"mood", "same"}


STUDIES = sorted((ROOT / "recipes" / "studies").glob("*.yaml"))
RECIPES = sorted(path for path in (ROOT / "recipes").rglob("*.yaml") if path not in STUDIES)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_shipped_recipe_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_DATA", "/data")
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", [*RECIPES, *STUDIES], ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_method_and_option_of_a_shipped_recipe_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_DATA", "/data")
    recipes = read_study(path).recipes.values() if path in STUDIES else [read_recipe(path)]
    for recipe in recipes:
        swaps = [(table, getattr(recipe, table)) for table in ("adapter", "sampler", "policy", "optimizer")]
        swaps += [("regularizer", swap) for swap in recipe.regularizers]
        swaps += [(table, s) for t in recipe.tasks.values() for table in ("head", "loss") if (s := getattr(t, table))]
        for table, swap in swaps:
            kinds = {option.name: option.kind for option in options_of(TABLES[table][swap.name])}
            for name, value in swap.options.items():
                convert(value, kinds[name], f"{table} {swap.name}: {name}")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_shipped_study_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_DATA", "/data")
    study = read_study(path)
    assert len(study.recipes) > 1
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_every_method_has_its_paragraph() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    missing = [
        f"{table} {name}" for table, methods in TABLES.items() for name in methods if f"- **{name}**" not in page
    ]
    assert not missing


def test_the_page_of_fields_is_up_to_date() -> None:
    command = [
        sys.executable,
        "-c",
        "import generate, sys; sys.stdout.reconfigure(encoding='utf-8'); print(generate.page(), end='')",
    ]
    made = subprocess.run(
        command, cwd=ROOT / "docs", capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    assert made == (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8"), "run: python docs/generate.py"


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_tree_in_the_readme_names_every_room() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    inside = [p.name for p in (ROOT / "src" / "polytask").iterdir() if p.is_dir() and p.name != "__pycache__"]
    files = [
        p.name for p in (ROOT / "src" / "polytask").glob("*.py") if p.stem not in ("__init__", "__main__", "version")
    ]
    assert not [name for name in inside if f"{name}/" not in text]
    assert not [name for name in files if name not in text]


def test_the_study_shown_in_the_docs_is_one(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "comparing.md", "yaml")
    (tmp_path / "studies").mkdir()
    (tmp_path / "quickstart.yaml").write_text((ROOT / "recipes" / "quickstart.yaml").read_text(encoding="utf-8"))
    (tmp_path / "studies" / "heads.yaml").write_text(text)
    assert list(read_study(tmp_path / "studies" / "heads.yaml").recipes) == ["cross", "cosine", "product"]


def test_the_new_task_shown_in_the_docs_is_the_shipped_one() -> None:
    (text,) = blocks(ROOT / "docs" / "adding-a-task.md", "yaml")
    assert yaml.safe_load(text) == yaml.safe_load((ROOT / "recipes" / "adding" / "similarity.yaml").read_text("utf-8"))
