"""How many programs a product of matrices on a GPU is shared out among."""

from torch import Tensor

PROGRAMS = 528
"""Programs that keep a large GPU busy: four for each of its multiprocessors."""
_LEAST = 128


def tiles(clients: int, height: int, width: int, tall: int = 64) -> int:
    """How many tiles, 64 wide, a stack of matrices has."""
    return clients * -(-height // tall) * -(-width // 64)


def shares(tiles: int, depth: int, programs: int = PROGRAMS) -> int:
    """In how many sums products whose outcomes have so many tiles, and which sum over so much, keep a GPU busy."""
    return max(1, min(-(-programs // tiles), -(-depth // _LEAST))) if tiles else 1


def shares_of(x: Tensor, w: Tensor) -> int:
    """In how many sums the products x w' of matrices [clients, rows, inputs] and [clients, outputs, inputs] come."""
    return shares(tiles(len(x), x.shape[1], w.shape[1]), x.shape[2], PROGRAMS // 2)
