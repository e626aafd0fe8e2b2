"""The pages are executed: every shell command and Python block of README and the guides, with a tiny encoder."""

import importlib
import re
import shlex
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

import polytask
from polytask import TABLES, options_of, read_recipe, read_study, recipe_from
from polytask.cli.main import COMMANDS, main
from polytask.disk.records import convert
from polytask.plugins.files import use_plugins

ROOT = Path(__file__).parent.parent.parent


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("polytask ")]
    # A server runs until it is stopped (test_serving.py); several processes: test_several_processes.py.
    return [words for words in found if words[1] != "serve" and "--processes" not in words]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages assume: the recipes, and files of the user's own."""
    sample = resources.files("polytask.tasks") / "sample"
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    files = [("opinions", "reviews"), ("questions", "pairs"), ("opinions", "tickets"), ("opinions", "new")]
    for source, name in [*files, ("inbox", "inbox")]:
        (tmp_path / f"{name}.csv").write_text((sample / f"{source}-train.csv").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str], tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    takes_settings = words[1] in ("train", "check", "pretrain", "interference")
    if words[1] in ("add-task", "add-class"):  # the encoder is the run's; one that learned nothing drops by chance
        tiny, takes_settings = [*(s for s in tiny if not s.startswith("encoder")), "add.max_drop=100"], True
    extra = [w for setting in tiny for w in ("--set", setting)] if takes_settings else []
    if words[1] == "interference" and "--every" not in words:  # a tiny run is too short for the default
        extra += ["--every", "5"]
    monkeypatch.setattr(sys, "argv", [*words, *extra])
    code: Any = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert not code, f"{shlex.join(words)}: {printed.err}"
    return str(printed.out)


