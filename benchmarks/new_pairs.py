"""Writes pairs of questions without labels, which the teachers of recipes/best-student.yaml label.

    python benchmarks/new_pairs.py DATA RUN [--neighbours 4]

Reads the questions of DATA/quora-train.tsv, embeds them with a finished run, and pairs each with its nearest
neighbours: among such pairs are many paraphrases and near misses, random pairs would be too easy. Pairs that are in the
training file are left out. Writes DATA/quora-new-pairs.tsv.
"""

import argparse
import csv
from pathlib import Path

import torch

from polytask import load

BLOCK = 2048


def nearest(vectors: torch.Tensor, neighbours: int) -> torch.Tensor:
    """For each row of [n, width], of length 1: the indices of its nearest other rows by cosine, [n, neighbours]."""
    found = []
    for start in range(0, len(vectors), BLOCK):
        products = vectors[start : start + BLOCK] @ vectors.T
        rows = torch.arange(len(products), device=vectors.device)
        products[rows, rows + start] = -torch.inf
        found.append(products.topk(neighbours).indices)
    return torch.cat(found)


def new_pairs(pairs: list[tuple[str, str]], run: Path, neighbours: int) -> list[tuple[str, str]]:
    """Pairs of similar questions that are not among `pairs`, each once."""
    known = {frozenset(pair) for pair in pairs}
    questions = list(dict.fromkeys(text for pair in pairs for text in pair))
    vectors = torch.as_tensor(load(run).embed(questions))
    found = nearest(vectors.cuda() if torch.cuda.is_available() else vectors, neighbours).tolist()
    made: dict[frozenset[str], tuple[str, str]] = {}
    for first, others in zip(questions, found, strict=True):
        for other in others:
            pair = (first, questions[other])
            if frozenset(pair) not in known:
                made.setdefault(frozenset(pair), pair)
    return list(made.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--neighbours", type=int, default=4)
    options = parser.parse_args()
    with (options.data / "quora-train.tsv").open(encoding="utf-8", newline="") as source:
        pairs = [(row["sentence1"], row["sentence2"]) for row in csv.DictReader(source, delimiter="\t")]
    made = new_pairs(pairs, options.run, options.neighbours)
    target = options.data / "quora-new-pairs.tsv"
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows([("sentence1", "sentence2"), *made])
    print(f"{len(made):,} new pairs in {target}")


if __name__ == "__main__":
    main()
