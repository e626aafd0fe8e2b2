"""Writes the training phrases of SST that recipes/best.yaml reads.

    python benchmarks/phrases.py DATA

Reads DATA/sst-phrases-train.tsv (columns phrase and sentiment: every labelled phrase of the training trees), and writes
those of three words or more to DATA/sst-phrases-3.tsv, with the column names of the SST files. Most of the
training sentences are among them, as roots of the trees.
"""

import argparse
import csv
from pathlib import Path

LEAST_WORDS = 3


def write_phrases(data: Path) -> int:
    """Returns the number of phrases that were written."""
    count = 0
    with (
        (data / "sst-phrases-train.tsv").open(encoding="utf-8", newline="") as source,
        (data / "sst-phrases-3.tsv").open("w", encoding="utf-8", newline="") as target,
    ):
        rows = csv.DictReader(source, delimiter="\t")
        writer = csv.writer(target, delimiter="\t", lineterminator="\n")
        writer.writerow(["sentence", "sentiment"])
        for row in rows:
            if len(row["phrase"].split()) >= LEAST_WORDS:
                writer.writerow([row["phrase"], row["sentiment"]])
                count += 1
    return count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    folder = parser.parse_args().data
    print(f"{write_phrases(folder):,} phrases of {LEAST_WORDS} words or more in {folder / 'sst-phrases-3.tsv'}")
