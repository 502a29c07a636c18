"""PFLlib's split of a labelled set, recomputed by the rule of its generator.

The rule (github.com/TsingZ0/PFLlib, dataset/utils/dataset_utils.py, `dir`), in NumPy's legacy
stream of seed 1:

    for each class k, in their order:
        shuffle the rows of the class
        draw q ~ Dirichlet(alpha, ..., alpha) over the clients
        set q_i to 0 for clients that have N / clients rows or more; divide q by its sum
        cut the rows where the cumulated q says, rounded down
    if a client has fewer than `least_examples` rows, do all of it again, further along the stream
    for each client: the train part is 75 % of its rows, rounded down, in a random order

N counts the canonical train and test parts together, train before test. The stream does not depend
on the rows themselves, so how many rows of each class a client gets follows from the sizes of the
classes alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

SEED = 1
NUM_CLIENTS = 20
ALPHA = 0.1
TRAIN_SHARE = 0.75


class ClientRows(NamedTuple):
    """The rows of one client."""

    train: Rows
    test: Rows


def split(
    labels: NDArray[np.integer],
    *,
    num_clients: int = NUM_CLIENTS,
    alpha: float = ALPHA,
    least_examples: int = 1,
    seed: int = SEED,
) -> list[ClientRows]:
    """Return the rows of each client.

    Args:
        labels: The label of every example, those of the canonical train part first.
        num_clients: Number of clients.
        alpha: Concentration of the Dirichlet distribution.
        least_examples: Number of rows that every client must have.
        seed: Seed of the generator.
    """
    stream = np.random.RandomState(seed)
    parts = _deal(labels, num_clients, alpha, stream)
    while min(len(part) for part in parts) < least_examples:
        parts = _deal(labels, num_clients, alpha, stream)
    return [_hold_out_test(part, stream) for part in parts]


def _deal(
    labels: NDArray[np.integer], num_clients: int, alpha: float, stream: np.random.RandomState
) -> list[Rows]:
    """Deal out the rows of every class once."""
    enough = len(labels) / num_clients
    parts: list[list[Rows]] = [[] for _ in range(num_clients)]
    sizes = np.zeros(num_clients, np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        stream.shuffle(rows)
        shares = stream.dirichlet(np.full(num_clients, alpha))
        shares = shares * (sizes < enough)
        shares = shares / shares.sum()
        cuts = (np.cumsum(shares) * len(rows)).astype(np.int64)
        for client, piece in enumerate(np.split(rows, cuts[:-1])):
            parts[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(pieces) for pieces in parts]


def _hold_out_test(rows: Rows, stream: np.random.RandomState) -> ClientRows:
    """Divide a client's rows at random; the test part comes first in the random order."""
    num_train = int(TRAIN_SHARE * len(rows))
    num_test = len(rows) - num_train
    order = stream.permutation(len(rows))
    return ClientRows(train=rows[order[num_test:]], test=rows[order[:num_test]])


def count_labels(clients: Sequence[ClientRows], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return how many examples of each class each client has, [clients, classes]."""
    num_classes = int(labels.max()) + 1
    counts = [
        np.bincount(labels[np.concatenate(client)], minlength=num_classes) for client in clients
    ]
    return np.stack(counts)
