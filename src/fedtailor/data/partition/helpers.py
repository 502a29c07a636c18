"""What partitioners share: dealing labels, dividing unevenly, and handing examples out."""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Array
from fedtailor.errors import InputError, is_number, require

Owners = NDArray[np.int64]
"""Who holds each example: the number of a client, or NOBODY."""

UNASSIGNED = -1


def encode_labels(name: str, y: Array, clients: int) -> tuple[Array, Owners]:
    """The labels that there are, in order, and which of them each example has; refuses what cannot be divided."""
    require(
        y.ndim == 1 and y.dtype.kind in "iu",
        f"{name}: labels must be integers, got {list(y.shape)} of {y.dtype}.",
    )
    require_int(name, "clients", clients, 1)
    require(
        clients <= len(y), f"{name}: clients must be at most the {len(y)} examples, got {clients}."
    )
    kinds, codes = np.unique(y, return_inverse=True)
    return kinds, codes.astype(np.int64)


def require_in_range(name: str, option: str, value: object, low: float, high: float) -> None:
    """Refuses what is not a number from `low` to `high`."""
    inside = is_number(value) and low <= float(value) <= high  # type: ignore[arg-type]
    require(inside, f"{name}: {option} must be a number from {low:g} to {high:g}, got {value!r}.")


def require_enough_examples(name: str, minimum: int, clients: int, examples: int) -> None:
    """Refuses a smallest size that there are not enough examples for."""
    require_int(name, "least", minimum, 1)
    enough = clients * minimum <= examples
    require(
        enough,
        f"{name}: {clients} clients with at least {minimum} need {clients * minimum} of {examples} examples.",
    )


def deal_labels(
    clients: int, labels: int, kinds: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Who has which kinds, so many each: each client in turn gets those dealt least so far, ties broken at random."""
    hands, dealt = np.zeros((clients, kinds), bool), np.zeros(kinds, np.int64)
    for hand in hands:
        hand[np.lexsort((rng.random(kinds), dealt))[:labels]] = True
        dealt += hand
    return hands


def split_unevenly(total: int, weights: NDArray[np.float64], minimum: int = 0) -> NDArray[np.int64]:
    """Sizes that add up to the total: `least` for each, and of the rest a part by weight."""
    bounds = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1
    return np.asarray(
        minimum + np.diff(np.floor(bounds * (total - minimum * len(weights))), prepend=0), np.int64
    )


def assign_by_counts(
    name: str, kinds: Array, codes: Owners, counts: NDArray[np.int64], rng: np.random.Generator
) -> Owners:
    """Random examples for everybody, `want[client, kind]` of each kind; refuses if there are not enough."""
    owners = np.full(len(codes), UNASSIGNED, np.int64)
    needed, there = counts.sum(axis=0), np.bincount(codes, minlength=len(kinds))
    for short in np.flatnonzero(needed > there)[:1]:
        num_clients = int((counts[:, short] > 0).sum())
        raise InputError(
            f"{name}: {needed[short]} examples of label {kinds[short]} are needed for {num_clients} clients, but there "
            "are "
            f"{there[short]}; take fewer clients or smaller ones."
        )
    for kind in range(len(kinds)):
        examples = rng.permutation(np.flatnonzero(codes == kind))
        owners[examples[: needed[kind]]] = np.repeat(np.arange(len(counts)), counts[:, kind])
    return owners
