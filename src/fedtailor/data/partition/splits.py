"""Rows among people: each one's into train, test and what is adapted on, and people into groups."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array, Split
from fedtailor.errors import is_number, require

Groups = dict[str, NDArray[np.int64]]


class SplitConfig(NamedTuple):
    """How a person's examples, and people, are divided."""

    test_share: float
    adapt: str | float
    validation_clients: float
    unseen_clients: float
    support: float

    def validate(self, name: str) -> None:
        """Refuses what is no share."""
        shares: dict[str, Any] = self._asdict()
        adapt = shares.pop("adapt")
        known = adapt in ("train", "test") or not isinstance(adapt, str)
        require(
            known, f"{name}: adapt must be train, test or a share of the test part, got {adapt!r}."
        )
        shares |= {} if isinstance(adapt, str) else {"adapt": adapt}
        for what, share in shares.items():
            good = is_number(share) and 0 <= share < 1
            require(good, f"{name}: {what} must be a share from 0 to less than 1, got {share}.")
        enough = self.validation_clients + self.unseen_clients < 1
        came = f"{self.validation_clients} and {self.unseen_clients}"
        leave = "validation_clients and unseen_clients must leave clients for training"
        require(enough, f"{name}: {leave}, got {came}.")


def compute_offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where everybody's entries begin, and where the last one's end."""
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


def take_share(share: float, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """That share of each size, rounded down."""
    counts: NDArray[np.int64] = np.floor(share * sizes + 1e-9).astype(
        np.int64
    )  # 0.29 * 100 is just under 29
    return counts


def count_test_examples(sizes: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """How many of everybody's examples are for test: that share, but not the last one."""
    return np.minimum(take_share(share, sizes), sizes - 1)


def split_sorted_rows(
    order: NDArray[np.int64], sizes: NDArray[np.int64], tests: NDArray[np.int64], adapt: str | float
) -> dict[str, Split]:
    """Splits of rows in order of people, of each of whom the first so many are for test (some of them to adapt on)."""
    adapts = np.zeros_like(tests) if isinstance(adapt, str) else take_share(adapt, tests)
    rank = np.arange(len(order)) - np.repeat(compute_offsets(sizes)[:-1], sizes)
    adapting, testing = rank < np.repeat(adapts, sizes), rank < np.repeat(tests, sizes)
    train, test = (
        Split(order[~testing], compute_offsets(sizes - tests)),
        Split(order[testing & ~adapting], compute_offsets(tests - adapts)),
    )
    if isinstance(adapt, str):
        return {"train": train, "test": test, "adapt": test if adapt == "test" else train}
    return {"train": train, "test": test, "adapt": Split(order[adapting], compute_offsets(adapts))}


def split_rows(
    owners: NDArray[np.int64],
    count: int,
    split_config: SplitConfig,
    rng: np.random.Generator,
    strategy: str = "random",
    is_test: Array | None = None,
) -> dict[str, Split]:
    """Everybody's examples in train and test: at random, or the last ones for test, or the set's own test part.

    Of those who have nothing but the set's test part, a random share is for test as for others. Of the last ones, the
    earlier are adapted on and the later scored, if some are to be adapted on.
    """
    rows = rng.permutation(len(owners)) if strategy != "last" else np.arange(len(owners))
    sizes = np.bincount(owners, minlength=count)
    tests = count_test_examples(sizes, split_config.test_share)
    if strategy == "own" and is_test is not None:
        own_test_counts = np.bincount(owners[is_test], minlength=count)
        rows = rows[np.argsort(~is_test[rows], kind="stable")]
        tests = np.where(own_test_counts < sizes, own_test_counts, tests)
    if strategy == "last":
        rows = rows[np.argsort(~_is_last(owners, sizes, tests), kind="stable")]
    return split_sorted_rows(
        rows[np.argsort(owners[rows], kind="stable")], sizes, tests, split_config.adapt
    )


def _is_last(
    owners: NDArray[np.int64], sizes: NDArray[np.int64], tests: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which entries are among the last so many of their person's."""
    order = np.argsort(owners, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(compute_offsets(sizes)[:-1], sizes)
    return np.asarray(rank >= (sizes - tests)[owners])


def compute_group_sizes(
    count: int, split_config: SplitConfig, num_trainable: int
) -> tuple[int, int]:
    """How many validation and new people there are of so many, of whom so many can train: one is left to train."""
    unseen = min(round(split_config.unseen_clients * count), count - 1)
    unseen = max(unseen, count - num_trainable)
    validation = max(0, min(round(split_config.validation_clients * count), count - 1 - unseen))
    return validation, unseen


def assign_random_groups(
    is_test_only: NDArray[np.bool_], split_config: SplitConfig, rng: np.random.Generator
) -> Groups:
    """Choose validation and unseen clients at random, those that cannot train first; the rest train and participate."""
    count = len(is_test_only)
    validation, unseen = compute_group_sizes(count, split_config, count - int(is_test_only.sum()))
    order = rng.permutation(count)
    order = order[np.argsort(~is_test_only[order], kind="stable")]
    return _build_groups(
        order[unseen + validation :], order[unseen : unseen + validation], order[:unseen]
    )


def assign_groups_covering_labels(
    has_label: NDArray[np.bool_], is_test_only: NDArray[np.bool_], split_config: SplitConfig
) -> Groups:
    """Groups with new people who know, as a group, what others know; those who cannot train are new.

    Partitioners deal labels in turn, so the last clients make a fair sample; somebody is passed over only to make place
    for what the others do not know. What a single client knows need not be known.
    """
    able, unable = np.flatnonzero(~is_test_only), np.flatnonzero(is_test_only)
    validation, unseen = compute_group_sizes(len(has_label), split_config, len(able))
    chosen = np.append(
        unable, able[select_clients_covering_labels(has_label[able], unseen - len(unable))]
    )
    rest = np.setdiff1d(able, chosen)
    train, validated = np.split(rest, [len(rest) - validation])
    return _build_groups(train, validated, chosen)


def select_clients_covering_labels(has_label: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """So many clients, late ones first, who together know all labels that two clients know, if so many can."""
    lacking, waiting = has_label.sum(axis=0) > 1, list(range(len(has_label)))[::-1]
    chosen: list[int] = []
    while len(chosen) < count and lacking.any():
        adds = (has_label[waiting] & lacking).sum(axis=1)
        needed = min(-(-int(lacking.sum()) // (count - len(chosen))), int(adds.max()))
        chosen.append(waiting.pop(int(np.argmax(adds >= needed))))
        lacking &= ~has_label[chosen[-1]]
    return np.sort(np.array(chosen + waiting[: count - len(chosen)], np.int64))


def _build_groups(
    train: NDArray[np.int64], validation: NDArray[np.int64], unseen: NDArray[np.int64]
) -> Groups:
    train, validation, unseen = (
        np.sort(each).astype(np.int64) for each in (train, validation, unseen)
    )
    return {"train": train, "participating": train, "validation": validation, "unseen": unseen}
