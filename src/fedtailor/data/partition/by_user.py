"""A stored data set's own clients, and their rows, as ranges or as an owner of each row.

The rows of a stored data set are sorted by client, so the rows of each client are a range.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import UNASSIGNED, Array, Split
from fedtailor.data.partition import Owners
from fedtailor.data.partition.options import GeneralOptions, NaturalOptions
from fedtailor.data.partition.splits import count_test_examples, take_share
from fedtailor.data.rng import make_rng
from fedtailor.data.store import StoredDataset, make_range_split
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

Rows = NDArray[np.int64]


class NaturalClients(NamedTuple):
    """Some of a data set's own clients, and the ranges of their rows."""

    client_ids: Rows  # [clients] numbers in the data set
    starts: Rows  # [clients] first row
    sizes: Rows  # [clients] number of rows
    test_counts: Rows  # [clients] number of rows of the own test part; 0 unless split is "own"

    @property
    def is_test_only(self) -> NDArray[np.bool_]:
        """Whether each client has test examples alone, so that it cannot train, [clients]."""
        return np.asarray(self.test_counts == self.sizes)

    def select(self, selection: Rows) -> "NaturalClients":
        """Return the clients at some positions."""
        return NaturalClients(*(column[selection] for column in self))

    def get_rows(self) -> Rows:
        """Return all rows of the clients, one client after another."""
        ends = np.cumsum(self.sizes)
        shifts = self.starts - (ends - self.sizes)
        return np.asarray(np.repeat(shifts, self.sizes) + np.arange(self.sizes.sum()))


def select_clients(
    data: StoredDataset, general: GeneralOptions, natural: NaturalOptions
) -> NaturalClients:
    """Return the clients with at least `least` examples, or `clients` random ones of these.

    Args:
        data: Stored data set.
        general: Options, of which `clients`, `split` and `seed` are used.
        natural: Options of the partition; errors come for those of a wrong type.
    """
    has_clients = len(data.client_names) > 1 or str(data.client_names[0]) != ""
    require(
        has_clients,
        f"{data.name}: partition=natural needs clients, but this data set has none of its own; "
        "choose another partition, such as partition=dirichlet.",
    )
    least = natural.least
    count = general.clients
    require_int(data.name, "least", least, 1)
    for option, value in (("most", natural.most), ("clients", count)):
        if value is not None:
            require_int(data.name, option, value, 1)
    sizes = np.diff(data.offsets)
    client_ids = np.flatnonzero(sizes >= least)
    require(
        len(client_ids) > 0,
        f"{data.name}: least={least} leaves no client, the largest client has {sizes.max()}.",
    )
    if count is not None:
        require(
            count <= len(client_ids),
            f"{data.name}: clients must be at most the {len(client_ids)} that have least={least} "
            f"examples, got {count}.",
        )
        rng = make_rng(general.seed, DataStream.STORE_PARTITION)
        client_ids = np.sort(rng.permutation(client_ids)[:count])
    return NaturalClients(
        client_ids=client_ids,
        starts=np.asarray(data.offsets[:-1])[client_ids],
        sizes=sizes[client_ids],
        test_counts=_count_own_test_examples(data, general.split)[client_ids],
    )


def count_left_out(
    data: StoredDataset, clients: NaturalClients, natural: NaturalOptions
) -> dict[str, int]:
    """Return how many rows are of clients that are not selected, by reason."""
    sizes = np.diff(data.offsets)
    num_small = int(sizes[sizes < natural.least].sum())
    num_other = data.num_rows - int(clients.sizes.sum()) - num_small
    return {
        f"of clients with fewer than least={natural.least} examples": num_small,
        "of clients that were not drawn": num_other,
    }


def get_test_column(data: StoredDataset) -> Array:
    """Return whether each row is of the data set's own test part, [rows].

    Raise `InputError` for a data set without such a part.
    """
    require(
        "is_test" in data.columns,
        f"{data.name}: split=own needs a test part, but this set has none; take random.",
    )
    return data.columns["is_test"]


