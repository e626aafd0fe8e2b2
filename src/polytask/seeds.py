"""Every random draw of a run comes from the run's seed and a name: no hidden random state.

`derive(seed, "sampler", step)` gives the same integer on every machine and in every process, so a step can be
repeated, resumed or checked without saving the state of a generator. Knows nothing else of polytask.
"""

import hashlib

import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on `seed` and every name, and on nothing else."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A numpy generator seeded by `derive(seed, *names)`."""
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))