PAGES = [
    "adding-a-task",
    "choice",
    "data",
    "export",
    "get-started",
    "interference",
    "kinds",
    "long-documents",
    "match",
    "partly-labelled",
    "probabilities",
    "python",
    "tagging",
    "your-own-files",
]
"""The commands of the other guides are those of these, or need data that is not here."""
SLOW_PAGES = ("export", "long-documents")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(pytest.param(f"docs/{name}.md", marks=pytest.mark.slow if name in SLOW_PAGES else ()) for name in PAGES),
    ],
)
def test_commands_and_python_work_in_order(
    page: str, workplace: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    listed = commands(ROOT / page)
    assert listed or page == "docs/python.md"
    tiny_settings = [*tiny_settings, "train.epochs=1"]
    with_tiny_encoder(tiny_settings, monkeypatch)
    comparing = [words for words in listed if words[1] == "compare"]
    for words in listed:
        if words not in comparing:
            run(words, tiny_settings, monkeypatch, capsys)
    for block in blocks(ROOT / page, "python"):
        exec(compile(block, page, "exec"), {})
        printed = capsys.readouterr().out
        assert printed or "print(" not in block
        if page == "README.md":
            (shown,) = blocks(ROOT / page, "text")
            assert shape(printed) == shape(shown), "the output shown in the README has other lines"
    for words in comparing:  # studies have tests of their own, and take minutes
        if not words[2].endswith(".yaml"):
            run(words, tiny_settings, monkeypatch, capsys)


def with_tiny_encoder(tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train: Callable[..., Any] = polytask.train
    monkeypatch.setattr(
        polytask, "train", lambda recipe, run=None, settings=(), **more: train(recipe, run, [*settings, *tiny], **more)
    )


def shape(text: str) -> list[str]:
    """The first word of every line: the same whatever the scores are."""
    return [line.split()[0] for line in text.splitlines() if not line.startswith(CLASSES)]


CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")


def test_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 132
    (block,) = blocks(ROOT / "README.md", "python")
    assert len(block.strip().splitlines()) <= 10


def test_the_recipe_shown_is_valid(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "get-started.md", "yaml")
    assert set(recipe_from(yaml.safe_load(text), folder=tmp_path).tasks) == {"mood", "same"}


def test_the_method_shown_in_contributing_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, test = blocks(ROOT / "CONTRIBUTING.md", "python")
    (tmp_path / "uniform.py").write_text(method, encoding="utf-8")
    monkeypatch.setattr("polytask.samplers.__path__", [*polytask.samplers.__path__, str(tmp_path)])
    names: dict[str, Any] = {}
    exec(compile(test, "CONTRIBUTING.md", "exec"), names)
    tests = [function for name, function in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for function in tests:
        function()
    assert [(option.name, option.default) for option in options_of(names["Uniform"])] == [("repeat", 1)]
    monkeypatch.delitem(sys.modules, "polytask.samplers.uniform")


def test_the_plug_in_shown_works(
    workplace: Path, tiny_settings: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    page = ROOT / "docs" / "plugins.md"
    monkeypatch.setenv("POLYTASK_CONFIG", str(workplace / "config"))
    for name, block in zip(("my_adapter.py", "my_kind.py"), blocks(page, "python"), strict=True):
        (workplace / name).write_text(block, encoding="utf-8")
    (workplace / "recipe.yaml").write_text(blocks(page, "yaml")[0], encoding="utf-8")
    printed = [run(words, tiny_settings, monkeypatch, capsys) for words in commands(page)]
    assert "All 12 checks passed." in printed[0]
    assert printed[-2].startswith("opinion: ")
    assert "All 9 checks passed." in printed[-1]
    use_plugins([])


STUDIES = sorted([*ROOT.glob("recipes/studies/*.yaml"), *ROOT.glob("recipes/papers/*/study-*.yaml")])
RECIPES = sorted(path for path in (ROOT / "recipes").rglob("*.yaml") if path not in STUDIES)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_shipped_recipe_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_DATA", "/data")
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("path", [*RECIPES, *STUDIES], ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_method_and_option_of_a_shipped_recipe_exists(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.relative_to(ROOT / "recipes").as_posix())
def test_every_shipped_study_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTASK_DATA", "/data")
    study = read_study(path)
    assert len(study.recipes) > 1
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_the_generated_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    generate = importlib.import_module("generate")
    for name in generate.PAGES:
        committed = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert generate.text(name) == committed, f"docs/reference/{name} is out of date; run: python docs/generate.py"


def test_every_method_command_and_public_name_is_in_the_reference() -> None:
    reference = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert not [name for methods in TABLES.values() for name in methods if f"### {name}\n" not in reference["methods"]]
    assert not [name for name in polytask.__all__ if name not in reference["python"]]
    assert not [name for name in COMMANDS if f"## {name}\n" not in reference["commands"]]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_one_sentence_per_line() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in [page for page in pages if page.parent.name != "reference"]:  # that is generated from docstrings
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        lines = [line for line in text.splitlines() if not line.startswith("|")]
        two = [line for line in lines if re.search(r"[a-z)`]\. [A-Z`]", line)]
        assert not two, f"{page.relative_to(ROOT)}: {two}"


def test_the_tree_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "polytask"
    names = [f"{path.name}/" for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"]
    names += [path.name for path in source.glob("*.py") if path.stem not in ("__init__", "__main__", "version")]
    missing = [name for name in names if f"  {name} " not in text]
    assert not missing, f"docs/architecture.md: the tree lacks {missing}"


def test_files_for_the_hosting_site_are_valid() -> None:
    forms = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    contents = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in forms}
    steps = [step.get("run") for step in contents["ci.yml"]["jobs"]["check-and-test"]["steps"]]
    assert [step for step in steps if step] == ["make check", "make test", "make docs"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert citation["version"] == polytask.__version__
    assert f"## [{citation['version']}] - {citation['date-released']}" in changes


def test_the_study_shown_in_the_docs_is_one(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "comparing.md", "yaml")
    (tmp_path / "studies").mkdir()
    (tmp_path / "quickstart.yaml").write_text((ROOT / "recipes" / "quickstart.yaml").read_text(encoding="utf-8"))
    (tmp_path / "studies" / "heads.yaml").write_text(text)
    assert list(read_study(tmp_path / "studies" / "heads.yaml").recipes) == ["cross", "cosine", "product"]


def test_the_new_task_shown_in_the_docs_is_the_shipped_one() -> None:
    (text,) = blocks(ROOT / "docs" / "adding-a-task.md", "yaml")
    assert yaml.safe_load(text) == yaml.safe_load((ROOT / "recipes" / "adding" / "similarity.yaml").read_text("utf-8"))
