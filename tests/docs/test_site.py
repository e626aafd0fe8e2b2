"""The documentation site builds strictly, loads nothing from the network and has every page."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install -e '.[dev]' -c constraints.txt")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    nowhere = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS")}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loaded = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=\"?(https?:)?//")
    assert not [page.name for page in pages if loaded.search(page.read_text(encoding="utf-8"))]
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(https?:)?//|@import", styles)


def test_pages_from_outside_docs_are_in_the_site(site: Path) -> None:
    for page in ("changelog", "contributing", "security", "benchmarks/2026-11-15-cpu-quiet"):
        assert (site / f"{page}.html").is_file(), page
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'href="contributing.html"' in home


def test_a_dead_link_fails_the_build(tmp_path: Path, site: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "hooks.py").write_text((ROOT / "docs" / "hooks.py").read_text(encoding="utf-8"))
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[nowhere](nowhere.md)\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings + "\nnav:\n  - Home: index.md\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "nowhere.md" in done.stdout + done.stderr
