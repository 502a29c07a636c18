"""The people that a data set has of its own, and what is theirs, as runs of rows or row by row."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import generator, require_whole
from fedtailor.data.dividing import Shares, share_of, tests_of
from fedtailor.data.holders import Split
from fedtailor.data.partitions import NOBODY, Whose
from fedtailor.data.store import Stored, runs
from fedtailor.errors import require

PARTITION = 31
"""What random numbers are drawn for, among the purposes of a dataset."""

Rows = NDArray[np.int64]


class People(NamedTuple):
    """Those of a set's own people who are looked at."""

    numbers: Rows  # of the set's
    starts: Rows
    sizes: Rows
    tests: Rows  # how many of their rows are of the set's own test part; nobody's, if that does not matter

    @property
    def only_new(self) -> NDArray[np.bool_]:
        """Who has nothing but test examples, and so cannot train."""
        return np.asarray(self.tests == self.sizes)

    def of(self, some: Any) -> "People":
        """Some of them."""
        return People(*(each[some] for each in self))

    def rows(self) -> Rows:
        """All their rows."""
        ends = np.cumsum(self.sizes)
        return np.asarray(np.repeat(self.starts - (ends - self.sizes), self.sizes) + np.arange(self.sizes.sum()))


def everybody(data: Stored, options: dict[str, Any]) -> People:
    """The people with at least so many examples, or so many at random of these."""
    known = len(data.ids) > 1 or str(data.ids[0]) != ""
    require(known, f"{data.name}: there are no people in this set; choose a partition (partition=dirichlet, say).")
    for option in ("least", *(key for key in ("most", "clients") if options[key] is not None)):
        require_whole(data.name, option, options[option], 1)
    starts, sizes = np.asarray(data.offsets[:-1]), np.diff(data.offsets)
    large = np.flatnonzero(sizes >= options["least"])
    least = f"least={options['least']}"
    require(len(large) > 0, f"{data.name}: {least} leaves nobody, the largest client has {sizes.max()}.")
    count = options["clients"]
    if count is not None:
        require(
            count <= len(large), f"{data.name}: clients must be at most {len(large)}, who have {least}, got {count}."
        )
        large = np.sort(generator(options["seed"], PARTITION).permutation(large)[:count])
    return People(large, starts[large], sizes[large], _tests(data, options)[large])


def _tests(data: Stored, options: dict[str, Any]) -> Rows:
    """How many test examples of the set's own everybody has."""
    if options["split"] != "own":
        return np.zeros(data.clients, np.int64)
    require("testing" in data.columns, f"{data.name}: split=own needs a test part, but this set has none; take random.")
    found: Rows = np.add.reduceat(data.columns["testing"], data.offsets[:-1], dtype=np.int64)
    return found


def whose(data: Stored, found: People, options: dict[str, Any]) -> Whose:
    """Whose each row is, by the place among those found."""
    place = np.full(data.clients, NOBODY, np.int64)
    place[found.numbers] = np.arange(len(found.numbers))
    column = np.repeat(place, np.diff(data.offsets))
    if options["most"] is not None:
        column[_rank(data, options["split"] == "own") >= options["most"]] = NOBODY
    return column


def _rank(data: Stored, apart: bool) -> Rows:
    """The how-manieth of its person's rows each is; of train and test rows apart, if asked for."""
    starts = np.repeat(data.offsets[:-1], np.diff(data.offsets))
    place = np.arange(data.rows) - starts
    if not apart:
        return np.asarray(place)
    testing = data.columns["testing"]
    before = np.cumsum(testing) - testing
    tests = before - before[starts]
    return np.asarray(np.where(testing, tests, place - tests))


def in_order(data: Stored) -> bool:
    """Whether everybody's test rows come after the train rows."""
    testing = data.columns["testing"]
    again = np.flatnonzero(testing[:-1] & ~testing[1:]) + 1
    return bool(np.isin(again, data.offsets).all())


def as_runs(found: People, options: dict[str, Any], shares: Shares) -> dict[str, Split]:
    """Splits without an array of rows: everybody's train rows, then those for test, which are the last ones."""
    most = options["most"]
    used = _at_most(found.sizes, most)
    last = tests_of(used, shares.test_share)
    by_share = found.only_new | (options["split"] == "last")
    own = found.sizes - found.tests
    trains = np.where(by_share, used - last, _at_most(own, most))
    tests = np.where(by_share, last, _at_most(found.tests, most))
    begin = found.starts + np.where(by_share, used - last, own)
    train = runs(found.starts, trains)
    if isinstance(shares.adapt, str):
        test = runs(begin, tests)
        return {"train": train, "test": test, "adapt": test if shares.adapt == "test" else train}
    adapts = share_of(shares.adapt, tests)
    return {"train": train, "test": runs(begin + adapts, tests - adapts), "adapt": runs(begin, adapts)}


def _at_most(sizes: Rows, most: int | None) -> Rows:
    return sizes if most is None else np.minimum(sizes, most)
