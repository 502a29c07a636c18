"""Parts that partitioners share: checks, balanced labels, uneven sizes, and random assignment."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import UNASSIGNED, Array
from fedtailor.errors import InputError, is_number, require

Owners = NDArray[np.int64]
"""Client of each example, or `UNASSIGNED`, [examples]."""


class LabelHierarchy(NamedTuple):
    """Labels in groups: all examples of a fine label have the same coarse label."""

    coarse: Array  # [examples]
    fine: Array  # [examples]


def encode_labels(name: str, y: Array, clients: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the labels that occur, sorted, and which of them each example has.

    Args:
        name: Partitioner that errors name.
        y: Label of each example, [examples]; others than integers raise `InputError`.
        clients: Number of clients, from 1 to the number of examples.

    Returns:
        The different labels, [labels], and for each example an index into them, [examples].
    """
    require(
        y.ndim == 1 and y.dtype.kind in "iu",
        f"{name}: labels must be integers, got {list(y.shape)} of {y.dtype}.",
    )
    require_int(name, "clients", clients, 1)
    require(
        clients <= len(y), f"{name}: clients must be at most the {len(y)} examples, got {clients}."
    )
    labels, label_ids = np.unique(y, return_inverse=True)
    return labels, label_ids.astype(np.int64)


def require_in_range(name: str, option: str, value: object, low: float, high: float) -> None:
    """Raise `InputError` unless `value` is a number from `low` to `high`, both included.

    Args:
        name: Partitioner, or other function, that the error names.
        option: Option that the error names.
        value: Value of the option.
        low: Smallest value allowed.
        high: Largest value allowed.
    """
    is_inside = is_number(value) and low <= float(value) <= high  # type: ignore[arg-type]
    require(
        is_inside, f"{name}: {option} must be a number from {low:g} to {high:g}, got {value!r}."
    )


def require_enough_examples(name: str, minimum: int, clients: int, examples: int) -> None:
    """Raise `InputError` unless every client can have a minimum number of examples.

    Args:
        name: Partitioner that the error names.
        minimum: Minimum number of examples of a client, its option `least`.
        clients: Number of clients.
        examples: Number of examples of all clients together.
    """
    require_int(name, "least", minimum, 1)
    needed = clients * minimum
    require(
        needed <= examples,
        f"{name}: {clients} clients with at least {minimum} need {needed} of {examples} examples.",
    )


def deal_labels(
    clients: int, labels_per_client: int, num_labels: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Return which labels each client has, such that all labels have equally many clients.

    The clients take turns: each gets the labels dealt least so far, ties broken at random. The
    numbers of clients of two labels differ by at most one.

    Args:
        clients: Number of clients.
        labels_per_client: Number of labels of each client.
        num_labels: Number of labels to deal.
        rng: Breaks the ties.

    Returns:
        Mask, [clients, labels].
    """
    has_label = np.zeros((clients, num_labels), bool)
    times_dealt = np.zeros(num_labels, np.int64)
    for client_has_label in has_label:
        order = np.lexsort((rng.random(num_labels), times_dealt))
        client_has_label[order[:labels_per_client]] = True
        times_dealt += client_has_label
    return has_label


def split_unevenly(total: int, weights: NDArray[np.float64], minimum: int = 0) -> NDArray[np.int64]:
    """Return sizes that add up to `total`: `minimum` for each, and the rest in parts by weight.

    Args:
        total: Sum of the sizes, at least `minimum` for each.
        weights: Weight of each part, [parts]; they need not add up to 1.
        minimum: Minimum of each size.
    """
    bounds = np.cumsum(weights) / weights.sum()
    bounds[-1] = 1  # a rounding error would lose an example
    rest = total - minimum * len(weights)
    parts = np.diff(np.floor(bounds * rest), prepend=0)
    return np.asarray(minimum + parts, np.int64)


def assign_by_counts(
    name: str,
    labels: Array,
    label_ids: NDArray[np.int64],
    counts: NDArray[np.int64],
    rng: np.random.Generator,
) -> Owners:
    """Return the client of each example, with random examples of each label for each client.

    Args:
        name: Partitioner that the error names where a label has too few examples.
        labels: The different labels, [labels].
        label_ids: Index of each example's label, [examples].
        counts: Number of examples of each label that each client gets, [clients, labels].
        rng: Chooses the examples.
    """
    needed = counts.sum(axis=0)
    available = np.bincount(label_ids, minlength=len(labels))
    is_short = needed > available
    if is_short.any():
        label_id = int(is_short.argmax())
        num_clients = int((counts[:, label_id] > 0).sum())
        raise InputError(
            f"{name}: {needed[label_id]} examples of label {labels[label_id]} are needed for "
            f"{num_clients} clients, but there are {available[label_id]}; take fewer clients or "
            "fewer examples for each."
        )
    owners = np.full(len(label_ids), UNASSIGNED, np.int64)
    for label_id in range(len(labels)):
        examples = rng.permutation(np.flatnonzero(label_ids == label_id))
        client_ids = np.repeat(np.arange(len(counts)), counts[:, label_id])
        owners[examples[: len(client_ids)]] = client_ids
    return owners
