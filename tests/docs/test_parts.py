"""The guide to the parts shows lines of the examples, which a test runs, and lists every example."""

import re
from pathlib import Path
from textwrap import indent

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "parts.md").read_text(encoding="utf-8")
EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py")}


def test_every_snippet_is_part_of_an_example() -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(snippets) > 10
    for snippet in snippets:
        indented = [indent(snippet, " " * spaces) for spaces in range(0, 20, 4)]
        assert any(piece in code for piece in indented for code in EXAMPLES.values()), snippet


def test_every_example_of_a_part_is_listed() -> None:
    parts = {name for name, code in EXAMPLES.items() if re.search(r"^from polytask\.", code, re.MULTILINE)}
    assert len(parts) > 10
    assert not [name for name in parts if f"[{name}](../examples/{name})" not in PAGE]
