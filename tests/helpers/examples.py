"""Random numbers and batches of them."""

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.core.types import Batch


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def batch_of(x: Tensor, y: Tensor, key: int = 3) -> Batch:
    return Batch(x, y, torch.ones(len(x), dtype=torch.float64), prng.key(key))
