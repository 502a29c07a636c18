"""Splits of clients' examples into train, test and adapt, and groups of clients."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Split
from fedtailor.errors import is_number, require

IntArray = NDArray[np.int64]
Groups = dict[str, IntArray]
"""Client ids of each group."""


class SplitConfig(NamedTuple):
    """Shares by which a client's examples, and the clients, are divided."""

    test_share: float  # of a client's examples
    adapt: str | float  # "train", "test", or a share of a client's test examples
    validation_clients: float  # of the clients
    unseen_clients: float  # of the clients
    support: float  # of a client's train examples, for meta-learning to adapt on

    def validate(self, name: str) -> None:
        """Raise `InputError`, with the name of the data set, for what is not a valid share."""
        shares: dict[str, Any] = self._asdict()
        if isinstance(self.adapt, str):
            del shares["adapt"]
            require(
                self.adapt in ("train", "test"),
                f"{name}: adapt must be train, test or a share of the test part, got "
                f"{self.adapt!r}.",
            )
        for option, share in shares.items():
            is_share = is_number(share) and 0 <= share < 1
            require(
                is_share, f"{name}: {option} must be a share from 0 to less than 1, got {share}."
            )
        require(
            self.validation_clients + self.unseen_clients < 1,
            f"{name}: validation_clients and unseen_clients must leave clients for training, got "
            f"{self.validation_clients} and {self.unseen_clients}.",
        )


def compute_offsets(sizes: IntArray) -> IntArray:
    """Return where each client's entries begin, and where the last one's end, [clients + 1]."""
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


def take_share(share: float, sizes: IntArray) -> IntArray:
    """Return a share of each size, rounded down."""
    # The tolerance is for products such as 0.29 * 100, which is slightly less than 29.
    counts: IntArray = np.floor(share * sizes + 1e-9).astype(np.int64)
    return counts


def count_test_examples(sizes: IntArray, share: float) -> IntArray:
    """Return a share of each client's examples, but never all of them, [clients]."""
    return np.minimum(take_share(share, sizes), sizes - 1)


def split_sorted_rows(
    rows: IntArray, sizes: IntArray, test_sizes: IntArray, adapt: str | float
) -> dict[str, Split]:
    """Return the splits "train", "test" and "adapt" of rows that are sorted by client.

    Args:
        rows: Rows of all clients, those for test first within each client, [rows].
        sizes: Number of rows of each client, [clients].
        test_sizes: Number of rows for test of each client, [clients].
        adapt: "train" or "test", the split that is also "adapt"; or the share of the rows for test
            that are "adapt" instead, the first ones.
    """
    adapt_sizes = np.zeros_like(test_sizes)
    if not isinstance(adapt, str):
        adapt_sizes = take_share(adapt, test_sizes)
    rank = np.arange(len(rows)) - np.repeat(compute_offsets(sizes)[:-1], sizes)
    is_adapt = rank < np.repeat(adapt_sizes, sizes)
    is_test = rank < np.repeat(test_sizes, sizes)
    splits = {
        "train": Split(rows[~is_test], compute_offsets(sizes - test_sizes)),
        "test": Split(rows[is_test & ~is_adapt], compute_offsets(test_sizes - adapt_sizes)),
    }
    if isinstance(adapt, str):
        splits["adapt"] = splits[adapt]
    else:
        splits["adapt"] = Split(rows[is_adapt], compute_offsets(adapt_sizes))
    return splits


def split_rows(
    owners: IntArray,
    count: int,
    split_config: SplitConfig,
    rng: np.random.Generator,
    strategy: str = "random",
    is_test: NDArray[np.bool_] | None = None,
) -> dict[str, Split]:
    """Return the splits "train", "test" and "adapt" of the rows 0, 1, ..., which all have owners.

    Args:
        owners: Client of each row, [rows].
        count: Number of clients.
        split_config: Shares for test and for adapting.
        rng: Shuffles the rows, unless the strategy is "last".
        strategy: Which rows are for test: "random" ones; the "last" ones of each client, the first
            of which may be adapted on; or "own", those of the data set's own test part. A client
            with rows of the test part alone is split at random.
        is_test: Whether each row is of the data set's own test part, [rows]; only for "own".
    """
    rows = np.arange(len(owners))
    if strategy != "last":
        rows = rng.permutation(len(owners))
    sizes = np.bincount(owners, minlength=count)
    test_sizes = count_test_examples(sizes, split_config.test_share)
    # Within each client, the rows for test are sorted to the front.
    if strategy == "own" and is_test is not None:
        own_test_sizes = np.bincount(owners[is_test], minlength=count)
        rows = rows[np.argsort(~is_test[rows], kind="stable")]
        test_sizes = np.where(own_test_sizes < sizes, own_test_sizes, test_sizes)
    if strategy == "last":
        is_last = _is_last(owners, sizes, test_sizes)
        rows = rows[np.argsort(~is_last, kind="stable")]
    rows = rows[np.argsort(owners[rows], kind="stable")]
    return split_sorted_rows(rows, sizes, test_sizes, split_config.adapt)


