"""Label shares drawn from Dirichlet distributions: flat, and over a tree of coarse and fine labels."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import require_whole
from fedtailor.data.holders import Array
from fedtailor.data.partitions.dealing import Whose, codes_of, hand_out, require_amount, require_least, uneven
from fedtailor.errors import InputError, require


def dirichlet(y: Array, clients: int, draws: np.random.Generator, *, alpha: float = 0.5, least: int = 10) -> Whose:
    """The examples of each label are divided by shares from Dirichlet(alpha), so that all are held.

    Nothing is drawn again: whoever then has fewer than `least` examples is given random ones of the largest clients'.
    """
    kinds, codes = codes_of("dirichlet", y, clients)
    require_amount("dirichlet", "alpha", alpha, 1e-3, 1e6)
    require_least("dirichlet", least, clients, len(y))
    shares = draws.dirichlet(np.full(clients, float(alpha)), len(kinds))
    want = [uneven(int(there), share) for there, share in zip(np.bincount(codes), shares, strict=True)]
    return _levelled(hand_out("dirichlet", kinds, codes, np.stack(want, axis=1), draws), clients, least, draws)


def _levelled(whose: Whose, clients: int, least: int, draws: np.random.Generator) -> Whose:
    """The same, but everybody has at least `least`: what is missing is cut from the top of the largest."""
    sizes = np.bincount(whose, minlength=clients)
    missing = np.maximum(least - sizes, 0)
    shuffled = draws.permutation(len(whose))
    order = shuffled[np.argsort(whose[shuffled], kind="stable")]
    height = np.arange(len(whose)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    highest = order[np.argsort(-height, kind="stable")[: missing.sum()]]
    levelled = whose.copy()
    levelled[highest] = np.repeat(np.arange(clients), missing)
    return levelled


def pachinko(
    coarse: Array,
    fine: Array,
    clients: int,
    draws: np.random.Generator,
    *,
    size: int = 100,
    alpha: float = 0.1,
    beta: float = 10.0,
) -> Whose:
    """Pachinko allocation, as for federated CIFAR-100 (Reddi et al., Adaptive Federated Optimization, ICLR 2021).

    Every client draws shares of the coarse labels from Dirichlet(alpha) and, within each, shares of its fine labels
    from Dirichlet(beta), and then `size` examples by these shares, without replacement; what has run out is left out
    of the shares. Each fine label must belong to one coarse label.
    """
    kinds, codes = codes_of("pachinko", fine, clients)
    parents = _parents(coarse, fine, codes, len(kinds))
    for what, value in (("alpha", alpha), ("beta", beta)):
        require_amount("pachinko", what, value, 1e-3, 1e6)
    require_whole("pachinko", "size", size, 1)
    need = f"{clients} clients with {size} examples need {clients * size} of {len(fine)}"
    require(clients * size <= len(fine), f"pachinko: {need}; take fewer clients or a smaller size.")
    left, want = np.bincount(codes), np.zeros((clients, len(kinds)), np.int64)
    for own in want:
        own[:] = _descend(left, parents, size, alpha, beta, draws)
        left -= own
    return hand_out("pachinko", kinds, codes, want, draws)


def _parents(coarse: Array, fine: Array, codes: Whose, kinds: int) -> Whose:
    """The coarse label, as a number from 0 on, of each fine label."""
    require(
        coarse.shape == fine.shape, f"pachinko: {len(coarse)} coarse labels cannot pair with {len(fine)} fine ones."
    )
    own = np.unique(coarse, return_inverse=True)[1].astype(np.int64)
    parents = np.zeros(kinds, np.int64)
    parents[codes] = own
    for stray in np.flatnonzero(parents[codes] != own)[:1]:
        raise InputError(f"pachinko: fine label {fine[stray]} must belong to one coarse label, but belongs to several.")
    return parents


def _descend(
    left: NDArray[np.int64], parents: Whose, size: int, alpha: float, beta: float, draws: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each fine label one client draws, while so many are left."""
    taken, tops = np.zeros_like(left), int(parents.max()) + 1
    room = np.bincount(parents, left, tops).astype(np.int64)
    through = _capped(size, draws.dirichlet(np.full(tops, float(alpha))), room, draws)
    for top in range(tops):
        below = np.flatnonzero(parents == top)
        shares = draws.dirichlet(np.full(len(below), float(beta)))
        taken[below] = _capped(int(through[top]), shares, left[below], draws)
    return taken


def _capped(
    count: int, shares: NDArray[np.float64], room: NDArray[np.int64], draws: np.random.Generator
) -> NDArray[np.int64]:
    """So many draws by shares, where what is full is left out of the shares from then on.

    Draws are made all at once, and those that found no room again: the sequence of draws decides what is accepted, and
    it does not matter how many of it are looked at together.
    """
    taken = np.zeros_like(room)
    while count:
        free = taken < room
        odds = np.where(free, shares, 0) if (shares[free] > 0).any() else free.astype(float)
        drawn = draws.multinomial(count, odds / odds.sum())
        accepted = np.minimum(drawn, room - taken)
        taken, count = taken + accepted, count - int(accepted.sum())
    return taken
