"""MkDocs hooks: files from outside docs/ join the site, and a folder in the nav stands for all pages inside it."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DATED = "benchmarks/"
"""Result files are never edited, so their links to pages that have moved are shown as plain text."""


def outside() -> dict[str, str]:
    """Path in the repository -> path in the site, of the files that are not in docs/."""
    names = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    pages = {name: name.lower() for name in names if (ROOT / name).is_file()}
    inside = [*(ROOT / "benchmarks").glob("*.md"), *(ROOT / "recipes").rglob("*.*")]
    return pages | {path: path for path in sorted(p.relative_to(ROOT).as_posix() for p in inside)}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [expanded(entry) for entry in config.nav or [] if expanded(entry)]
    return config


def expanded(entry: Any) -> Any:
    """An entry of the nav, in which `Title: folder/` becomes the list of the folder's pages, its index first."""
    if isinstance(entry, dict):
        ((title, value),) = entry.items()
        value = expanded(value)
        return {title: value} if value else None
    if isinstance(entry, list):
        return [inner for inner in map(expanded, entry) if inner]
    if not entry.endswith("/"):
        return entry
    base = ROOT if entry == DATED else ROOT / "docs"
    pages = sorted(path.relative_to(base).as_posix() for path in (base / entry).glob("*.md"))
    return sorted(pages, key=lambda page: not page.endswith("index.md"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, uri in outside().items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links are those of the repository, so that they also work there; this makes them those of the site."""
    places = outside()
    path = {uri: path for path, uri in places.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match.groups("")
        if ":" in target or not target:
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        uri = "index.md" if found == "README.md" else places.get(found, found.removeprefix("docs/"))
        if files.get_file_from_path(uri):
            return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"
        return text if (ROOT / found).exists() or path.startswith(DATED) else match[0]

    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, markdown)
