"""Random generators for making data sets."""

import numpy as np

from fedtailor.data.arguments import require_int


def make_rng(seed: int, *stream: int) -> np.random.Generator:
    """Return the generator of a seed for one purpose, independent of those for other purposes.

    `stream` identifies the purpose: a `DataStream`, and where needed the number of a client.
    """
    require_int("data", "seed", seed, 0)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=stream)))
