"""Random generators for making data sets."""

import numpy as np

from fedtailor.errors import require


def make_rng(seed: int, *stream: int) -> np.random.Generator:
    """Return the generator of a seed for one purpose, independent of those for other purposes.

    `stream` identifies the purpose: a `DataStream`, and where needed the number of a client.
    """
    is_valid = isinstance(seed, int | np.integer) and type(seed) is not bool and seed >= 0
    require(is_valid, f"data: seed must be a whole number of at least 0, got {seed!r}.")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=stream)))