def _count_own_test_examples(data: StoredDataset, split: str) -> Rows:
    """Return how many rows of each client are of the own test part; 0 unless split is "own"."""
    if split != "own":
        return np.zeros(data.num_clients, np.int64)
    counts: Rows = np.add.reduceat(get_test_column(data), data.offsets[:-1], dtype=np.int64)
    return counts


def compute_owners(
    data: StoredDataset, clients: NaturalClients, general: GeneralOptions, natural: NaturalOptions
) -> Owners:
    """Return the owner of each row of the data set, at most `most` rows of each client.

    Args:
        data: Stored data set.
        clients: Clients that rows are assigned to.
        general: Options, of which `split` is used: with "own", `most` counts rows of the own test
            part and other rows separately.
        natural: Options of the partition.

    Returns:
        Position in `clients` of each row's owner, or `UNASSIGNED`, [rows of the data set].
    """
    positions = np.full(data.num_clients, UNASSIGNED, np.int64)
    positions[clients.client_ids] = np.arange(len(clients.client_ids))
    owners = np.repeat(positions, np.diff(data.offsets))
    if natural.most is not None:
        rank = _rank_rows(data, should_separate_test=general.split == "own")
        owners[rank >= natural.most] = UNASSIGNED
    return owners


def _rank_rows(data: StoredDataset, should_separate_test: bool) -> Rows:
    """Return how many rows of the same client come before each row, [rows].

    With `should_separate_test`, rows of the own test part and other rows are counted separately.
    """
    starts = np.repeat(data.offsets[:-1], np.diff(data.offsets))
    rank = np.arange(data.num_rows) - starts
    if not should_separate_test:
        return np.asarray(rank)
    is_test = get_test_column(data)
    tests_before = np.cumsum(is_test) - is_test
    test_rank = tests_before - tests_before[starts]
    return np.asarray(np.where(is_test, test_rank, rank - test_rank))


def has_test_rows_last(data: StoredDataset) -> bool:
    """Return whether each client's rows of the own test part come after its other rows."""
    is_test = get_test_column(data)
    rows_after_test = np.flatnonzero(is_test[:-1] & ~is_test[1:]) + 1
    return bool(np.isin(rows_after_test, data.offsets).all())


def split_into_ranges(
    clients: NaturalClients, general: GeneralOptions, natural: NaturalOptions
) -> dict[str, Split]:
    """Return splits by ranges of rows, which take no memory: first train, then test.

    Args:
        clients: Clients to split; with split "own", their rows of the own test part come last.
        general: Options, of which `split` ("last" or "own") and the shares are used.
        natural: Options of the partition.
    """
    most = natural.most
    split_config = general.split_config
    sizes = _cap_sizes(clients.sizes, most)
    test_sizes_by_share = count_test_examples(sizes, split_config.test_share)
    train_sizes_by_share = sizes - test_sizes_by_share
    # Clients with rows of the own test part alone are split by share.
    is_by_share = clients.is_test_only | (general.split == "last")
    own_train_counts = clients.sizes - clients.test_counts
    own_train_sizes = _cap_sizes(own_train_counts, most)
    own_test_sizes = _cap_sizes(clients.test_counts, most)
    train_sizes = np.where(is_by_share, train_sizes_by_share, own_train_sizes)
    test_sizes = np.where(is_by_share, test_sizes_by_share, own_test_sizes)
    # `most` may leave out rows between the train rows and those of the own test part.
    test_starts = clients.starts + np.where(is_by_share, train_sizes_by_share, own_train_counts)
    adapt = split_config.adapt
    splits = {"train": make_range_split(clients.starts, train_sizes)}
    if isinstance(adapt, str):
        splits["test"] = make_range_split(test_starts, test_sizes)
        splits["adapt"] = splits[adapt]
        return splits
    adapt_sizes = take_share(adapt, test_sizes)
    splits["test"] = make_range_split(test_starts + adapt_sizes, test_sizes - adapt_sizes)
    splits["adapt"] = make_range_split(test_starts, adapt_sizes)
    return splits


def _cap_sizes(sizes: Rows, max_size: int | None) -> Rows:
    return sizes if max_size is None else np.minimum(sizes, max_size)
