"""Each verdict has its sentence, in points."""

from dataclasses import replace

import numpy as np

from polytask.evaluation.comparison.records import MEAN, Comparison, TaskData
from polytask.evaluation.comparison.verdict import judge
from polytask.studies.sentences import sentence


def comparison(reference: str, variant: str, seeds: int) -> Comparison:
    """A comparison to change: 100 examples, and another wrong one in every run."""
    gold = np.array([0, 1] * 50)
    runs = np.stack([np.where(np.arange(100) == seed, 1 - gold, gold) for seed in range(2 * seeds)])
    task = TaskData("opinion", "yes_no", 2, "accuracy", gold, {reference: runs[:seeds], variant: runs[seeds:]})
    (found,) = judge([task], reference).comparisons
    return found


def test_sentences_about_claims() -> None:
    base = comparison("none", "pal", 3)
    one = replace(base, variant="PAL", task="similarity", difference=0.009, low=0.002, high=0.016, claim="better")
    assert sentence(one) == "PAL is better than none on similarity by 0.9 points [0.2, 1.6]"
    lower = replace(one, claim="worse", greater_is_better=False)
    assert sentence(lower) == "PAL is worse than none on similarity by 0.9 points [0.2, 1.6] (lower is better)"
    worse = replace(one, difference=-0.009, low=-0.016, high=-0.002, claim="worse", task=MEAN)
    assert sentence(worse) == "PAL is worse than none on the mean of the tasks by 0.9 points [0.2, 1.6]"
    small = replace(one, p_same=0.01, margin=0.02)
    assert sentence(small) == f"{sentence(one)}, which is within the margin of 2 points"
    same = replace(one, claim="same", difference=-0.001, low=-0.003, high=0.001)
    assert sentence(same) == (
        "PAL and none are the same within 0.5 points on similarity: difference -0.1 points [-0.3, 0.1]"
    )


def test_sentences_about_undecided_comparisons() -> None:
    base = comparison("cross", "cosine", 2)
    two = replace(base, task="question", difference=0.183, low=-0.4, high=0.766, seeds_needed=5)
    two = replace(two, seed_differences=(0.18, 0.186))
    assert sentence(two) == (
        "undecided on question: cosine scored 18.3 points higher than cross in both seeds [-40.0, 76.6], but 2 seeds "
        "cannot rule out luck; 5 seeds could"
    )
    three = replace(two, difference=-0.183, seeds=3, seed_differences=(-0.2, 0.1, -0.45), greater_is_better=False)
    assert "18.3 points lower than cross (lower is better) in 2 of 3 seeds" in sentence(three)
    assert "in all 3 seeds" in sentence(replace(three, seed_differences=(-0.2, -0.1, -0.25)))
    assert " on average [" in sentence(replace(two, seed_differences=None, paired=False))
    many = replace(two, p_noise=0.01, p_swap=0.01, comparisons=12)
    assert sentence(many).endswith("but among 12 comparisons 2 seeds cannot rule out luck; 5 seeds could")
    never = replace(two, seeds_needed=None, examples=1101)
    assert sentence(never).endswith("and more seeds alone would not: 1,101 dev examples are too few")
    assert sentence(never, "held-back rows").endswith("would not: 1,101 held-back rows are too few")
    close = replace(never, difference=0.001)
    assert sentence(close).endswith("2 seeds cannot rule out luck, nor a difference of more than 0.5 points")
    one = replace(two, seeds=1, seed_noise_known=False, low=0.1, high=0.27)
    assert sentence(one) == (
        "undecided on question: seed noise unknown (one seed); cosine scored 18.3 points higher than cross, "
        "[10.0, 27.0] over examples alone"
    )
    assert "cosine scored the same as cross" in sentence(replace(two, difference=0.0, seeds_needed=None))
