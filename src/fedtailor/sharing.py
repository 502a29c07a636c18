"""How products of matrices are worked off on a GPU: among how many programs, and of what."""

from collections.abc import Sequence

import torch
from torch import Tensor

PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of its multiprocessors."""
_LEAST = 128


def tiles(clients: int, height: int, width: int, tall: int = 64) -> int:
    """How many tiles, 64 wide, a stack of matrices has."""
    return clients * -(-height // tall) * -(-width // 64)


def shares(count: int, depth: int, programs: int = PROGRAMS) -> int:
    """In how many sums products whose outcomes have so many tiles, and which sum over so much, keep a GPU busy."""
    return max(1, min(-(-programs // count), -(-depth // _LEAST))) if count else 1


def shares_of(x: Tensor, w: Tensor) -> int:
    """In how many sums the products x w' of matrices [clients, rows, inputs] and [clients, outputs, inputs] come."""
    return shares(tiles(len(x), x.shape[1], w.shape[1]), x.shape[2], PROGRAMS // 2)


def is_split(x: Tensor, size: Sequence[int]) -> bool:
    """Whether a convolution's gradient by weights of such a height and width is made of float32 split into two bf16.

    It is where float32 may be rounded to tf32, unless the weights are few.
    """
    rounds = x.is_cuda and x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return rounds and size[0] * size[1] * x.shape[4] > 64
