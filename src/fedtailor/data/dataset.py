"""Who holds which examples: flat columns, an index per split, groups of people, and the promises that bind them.

Columns are arrays or memory maps and are never copied; everything that reads them whole does so block by block. The
promises are checked when a dataset is made, each broken one with a sentence that names the client.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.errors import InputError, require

Array = NDArray[Any]

GROUPS = ("train", "local", "validation", "new")
BLOCK_BYTES = 1 << 22
NOBODY = -1


class Split(NamedTuple):
    """Which examples each holder has: holder i has `index[offsets[i]:offsets[i + 1]]`."""

    index: NDArray[np.int64]  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    offsets: NDArray[np.int64]  # one more than there are holders

    def sizes(self) -> NDArray[np.int64]:
        """How many examples each holder has."""
        return np.diff(self.offsets)

    def of(self, holder: int) -> NDArray[np.int64]:
        """The examples of one holder."""
        return self.index[self.offsets[holder] : self.offsets[holder + 1]]

    def holders(self) -> NDArray[np.int64]:
        """Who holds each entry of `index`."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes())


class Holders(NamedTuple):
    """Examples in flat columns, and who holds which."""

    x: Array  # [examples, ...] floating or integer
    y: Array  # [examples] or [examples, ...]
    splits: dict[str, Split]  # "train" and "test"; the server has "train" alone

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which nobody needs here
        """How many holders there are."""
        return len(self.splits["train"].offsets) - 1


def sole_holder(x: Array, y: Array) -> Holders:
    """All examples in one pair of hands, as the server has its own."""
    return Holders(x, y, {"train": Split(np.arange(len(x)), np.array([0, len(x)]))})


class Summary(NamedTuple):
    """A dataset in figures; `str` makes them readable."""

    name: str
    groups: dict[str, int]  # how many people are in each
    examples: int  # in clients' hands
    classes: int | None
    smallest: int  # examples of a client, all splits together
    largest: int
    mean: float
    server: int
    overlap: str

    def __str__(self) -> str:
        """The figures in a few lines."""
        people = ", ".join(f"{size} {group}" for group, size in self.groups.items())
        targets = "real-valued targets" if self.classes is None else f"{self.classes} classes"
        return (
            f"{self.name}: {self.examples} examples, {targets}\n"
            f"  clients: {people}\n"
            f"  examples per client: {self.smallest} to {self.largest}, mean {self.mean:.1f}\n"
            f"  server: {self.server} examples" + (f", overlapping clients' ({self.overlap})" if self.overlap else "")
        )


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Clients' examples, the clients grouped by person, and the server's own examples.

    The groups: "train" may be sampled, "local" are scored as those who took part, "validation" serve for choosing,
    "new" are people never trained on.
    """

    name: str
    clients: Holders
    ids: NDArray[np.str_]  # the clients' own names
    groups: dict[str, NDArray[np.int64]]  # the clients of each, by number
    server: Holders | None
    classes: int | None  # None: the targets are real-valued
    scale: float = 1.0  # x is multiplied by it once it is floating; for integers that are amounts
    tokens: bool = False  # x stays integer
    overlap: str = ""  # why server data may overlap clients'; "": it does not, and this has been checked

    def __post_init__(self) -> None:
        """Refuses a dataset that breaks a promise."""
        check(self)

    def pooled(self) -> "FederatedDataset":
        """The same with one more holder, "pooled": the train group's train examples together, now that group alone."""
        splits, train = self.clients.splits, self.clients.splits["train"]
        everything = train.index[np.isin(train.holders(), self.groups["train"])]
        added = {name: everything if name == "train" else everything[:0] for name in splits}
        # Not checked again: the pool holds, on purpose, what clients hold, and every example has been looked at.
        pool = copy.copy(self)
        more = {name: _with_holder(split, added[name]) for name, split in splits.items()}
        object.__setattr__(pool, "clients", self.clients._replace(splits=more))
        object.__setattr__(pool, "ids", np.append(self.ids, "pooled"))
        object.__setattr__(pool, "groups", self.groups | {"train": np.array([self.clients.count])})
        return pool

    def describe(self) -> Summary:
        """The dataset in figures."""
        sizes = np.sum([split.sizes() for split in self.clients.splits.values()], axis=0)
        return Summary(
            name=self.name,
            groups={group: len(self.groups[group]) for group in GROUPS},
            examples=int(sizes.sum()),
            classes=self.classes,
            smallest=int(sizes.min()),
            largest=int(sizes.max()),
            mean=float(sizes.mean()),
            server=0 if self.server is None else len(self.server.x),
            overlap=self.overlap,
        )


def _with_holder(split: Split, index: NDArray[np.int64]) -> Split:
    """A split with one more holder."""
    return Split(np.append(split.index, index), np.append(split.offsets, len(split.index) + len(index)))


