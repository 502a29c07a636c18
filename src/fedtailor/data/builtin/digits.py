"""Handwritten digits that come with the library: 1797 images of 8 x 8, two labels a client."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int, resolve_count
from fedtailor.data.builtin.arrays import from_arrays
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.rng import make_rng
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

NUM_LABELS = 10
MIN_PER_LABEL = 4  # of each of its labels, what a client has at least


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
    unseen_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """Digits 0 to 9, each client with a few labels and its own, uneven share of their examples.

    The server has a share (float) or count (int) of all examples, drawn at random; the clients have the rest. Labels
    are dealt so that all are held equally often, give or take one; with fewer than 10 to deal the others stay unused.
    The new people are those dealt to last, so that they know, as a group, the same labels as those who train.
    """
    require_int("digits", "clients", clients, 1)
    require_int("digits", "labels", labels, 1)
    require(labels <= NUM_LABELS, f"digits: labels must be at most {NUM_LABELS}, got {labels}.")
    pixels, y = load_digits()
    x = pixels.reshape(-1, 1, 8, 8)
    order = make_rng(seed, DataStream.DIGITS_SERVER).permutation(len(x))
    server_rows, rest = np.split(order, [min(resolve_count("digits", server, len(x)), len(x))])
    owners = _partition_examples(
        y[rest], clients, labels, make_rng(seed, DataStream.DIGITS_PARTITION)
    )
    is_assigned_row = rest[owners >= 0]
    dataset = from_arrays(
        x[is_assigned_row],
        y[is_assigned_row],
        owners[owners >= 0],
        name="digits",
        classes=NUM_LABELS,
        test_share=test_share,
        validation_clients=validation_clients,
        unseen_clients=unseen_clients,
        adapt=adapt,
        support=support,
        server=(x[server_rows], y[server_rows]) if len(server_rows) else None,
        seed=seed,
        scale=1 / 16,
    )
    sizes = [len(dataset.groups[group]) for group in ("train", "validation", "unseen")]
    train, validation, new = np.split(np.arange(clients), np.cumsum(sizes)[:-1])
    groups = {"train": train, "participating": train, "validation": validation, "unseen": new}
    return replace(dataset, groups=groups, skip_checks=True)  # the same people, grouped otherwise


def _partition_examples(
    y: NDArray[np.int64], clients: int, labels: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Whose each example is; -1 where its label was dealt to nobody."""
    most = int(np.bincount(y, minlength=NUM_LABELS).min()) // MIN_PER_LABEL * NUM_LABELS // labels
    served = f"{MIN_PER_LABEL} examples of each of {labels} labels from the {len(y)} that the server leaves"
    require(clients <= most, f"digits: clients must be at most {most} for {served}, got {clients}.")
    hands, weights = _deal_labels(clients, labels, rng), rng.lognormal(0, 1, clients)
    owners = np.full(len(y), -1)
    for label in range(NUM_LABELS):
        client_ids = np.flatnonzero(hands[:, label])
        if len(client_ids):
            examples = rng.permutation(np.flatnonzero(y == label))
            owners[examples] = np.repeat(
                client_ids, _split_unevenly(len(examples), weights[client_ids])
            )
    return owners


def _deal_labels(clients: int, labels: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Who has which labels: each client in turn gets those dealt least so far, ties broken at random."""
    hands = np.zeros((clients, NUM_LABELS), bool)
    for hand in hands:
        hand[np.lexsort((rng.random(NUM_LABELS), hands.sum(axis=0)))[:labels]] = True
    return hands


def _split_unevenly(total: int, weights: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sizes that add up to the total: LEAST for each, and of the rest a part by weight."""
    bounds = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1
    return np.asarray(
        MIN_PER_LABEL
        + np.diff(np.floor(bounds * (total - MIN_PER_LABEL * len(weights))), prepend=0),
        np.int64,
    )
