"""Escapes control characters in output, because names, texts and messages may come from untrusted files.

ESC starts commands to the terminal (clear it, change its title, hide text), a carriage return overwrites the line, and
the bidirectional controls of Unicode show letters in another order than they are stored in.
"""

import re

HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, which our own layout uses; DEL; C1
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # bidirectional controls, line and paragraph separator
    r"\ud800-\udfff]"  # halves of surrogate pairs: bytes of a file name that are not UTF-8
)


def visible(text: str) -> str:
    r"""Returns the text with each control character as Python writes it: \x1b, \u202e ..."""
    return HIDDEN.sub(lambda match: match.group().encode("unicode_escape", "surrogatepass").decode("ascii"), text)
