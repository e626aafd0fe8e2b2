"""Writes the reference pages of the documentation from the code: `python docs/generate.py`.

docs/reference/ holds five pages: the fields of a recipe, the methods, the commands, the Python API and the parts. They
are committed, so that they can be read without building the site; a test checks that they are up to date.
"""

from pathlib import Path

from reference_pages import commands, methods, parts, python, recipe

FOLDER = Path(__file__).parent / "reference"
GENERATED = "<!-- Generated from the code by `python docs/generate.py`; do not edit. -->\n"
PAGES = {
    "recipe.md": recipe.page,
    "methods.md": methods.page,
    "commands.md": commands.page,
    "python.md": python.page,
    "parts.md": parts.page,
}


def text(name: str) -> str:
    return GENERATED + PAGES[name]().rstrip("\n") + "\n"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(text(name), encoding="utf-8")
