"""Writes the words of a file's texts with their parts of speech, for recipes such as three-tasks-pos.yaml.

    python recipes/tag_words.py cs224n/ids-sst-train.csv sentence pos-train.jsonl

The tags are those of TextBlob's tagger (`pip install 'polytask[tags]'`), so a model that learns them learns to agree
with that tagger. Rows whose text cannot be read are left out.
"""

import json
import sys
from pathlib import Path

from polytask.tasks.reading import open_source
from polytask.tasks.rows import plain_texts
from polytask.text.tagging import make_tagger


def tag_words(source: str, column: str, target: Path) -> int:
    """Writes one line per text, and returns their number."""
    tagger = make_tagger("pattern")
    assert tagger is not None
    count = 0
    with target.open("w", encoding="utf-8") as file:
        for text in plain_texts(open_source(source), [column]):
            tagged = tagger.words(text)
            ends = [word.start for word in tagged[1:]] + [len(text)]
            words = [text[word.start : end].strip() for word, end in zip(tagged, ends, strict=True)]
            if words:
                tags = [word.tag for word in tagged]
                file.write(json.dumps({"words": words, "tags": tags}, ensure_ascii=False) + "\n")
                count += 1
    return count


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} INPUT COLUMN OUTPUT.jsonl")
    sys.stdout.write(f"{tag_words(sys.argv[1], sys.argv[2], Path(sys.argv[3])):,} texts: {sys.argv[3]}\n")