def _is_last(owners: IntArray, sizes: IntArray, test_sizes: IntArray) -> NDArray[np.bool_]:
    """Return which rows are among the last `test_sizes` rows of their client, [rows]."""
    order = np.argsort(owners, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(compute_offsets(sizes)[:-1], sizes)
    return np.asarray(rank >= (sizes - test_sizes)[owners])


def compute_group_sizes(
    count: int, split_config: SplitConfig, num_trainable: int
) -> tuple[int, int]:
    """Return the numbers of validation and of unseen clients, which leave at least one to train.

    Args:
        count: Number of clients.
        split_config: Shares of validation and unseen clients.
        num_trainable: Number of clients that can train; all others are unseen.
    """
    num_unseen = min(round(split_config.unseen_clients * count), count - 1)
    num_unseen = max(num_unseen, count - num_trainable)
    max_validation = max(0, count - 1 - num_unseen)
    num_validation = min(round(split_config.validation_clients * count), max_validation)
    return num_validation, num_unseen


def assign_random_groups(
    is_test_only: NDArray[np.bool_], split_config: SplitConfig, rng: np.random.Generator
) -> Groups:
    """Return groups with random validation and unseen clients; the rest train and participate.

    Args:
        is_test_only: Whether each client has test examples alone, [clients]; such clients cannot
            train and are unseen.
        split_config: Shares of validation and unseen clients.
        rng: Draws the clients.
    """
    count = len(is_test_only)
    num_trainable = count - int(is_test_only.sum())
    num_validation, num_unseen = compute_group_sizes(count, split_config, num_trainable)
    order = rng.permutation(count)
    order = order[np.argsort(~is_test_only[order], kind="stable")]
    unseen, validation, train = np.split(order, [num_unseen, num_unseen + num_validation])
    return _build_groups(train, validation, unseen)


def assign_groups_covering_labels(
    has_label: NDArray[np.bool_], is_test_only: NDArray[np.bool_], split_config: SplitConfig
) -> Groups:
    """Return groups whose unseen clients together have all labels that others have.

    Partitioners deal labels in turn, so that the last clients are a fair sample. They are unseen,
    except those that make room for clients with labels that would be missing. Labels of a single
    client may be missing.

    Args:
        has_label: Whether each client has each label, [clients, labels].
        is_test_only: Whether each client has test examples alone, [clients]; such clients cannot
            train and are unseen.
        split_config: Shares of validation and unseen clients.
    """
    trainable = np.flatnonzero(~is_test_only)
    test_only = np.flatnonzero(is_test_only)
    num_validation, num_unseen = compute_group_sizes(len(has_label), split_config, len(trainable))
    num_covering = num_unseen - len(test_only)
    covering = trainable[select_clients_covering_labels(has_label[trainable], num_covering)]
    unseen = np.append(test_only, covering)
    rest = np.setdiff1d(trainable, unseen)
    train, validation = np.split(rest, [len(rest) - num_validation])
    return _build_groups(train, validation, unseen)


def select_clients_covering_labels(has_label: NDArray[np.bool_], count: int) -> IntArray:
    """Return `count` clients that together have all labels that two or more clients have.

    Late clients are preferred. If no such choice is found, the clients have many of these labels.
    `has_label` is [clients, labels].
    """
    is_missing = has_label.sum(axis=0) > 1
    candidates = list(range(len(has_label)))[::-1]
    chosen: list[int] = []
    while len(chosen) < count and is_missing.any():
        num_new_labels = (has_label[candidates] & is_missing).sum(axis=1)
        # Take the latest client that adds its share of the missing labels, or as many as possible.
        num_places = count - len(chosen)
        fair_share = -(-int(is_missing.sum()) // num_places)
        needed = min(fair_share, int(num_new_labels.max()))
        client = candidates.pop(int(np.argmax(num_new_labels >= needed)))
        chosen.append(client)
        is_missing &= ~has_label[client]
    chosen += candidates[: count - len(chosen)]
    return np.sort(np.array(chosen, np.int64))


def _build_groups(train: IntArray, validation: IntArray, unseen: IntArray) -> Groups:
    train = np.sort(train).astype(np.int64)
    return {
        "train": train,
        "participating": train,
        "validation": np.sort(validation).astype(np.int64),
        "unseen": np.sort(unseen).astype(np.int64),
    }
