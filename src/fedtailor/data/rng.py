"""Generators of data sets: one for every purpose."""

import numpy as np

from fedtailor.data.arguments import require_int


def make_rng(seed: int, *stream: int) -> np.random.Generator:
    """A source of random numbers for one purpose: drawing more for one changes nothing for another."""
    require_int("data", "seed", seed, 0)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=stream)))
