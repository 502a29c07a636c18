"""Handwritten digits that come with the library: 1797 images of 8 x 8, two labels a client."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import from_arrays, generator, how_many, require_whole
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.npz import read_npz
from fedtailor.errors import require

LABELS = 10
LEAST = 4  # of each of its labels, what a client has at least
SERVER, PARTITION = 10, 11


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images, as rows of 64 brightnesses from 0 to 16, and their labels; `digits.md` says where from."""
    arrays = read_npz(Path(__file__).with_suffix(".npz"), ("x", "y"))
    return arrays["x"], arrays["y"].astype(np.int64)


def digits(
    *,
    clients: int = 50,
    labels: int = 2,
    server: float = 0.05,
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    new_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """Digits 0 to 9, each client with a few labels and its own, uneven share of their examples.

    The server has a share (float) or count (int) of all examples, drawn at random; the clients have the rest. Labels
    are dealt so that all are held equally often, give or take one; with fewer than 10 to deal the others stay unused.
    The new people are those dealt to last, so that they know, as a group, the same labels as those who train.
    """
    require_whole("digits", "clients", clients, 1)
    require_whole("digits", "labels", labels, 1)
    require(labels <= LABELS, f"digits: labels must be at most {LABELS}, got {labels}.")
    pixels, y = load_digits()
    x = pixels.reshape(-1, 1, 8, 8)
    order = generator(seed, SERVER).permutation(len(x))
    own, rest = np.split(order, [min(how_many("digits", server, len(x)), len(x))])
    whose = _partition(y[rest], clients, labels, generator(seed, PARTITION))
    held = rest[whose >= 0]
    made = from_arrays(
        x[held],
        y[held],
        whose[whose >= 0],
        name="digits",
        classes=LABELS,
        test_share=test_share,
        validation_clients=validation_clients,
        new_clients=new_clients,
        adapt=adapt,
        support=support,
        server=(x[own], y[own]) if len(own) else None,
        seed=seed,
        scale=1 / 16,
    )
    sizes = [len(made.groups[group]) for group in ("train", "validation", "new")]
    train, validation, new = np.split(np.arange(clients), np.cumsum(sizes)[:-1])
    groups = {"train": train, "local": train, "validation": validation, "new": new}
    return replace(made, groups=groups, trust=True)  # the same people, grouped otherwise


def _partition(y: NDArray[np.int64], clients: int, labels: int, draws: np.random.Generator) -> NDArray[np.int64]:
    """Whose each example is; -1 where its label was dealt to nobody."""
    most = int(np.bincount(y, minlength=LABELS).min()) // LEAST * LABELS // labels
    served = f"{LEAST} examples of each of {labels} labels from the {len(y)} that the server leaves"
    require(clients <= most, f"digits: clients must be at most {most} for {served}, got {clients}.")
    hands, weights = _deal(clients, labels, draws), draws.lognormal(0, 1, clients)
    whose = np.full(len(y), -1)
    for label in range(LABELS):
        holders = np.flatnonzero(hands[:, label])
        if len(holders):
            examples = draws.permutation(np.flatnonzero(y == label))
            whose[examples] = np.repeat(holders, _uneven(len(examples), weights[holders]))
    return whose


def _deal(clients: int, labels: int, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Who has which labels: each client in turn gets those dealt least so far, ties broken at random."""
    hands = np.zeros((clients, LABELS), bool)
    for hand in hands:
        hand[np.lexsort((draws.random(LABELS), hands.sum(axis=0)))[:labels]] = True
    return hands


def _uneven(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sizes that add up to the total: LEAST for each, and of the rest a part by weight."""
    bounds = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1
    return np.asarray(LEAST + np.diff(np.floor(bounds * (total - LEAST * len(weights))), prepend=0), np.int64)
