import numpy as np
import pytest

from polytask import seeds


def test_depends_on_every_name_and_their_borders() -> None:
    assert seeds.derive(1, "a", 2) == seeds.derive(1, "a", 2)
    different = {
        seeds.derive(*names) for names in [(1, "a", 2), (2, "a", 2), (1, "b", 2), (1, "a", 3), (1, "a2"), (1, "a")]
    }
    assert len(different) == 6
    assert all(0 <= seed < 2**63 for seed in different)


def test_known_value() -> None:
    """A run must mean the same on another machine and in a later version."""
    assert seeds.derive(0, "sampler", 0) == KNOWN


KNOWN = 1897157643823050548


@pytest.mark.parametrize("numbers", [range(40), [10**12], [5, 3, 5], []])
def test_generators_that_are_seeded_together(numbers: list[int]) -> None:
    """The draws of an odd number of 32-bit integers leave half of a 64-bit draw behind."""

    def draws(rng: np.random.Generator) -> list[object]:
        return [rng.random(), int(rng.integers(1000)), rng.permutation(9).tolist(), int(rng.integers(1000))]

    together = [draws(rng) for rng in seeds.generators(7, "a", "b", numbers=numbers)]
    assert together == [draws(seeds.generator(7, "a", "b", number)) for number in numbers]
