"""Rows among people: each one's into train, test and what is adapted on, and people into groups."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.holders import Array, Split
from fedtailor.errors import is_number, require

Groups = dict[str, NDArray[np.int64]]


class Shares(NamedTuple):
    """How a person's examples, and people, are divided."""

    test_share: float
    adapt: str | float
    validation_clients: float
    new_clients: float
    support: float

    def check(self, name: str) -> None:
        """Refuses what is no share."""
        shares: dict[str, Any] = self._asdict()
        adapt = shares.pop("adapt")
        known = adapt in ("train", "test") or not isinstance(adapt, str)
        require(known, f"{name}: adapt must be train, test or a share of the test part, got {adapt!r}.")
        shares |= {} if isinstance(adapt, str) else {"adapt": adapt}
        for what, share in shares.items():
            good = is_number(share) and 0 <= share < 1
            require(good, f"{name}: {what} must be a share from 0 to less than 1, got {share}.")
        enough = self.validation_clients + self.new_clients < 1
        came = f"{self.validation_clients} and {self.new_clients}"
        leave = "validation_clients and new_clients must leave clients for training"
        require(enough, f"{name}: {leave}, got {came}.")


def offsets_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where everybody's entries begin, and where the last one's end."""
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


def share_of(share: float, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """That share of each size, rounded down."""
    counts: NDArray[np.int64] = np.floor(share * sizes + 1e-9).astype(np.int64)  # 0.29 * 100 is just under 29
    return counts


def tests_of(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many of everybody's examples are for test: that share, but not the last one."""
    return np.minimum(share_of(share, sizes), sizes - 1)


def in_parts(
    order: NDArray[np.int64], sizes: NDArray[np.int64], tests: NDArray[np.int64], adapt: str | float
) -> dict[str, Split]:
    """Splits of rows in order of people, of each of whom the first so many are for test (some of them to adapt on)."""
    adapts = np.zeros_like(tests) if isinstance(adapt, str) else share_of(adapt, tests)
    place = np.arange(len(order)) - np.repeat(offsets_of(sizes)[:-1], sizes)
    adapting, testing = place < np.repeat(adapts, sizes), place < np.repeat(tests, sizes)
    train, test = (
        Split(order[~testing], offsets_of(sizes - tests)),
        Split(order[testing & ~adapting], offsets_of(tests - adapts)),
    )
    if isinstance(adapt, str):
        return {"train": train, "test": test, "adapt": test if adapt == "test" else train}
    return {"train": train, "test": test, "adapt": Split(order[adapting], offsets_of(adapts))}


def splits(
    whose: NDArray[np.int64],
    count: int,
    shares: Shares,
    draws: np.random.Generator,
    how: str = "random",
    testing: Array | None = None,
) -> dict[str, Split]:
    """Everybody's examples in train and test: at random, or the last ones for test, or the set's own test part.

    Of those who have nothing but the set's test part, a random share is for test as for others. Of the last ones, the
    earlier are adapted on and the later scored, if some are to be adapted on.
    """
    rows = draws.permutation(len(whose)) if how != "last" else np.arange(len(whose))
    sizes = np.bincount(whose, minlength=count)
    tests = tests_of(sizes, shares.test_share)
    if how == "own" and testing is not None:
        own = np.bincount(whose[testing], minlength=count)
        rows = rows[np.argsort(~testing[rows], kind="stable")]
        tests = np.where(own < sizes, own, tests)
    if how == "last":
        rows = rows[np.argsort(~_last(whose, sizes, tests), kind="stable")]
    return in_parts(rows[np.argsort(whose[rows], kind="stable")], sizes, tests, shares.adapt)


def _last(whose: NDArray[np.int64], sizes: NDArray[np.int64], tests: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which entries are among the last so many of their person's."""
    order = np.argsort(whose, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(offsets_of(sizes)[:-1], sizes)
    return np.asarray(place >= (sizes - tests)[whose])


def sizes_of_groups(count: int, shares: Shares, able: int) -> tuple[int, int]:
    """How many validation and new people there are of so many, of whom so many can train: one is left to train."""
    new = min(round(shares.new_clients * count), count - 1)
    new = max(new, count - able)
    validation = max(0, min(round(shares.validation_clients * count), count - 1 - new))
    return validation, new


def at_random(only_new: NDArray[np.bool_], shares: Shares, draws: np.random.Generator) -> Groups:
    """Validation and new people at random, of these first those who cannot train; the rest train, scored as local."""
    count = len(only_new)
    validation, new = sizes_of_groups(count, shares, count - int(only_new.sum()))
    order = draws.permutation(count)
    order = order[np.argsort(~only_new[order], kind="stable")]
    return _grouped(order[new + validation :], order[new : new + validation], order[:new])


def knowing(knows: NDArray[np.bool_], only_new: NDArray[np.bool_], shares: Shares) -> Groups:
    """Groups with new people who know, as a group, what others know; those who cannot train are new.

    Partitioners deal labels in turn, so the last clients make a fair sample; somebody is passed over only to make place
    for what the others do not know. What a single client knows need not be known.
    """
    able, unable = np.flatnonzero(~only_new), np.flatnonzero(only_new)
    validation, new = sizes_of_groups(len(knows), shares, len(able))
    chosen = np.append(unable, able[knowing_people(knows[able], new - len(unable))])
    rest = np.setdiff1d(able, chosen)
    train, validated = np.split(rest, [len(rest) - validation])
    return _grouped(train, validated, chosen)


def knowing_people(knows: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """So many clients, late ones first, who together know all labels that two clients know, if so many can."""
    lacking, waiting = knows.sum(axis=0) > 1, list(range(len(knows)))[::-1]
    chosen: list[int] = []
    while len(chosen) < count and lacking.any():
        adds = (knows[waiting] & lacking).sum(axis=1)
        needed = min(-(-int(lacking.sum()) // (count - len(chosen))), int(adds.max()))
        chosen.append(waiting.pop(int(np.argmax(adds >= needed))))
        lacking &= ~knows[chosen[-1]]
    return np.sort(np.array(chosen + waiting[: count - len(chosen)], np.int64))


def _grouped(train: NDArray[np.int64], validation: NDArray[np.int64], new: NDArray[np.int64]) -> Groups:
    train, validation, new = (np.sort(each).astype(np.int64) for each in (train, validation, new))
    return {"train": train, "local": train, "validation": validation, "new": new}
