"""Draws of the server's examples from the clients' data set, before or after it is partitioned.

The functions return rows or clients and leave it to the caller to take them from the clients.
"""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int, resolve_count
from fedtailor.data.examples import UNASSIGNED, Array
from fedtailor.data.partition import Owners
from fedtailor.errors import InputError, require

Rows = NDArray[np.int64]


def draw_examples(name: str, y: Array, server: float, rng: np.random.Generator) -> Rows:
    """Return random examples, sorted.

    Args:
        name: Data set that errors name.
        y: Label of each example, [examples, ...]; only their number matters.
        server: Number of examples to draw (int), or share of them (float); some must remain.
        rng: Draws the examples.
    """
    count = resolve_count(name, server, len(y))
    order = rng.permutation(len(y))
    require(
        count < len(order),
        f"{name}: server must leave some of the {len(order)} examples, got {server}.",
    )
    return np.sort(order[:count])


def draw_balanced(name: str, y: Array, server: float, rng: np.random.Generator) -> Rows:
    """Return random examples, sorted, equally many of each class, give or take one.

    Args:
        name: Data set that errors name.
        y: Label of each example, [examples].
        server: Number of examples to draw (int), or share of them (float).
        rng: Draws the examples.
    """
    require(
        y.ndim == 1 and y.dtype.kind in "iu",
        f"{name}: server_from=classes needs one label for each example.",
    )
    count = resolve_count(name, server, len(y))
    order = rng.permutation(len(y))
    labels, label_ids, available = np.unique(y[order], return_inverse=True, return_counts=True)
    quotient, remainder = divmod(count, len(labels))
    needed = quotient + (np.arange(len(labels)) < remainder)
    is_short = needed > available
    if is_short.any():
        label_id = int(is_short.argmax())
        raise InputError(
            f"{name}: server must be at most {available[label_id]} examples of label "
            f"{labels[label_id]}, got {needed[label_id]} by server={server}."
        )
    by_label = np.argsort(label_ids, kind="stable")
    rank = np.arange(len(y)) - np.repeat(np.cumsum(available) - available, available)
    is_drawn = rank < np.repeat(needed, available)
    return np.sort(order[by_label[is_drawn]])


def draw_from_clients(
    name: str, owners: Owners, server: float, rng: np.random.Generator, *, server_each: int = 50
) -> Rows:
    """Return random examples of random clients, sorted; each client keeps at least one.

    Args:
        name: Data set that errors name.
        owners: Client of each example, or `UNASSIGNED`, [examples].
        server: Number of clients to draw from (int), or share of them (float).
        rng: Draws clients and examples.
        server_each: Number of examples that the server draws of each of these clients.
    """
    require_int(name, "server_each", server_each, 1)
    sizes = np.bincount(owners[owners != UNASSIGNED])
    count = resolve_count(name, server, len(sizes))
    large_clients = rng.permutation(np.flatnonzero(sizes > server_each))
    require(
        count <= len(large_clients),
        f"{name}: server must be at most {len(large_clients)} clients, got {server}: only "
        f"{len(large_clients)} of {len(sizes)} clients have more than {server_each} examples.",
    )
    is_candidate = np.isin(owners, large_clients[:count])
    order = rng.permutation(np.flatnonzero(is_candidate))
    by_client = order[np.argsort(owners[order], kind="stable")]
    client_sizes = np.bincount(owners[by_client])
    client_sizes = client_sizes[client_sizes > 0]
    begins = np.cumsum(client_sizes) - client_sizes
    rank = np.arange(len(by_client)) - np.repeat(begins, client_sizes)
    return np.sort(by_client[rank < server_each])


def draw_clients(
    name: str, is_test_only: NDArray[np.bool_], count: int, rng: np.random.Generator
) -> Rows:
    """Return random clients in the order in which they are drawn, first those that cannot train.

    Args:
        name: Data set that the error names.
        is_test_only: Whether each client has test examples alone and so cannot train, [clients].
        count: Number of clients to draw; one that can train must remain.
        rng: Draws the clients.
    """
    order = rng.permutation(len(is_test_only))
    order = order[np.argsort(~is_test_only[order], kind="stable")]
    num_test_only = int(is_test_only.sum())
    num_trainable = len(is_test_only) - num_test_only
    require(
        count - num_test_only < num_trainable,
        f"{name}: server must leave one of the {num_trainable} clients that can train, got {count} "
        "clients.",
    )
    return order[:count]
