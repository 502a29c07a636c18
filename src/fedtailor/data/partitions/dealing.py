"""What partitioners share: dealing labels, dividing unevenly, and handing examples out."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import require_whole
from fedtailor.data.holders import Array
from fedtailor.errors import InputError, is_number, require

Whose = NDArray[np.int64]
"""Who holds each example: the number of a client, or NOBODY."""

NOBODY = -1


def codes_of(who: str, y: Array, clients: int) -> tuple[Array, Whose]:
    """The labels that there are, in order, and which of them each example has; refuses what cannot be divided."""
    require(y.ndim == 1 and y.dtype.kind in "iu", f"{who}: labels must be integers, got {list(y.shape)} of {y.dtype}.")
    require_whole(who, "clients", clients, 1)
    require(clients <= len(y), f"{who}: clients must be at most the {len(y)} examples, got {clients}.")
    kinds, codes = np.unique(y, return_inverse=True)
    return kinds, codes.astype(np.int64)


def require_amount(who: str, what: str, value: object, low: float, high: float) -> None:
    """Refuses what is not a number from `low` to `high`."""
    inside = is_number(value) and low <= float(value) <= high  # type: ignore[arg-type]
    require(inside, f"{who}: {what} must be a number from {low:g} to {high:g}, got {value!r}.")


def require_least(who: str, least: int, clients: int, examples: int) -> None:
    """Refuses a smallest size that there are not enough examples for."""
    require_whole(who, "least", least, 1)
    enough = clients * least <= examples
    require(enough, f"{who}: {clients} clients with at least {least} need {clients * least} of {examples} examples.")


def deal(clients: int, labels: int, kinds: int, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Who has which kinds, so many each: each client in turn gets those dealt least so far, ties broken at random."""
    hands, dealt = np.zeros((clients, kinds), bool), np.zeros(kinds, np.int64)
    for hand in hands:
        hand[np.lexsort((draws.random(kinds), dealt))[:labels]] = True
        dealt += hand
    return hands


def uneven(total: int, weights: NDArray[np.float64], least: int = 0) -> NDArray[np.int64]:
    """Sizes that add up to the total: `least` for each, and of the rest a part by weight."""
    bounds = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1
    return np.asarray(least + np.diff(np.floor(bounds * (total - least * len(weights))), prepend=0), np.int64)


def hand_out(who: str, kinds: Array, codes: Whose, want: NDArray[np.int64], draws: np.random.Generator) -> Whose:
    """Random examples for everybody, `want[client, kind]` of each kind; refuses if there are not enough."""
    whose = np.full(len(codes), NOBODY, np.int64)
    needed, there = want.sum(axis=0), np.bincount(codes, minlength=len(kinds))
    for short in np.flatnonzero(needed > there)[:1]:
        holders = int((want[:, short] > 0).sum())
        raise InputError(
            f"{who}: {needed[short]} examples of label {kinds[short]} are needed for {holders} clients, but there are "
            f"{there[short]}; take fewer clients or smaller ones."
        )
    for kind in range(len(kinds)):
        examples = draws.permutation(np.flatnonzero(codes == kind))
        whose[examples[: needed[kind]]] = np.repeat(np.arange(len(want)), want[:, kind])
    return whose
