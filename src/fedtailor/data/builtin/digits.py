"""Handwritten digits that come with the library: 1797 images of 8 x 8, two labels per client."""

from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int, resolve_count
from fedtailor.data.builtin.arrays import SplitOptions, from_arrays
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import UNASSIGNED
from fedtailor.data.partition.helpers import deal_labels, split_unevenly
from fedtailor.data.rng import make_rng
from fedtailor.data.row_counts import RowCounts, make_left_out
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

NUM_LABELS = 10

MIN_PER_LABEL = 4
"""Minimum number of examples that a client has of each of its labels."""


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images, [1797, 64] brightnesses from 0 to 16, and their labels, [1797].

    `digits.md` says where they are from.
    """
    arrays = read_npz(Path(__file__).with_suffix(".npz"), ("x", "y"))
    return arrays["x"], arrays["y"].astype(np.int64)


def digits(
    *,
    clients: int = 50,
    labels: int = 2,
    server: float = 0.05,
    seed: int = 0,
    **split_options: Unpack[SplitOptions],
) -> FederatedDataset:
    """Load handwritten digits with few labels for each client and uneven sizes.

    The server has random examples of all, and the clients the rest. All labels have equally many
    clients, give or take one; labels of no client are not used. The unseen clients are the last
    ones, which together have the same labels as the train clients.

    Args:
        clients: Number of clients.
        labels: Number of labels of each client.
        server: Share (float) or number (int) of examples that the server has.
        seed: Seed of everything random.
        split_options: test_share, validation_clients, unseen_clients, adapt and support, as for
            `from_arrays`.
    """
    require_int("digits", "clients", clients, 1)
    require_int("digits", "labels", labels, 1)
    require(labels <= NUM_LABELS, f"digits: labels must be at most {NUM_LABELS}, got {labels}.")
    pixels, y = load_digits()
    x = pixels.reshape(-1, 1, 8, 8)
    order = make_rng(seed, DataStream.DIGITS_SERVER).permutation(len(x))
    num_server_examples = min(resolve_count("digits", server, len(x)), len(x))
    server_rows, rest = np.split(order, [num_server_examples])
    partition_rng = make_rng(seed, DataStream.DIGITS_PARTITION)
    owners = _partition_examples(y[rest], clients, labels, partition_rng)
    is_assigned = owners != UNASSIGNED
    rows = rest[is_assigned]
    dataset = from_arrays(
        x[rows],
        y[rows],
        owners[is_assigned],
        name="digits",
        classes=NUM_LABELS,
        server=(x[server_rows], y[server_rows]) if num_server_examples > 0 else None,
        seed=seed,
        scale=1 / 16,
        **split_options,
    )
    # The groups keep their sizes, but have clients in the order in which labels were dealt.
    num_train = len(dataset.groups["train"])
    num_validation = len(dataset.groups["validation"])
    train, validation, unseen = np.split(
        np.arange(clients), [num_train, num_train + num_validation]
    )
    groups = {"train": train, "participating": train, "validation": validation, "unseen": unseen}
    num_unused = len(rest) - len(rows)
    row_counts = RowCounts(
        read=len(x),
        clients=len(rows),
        server=num_server_examples,
        shared=0,
        left_out=make_left_out({"with labels of no client": num_unused}, num_unused),
        elsewhere=0,
        given_up=0,
        equal=0,
    )
    # Only the grouping has changed.
    return replace(dataset, groups=groups, row_counts=row_counts, should_check=False)


def _partition_examples(
    y: NDArray[np.int64], clients: int, labels: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the client of each example, or `UNASSIGNED` where no client has its label.

    Clients have lognormal weights, by which the examples of each label are divided.
    """
    smallest_label = int(np.bincount(y, minlength=NUM_LABELS).min())
    max_clients = smallest_label // MIN_PER_LABEL * NUM_LABELS // labels
    require(
        clients <= max_clients,
        f"digits: clients must be at most {max_clients} for {MIN_PER_LABEL} examples of each of "
        f"{labels} labels from the {len(y)} that the server leaves, got {clients}.",
    )
    has_label = deal_labels(clients, labels, NUM_LABELS, rng)
    weights = rng.lognormal(0, 1, clients)
    owners = np.full(len(y), UNASSIGNED)
    for label in range(NUM_LABELS):
        client_ids = np.flatnonzero(has_label[:, label])
        if len(client_ids) == 0:
            continue
        examples = rng.permutation(np.flatnonzero(y == label))
        sizes = split_unevenly(len(examples), weights[client_ids], MIN_PER_LABEL)
        owners[examples] = np.repeat(client_ids, sizes)
    return owners
