"""Random generators of data sets, one for each purpose."""

import numpy as np

from fedtailor.data.arguments import require_int


def make_rng(seed: int, *stream: int) -> np.random.Generator:
    """Return a generator for one purpose: drawing more from it changes no other purpose's draws."""
    require_int("data", "seed", seed, 0)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=stream)))
