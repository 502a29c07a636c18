"""The people that a data set has of its own, and what is theirs, as runs of rows or row by row."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int
from fedtailor.data.examples import Split
from fedtailor.data.partition import UNASSIGNED, Owners
from fedtailor.data.partition.splits import SplitConfig, count_test_examples, take_share
from fedtailor.data.rng import make_rng
from fedtailor.data.store import StoredDataset, make_range_split
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream

Rows = NDArray[np.int64]


class NaturalClients(NamedTuple):
    """Those of a set's own people who are looked at."""

    client_ids: Rows  # of the set's
    starts: Rows
    sizes: Rows
    test_counts: Rows  # how many of their rows are of the set's own test part; nobody's, if that does not matter

    @property
    def is_test_only(self) -> NDArray[np.bool_]:
        """Who has nothing but test examples, and so cannot train."""
        return np.asarray(self.test_counts == self.sizes)

    def select(self, selection: Any) -> "NaturalClients":
        """Some of them."""
        return NaturalClients(*(each[selection] for each in self))

    def get_rows(self) -> Rows:
        """All their rows."""
        ends = np.cumsum(self.sizes)
        return np.asarray(
            np.repeat(self.starts - (ends - self.sizes), self.sizes) + np.arange(self.sizes.sum())
        )


def select_clients(data: StoredDataset, options: dict[str, Any]) -> NaturalClients:
    """The people with at least so many examples, or so many at random of these."""
    known = len(data.client_names) > 1 or str(data.client_names[0]) != ""
    require(
        known,
        f"{data.name}: there are no people in this set; choose a partition (partition=dirichlet, say).",
    )
    for option in ("least", *(key for key in ("most", "clients") if options[key] is not None)):
        require_int(data.name, option, options[option], 1)
    starts, sizes = np.asarray(data.offsets[:-1]), np.diff(data.offsets)
    large = np.flatnonzero(sizes >= options["least"])
    least = f"least={options['least']}"
    require(
        len(large) > 0,
        f"{data.name}: {least} leaves no client, the largest client has {sizes.max()}.",
    )
    count = options["clients"]
    if count is not None:
        require(
            count <= len(large),
            f"{data.name}: clients must be at most {len(large)}, who have {least}, got {count}.",
        )
        large = np.sort(
            make_rng(options["seed"], DataStream.STORE_PARTITION).permutation(large)[:count]
        )
    return NaturalClients(
        large, starts[large], sizes[large], _count_test_examples(data, options)[large]
    )


def _count_test_examples(data: StoredDataset, options: dict[str, Any]) -> Rows:
    """How many test examples of the set's own everybody has."""
    if options["split"] != "own":
        return np.zeros(data.num_clients, np.int64)
    require(
        "testing" in data.columns,
        f"{data.name}: split=own needs a test part, but this set has none; take random.",
    )
    found: Rows = np.add.reduceat(data.columns["testing"], data.offsets[:-1], dtype=np.int64)
    return found


def compute_owners(data: StoredDataset, clients: NaturalClients, options: dict[str, Any]) -> Owners:
    """Whose each row is, by the place among those found."""
    new_index = np.full(data.num_clients, UNASSIGNED, np.int64)
    new_index[clients.client_ids] = np.arange(len(clients.client_ids))
    column = np.repeat(new_index, np.diff(data.offsets))
    if options["most"] is not None:
        column[_rank_rows(data, options["split"] == "own") >= options["most"]] = UNASSIGNED
    return column


def _rank_rows(data: StoredDataset, separate_test: bool) -> Rows:
    """The how-manieth of its person's rows each is; of train and test rows apart, if asked for."""
    starts = np.repeat(data.offsets[:-1], np.diff(data.offsets))
    rank = np.arange(data.num_rows) - starts
    if not separate_test:
        return np.asarray(rank)
    is_test = data.columns["testing"]
    before = np.cumsum(is_test) - is_test
    tests = before - before[starts]
    return np.asarray(np.where(is_test, tests, rank - tests))


def has_test_rows_last(data: StoredDataset) -> bool:
    """Whether everybody's test rows come after the train rows."""
    is_test = data.columns["testing"]
    again = np.flatnonzero(is_test[:-1] & ~is_test[1:]) + 1
    return bool(np.isin(again, data.offsets).all())


def split_into_ranges(
    clients: NaturalClients, options: dict[str, Any], split_config: SplitConfig
) -> dict[str, Split]:
    """Splits without an array of rows: everybody's train rows, then those for test, which are the last ones."""
    most = options["most"]
    used = _cap_sizes(clients.sizes, most)
    last = count_test_examples(used, split_config.test_share)
    by_share = clients.is_test_only | (options["split"] == "last")
    train_counts = clients.sizes - clients.test_counts
    trains = np.where(by_share, used - last, _cap_sizes(train_counts, most))
    tests = np.where(by_share, last, _cap_sizes(clients.test_counts, most))
    begin = clients.starts + np.where(by_share, used - last, train_counts)
    train = make_range_split(clients.starts, trains)
    if isinstance(split_config.adapt, str):
        test = make_range_split(begin, tests)
        return {
            "train": train,
            "test": test,
            "adapt": test if split_config.adapt == "test" else train,
        }
    adapts = take_share(split_config.adapt, tests)
    return {
        "train": train,
        "test": make_range_split(begin + adapts, tests - adapts),
        "adapt": make_range_split(begin, adapts),
    }


def _cap_sizes(sizes: Rows, max_size: int | None) -> Rows:
    return sizes if max_size is None else np.minimum(sizes, max_size)