def check(dataset: FederatedDataset) -> None:
    """Refuses, with one sentence, a dataset that breaks a promise; reads the columns block by block."""
    name, clients, server = dataset.name, dataset.clients, dataset.server
    _check_columns(f"{name}: the clients'", clients, {"train", "test"})
    _check_people(dataset)
    _check_kinds(dataset)
    people = [f"client {own!r}" for own in dataset.ids.tolist()]
    owners = _owners(name, clients, people)
    _check_values(dataset, clients, owners, people)
    if server is not None:
        _check_columns(f"{name}: the server's", server, {"train"})
        _check_server_fits(dataset, server)
        _check_values(dataset, server, _owners(name, server, ["the server"]), ["the server"])
        if not dataset.overlap:
            _check_disjoint(dataset, server, owners, people)


def _check_columns(whose: str, holders: Holders, names: set[str]) -> None:
    x, y, splits = holders
    require(x.size > 0 and y.size > 0, f"{whose} x and y must hold examples, got {list(x.shape)} and {list(y.shape)}.")
    require(x.shape[:1] == y.shape[:1] != (), f"{whose} x and y must pair up, got {list(x.shape)} and {list(y.shape)}.")
    require(_usable(x), f"{whose} x must be floating or integer numbers, got {x.dtype}.")
    require(_usable(y), f"{whose} y must be floating or integer numbers, got {y.dtype}.")
    require(names <= set(splits), f"{whose} splits must include {sorted(names)}, got {sorted(splits)}.")
    for name, (index, offsets) in splits.items():
        where = f"{whose} {name} split"
        require(index.dtype == offsets.dtype == np.int64, f"{where} must be int64, got {index.dtype}, {offsets.dtype}.")
        rising = len(offsets) == holders.count + 1 > 1 and offsets[0] == 0 and offsets[-1] == len(index)
        rising = rising and bool((np.diff(offsets) >= 0).all())
        require(rising, f"{where} must have {holders.count + 1} offsets that rise from 0 to {len(index)}.")
        inside = bool(((index >= 0) & (index < len(x))).all())
        require(inside, f"{where} must point at examples from 0 to {len(x) - 1}.")


def _check_people(dataset: FederatedDataset) -> None:
    name, ids, groups, count = dataset.name, dataset.ids, dataset.groups, dataset.clients.count
    named = ids.dtype.kind == "U" and ids.shape == (count,) and len(set(ids.tolist())) == count
    require(named, f"{name}: ids must be {count} different strings, one for each client.")
    require(set(groups) == set(GROUPS), f"{name}: groups must be {', '.join(GROUPS)}, got {', '.join(groups)}.")
    for group, people in groups.items():
        known = people.dtype.kind == "i" and bool(((people >= 0) & (people < count)).all())
        known = known and len(np.unique(people)) == len(people)
        require(known, f"{name}: group {group!r} must list different clients by number, from 0 to {count - 1}.")
    require(len(groups["train"]) > 0, f"{name}: group 'train' must have at least one client, got none.")
    for one, other in combinations(GROUPS, 2):
        both = ids[np.intersect1d(groups[one], groups[other])].tolist()
        apart = (one, other) == ("train", "local") or not both
        require(apart, f"{name}: groups {one!r} and {other!r} must be different people, but share {both[:3]}.")


def _owners(name: str, holders: Holders, people: list[str]) -> NDArray[np.int64]:
    """Who holds each example (-1: nobody); refuses an example held twice and a holder with nothing to train on."""
    for idle in np.flatnonzero(holders.splits["train"].sizes() == 0)[:1]:
        raise InputError(f"{name}: everybody must have a train example, but {people[idle]} has none; leave it out.")
    owners, place = np.full(len(holders.x), NOBODY), np.zeros(len(holders.x), np.int64)
    for kind in sorted(holders.splits, key="test".__eq__):
        split, who = holders.splits[kind].index, holders.splits[kind].holders()
        place[split] = np.arange(len(split))
        # One person may have an example in two splits (a query set drawn from train), but never in test and elsewhere.
        earlier = owners[split]
        again = (place[split] != np.arange(len(split))) | ((earlier != NOBODY) & ((earlier != who) | (kind == "test")))
        for at in np.flatnonzero(again)[:1]:
            other = who[place[split[at]]] if earlier[at] == NOBODY else earlier[at]
            both = " and ".join(dict.fromkeys([people[who[at]], people[other]]))
            raise InputError(f"{name}: example {split[at]} must be held once, but is held more often, by {both}.")
        owners[split] = who
    return owners


def _check_kinds(dataset: FederatedDataset) -> None:
    name, classes, scale, x = dataset.name, dataset.classes, dataset.scale, dataset.clients.x
    whole, amounts = x.dtype.kind != "f", x.dtype.kind != "f" and not dataset.tokens
    require(whole or not dataset.tokens, f"{name}: tokens must be integers, got x of {x.dtype}.")
    require(0 < scale < np.inf, f"{name}: scale must be positive and finite, got {scale}.")
    require(amounts or scale == 1, f"{name}: scale must be 1 unless x is integer and not tokens, got {scale}.")
    if classes is not None:
        kind = dataset.clients.y.dtype
        require(classes >= 1, f"{name}: classes must be at least 1 (None for real-valued targets), got {classes}.")
        require(kind.kind in "iu", f"{name}: labels must be integers where classes is given, got {kind}.")


def _check_server_fits(dataset: FederatedDataset, server: Holders) -> None:
    require(server.count == 1, f"{dataset.name}: the server's examples must have one holder, got {server.count}.")
    for what, own, other in (("x", server.x, dataset.clients.x), ("y", server.y, dataset.clients.y)):
        came, wanted = (f"shape {list(column.shape[1:])} of {column.dtype}" for column in (own, other))
        require(came == wanted, f"{dataset.name}: the server's {what} must have {wanted} as the clients', got {came}.")


def _check_values(dataset: FederatedDataset, holders: Holders, owners: NDArray[np.int64], people: list[str]) -> None:
    name, y = dataset.name, holders.y
    for what, column in (("x", holders.x), ("y", y)):
        row = _first_row(_not_finite, column, owners) if column.dtype.kind == "f" else None
        if row is not None:
            who = people[owners[row]]
            raise InputError(f"{name}: {what} must be finite, but example {row} of {who} has a NaN or infinity.")
    if dataset.classes is not None:
        outside, highest = partial(_outside, classes=dataset.classes), dataset.classes - 1
        row = _first_row(outside, y, owners)
        if row is not None:
            label, who = y[row][outside(y[row])].flat[0], people[owners[row]]
            raise InputError(f"{name}: labels must be from 0 to {highest}, but example {row} of {who} has {label}.")


def _check_disjoint(dataset: FederatedDataset, server: Holders, owners: NDArray[np.int64], people: list[str]) -> None:
    pair = shared_example(server.x, dataset.clients.x, owners != NOBODY)
    if pair is not None:
        raise InputError(
            f"{dataset.name}: the server's examples must not be clients', but its example {pair[0]} equals example "
            f"{pair[1]} of {people[owners[pair[1]]]}; take it out, or say in `overlap` why it may stay."
        )


def _usable(column: Array) -> bool:
    return column.dtype.kind in "fiu" and column.dtype.itemsize <= 8


def _not_finite(values: Array) -> Array:
    return ~np.isfinite(values)


def _outside(labels: Array, classes: int) -> Array:
    return np.asarray((labels < 0) | (labels >= classes))


def _blocks(column: Array) -> Iterator[slice]:
    """Slices of rows that are small enough to work on."""
    size = max(1, BLOCK_BYTES // column[:1].nbytes)
    return (slice(start, min(start + size, len(column))) for start in range(0, len(column), size))


def _first_row(bad: Callable[[Array], Array], column: Array, owners: NDArray[np.int64]) -> int | None:
    """The first row that somebody holds and that has a bad entry."""
    for block in _blocks(column):
        entries = bad(column[block])
        rows = entries.reshape(len(entries), -1).any(axis=1) & (owners[block] != NOBODY)
        if rows.any():
            return int(block.start + rows.argmax())
    return None


def shared_example(few: Array, many: Array, held: NDArray[np.bool_]) -> tuple[int, int] | None:
    """The first pair of equal rows, one of each array; of `many` only the held rows count, read block by block."""
    hashes = np.concatenate([row_hashes(few[block]) for block in _blocks(few)])
    order = np.argsort(hashes)
    hashes = hashes[order]
    for block in _blocks(many):
        found = row_hashes(many[block])
        first, last = np.searchsorted(hashes, found), np.searchsorted(hashes, found, "right")
        for at in np.flatnonzero((last > first) & held[block]):
            row = block.start + int(at)
            for candidate in order[first[at] : last[at]]:
                if np.array_equal(few[candidate], many[row]):
                    return int(candidate), row
    return None


def row_hashes(rows: Array) -> NDArray[np.uint64]:
    """A 64-bit number for each row, the same for rows that are equal as numbers.

    The row's words are mixed, multiplied by odd constants that depend on their place, mixed and added: mixing lets high
    bits matter, which multiplication alone carries out of the word (flipping two signs would change nothing).
    """
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    raw = (flat + flat.dtype.type(0) if flat.dtype.kind == "f" else flat).view(np.uint8)  # adding 0 turns -0.0 into 0.0
    words = np.zeros((len(raw), -(-raw.shape[1] // 8)), np.uint64)
    words.view(np.uint8)[:, : raw.shape[1]] = raw
    odd = np.random.Generator(np.random.Philox(0)).integers(0, 1 << 64, words.shape[1], np.uint64) | np.uint64(1)
    words ^= words >> np.uint64(32)
    words *= odd
    words ^= words >> np.uint64(29)
    return np.asarray(words.sum(axis=1, dtype=np.uint64))
