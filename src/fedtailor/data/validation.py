"""The promises that bind a dataset, one function each; a broken one is told in a sentence that names the client.

Columns are read block by block, since they may be memory maps larger than the memory.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array, ClientExamples
from fedtailor.errors import InputError, require

GROUPS = ("train", "participating", "validation", "unseen")
BLOCK_BYTES = 1 << 22
UNASSIGNED = -1


def validate_columns(prefix: str, examples: ClientExamples, names: set[str]) -> None:
    """Columns are numbers that pair up, and splits with these names point into them."""
    x, y, splits = examples
    require(
        x.size > 0 and y.size > 0,
        f"{prefix} x and y must hold examples, got {list(x.shape)} and {list(y.shape)}.",
    )
    require(
        x.shape[:1] == y.shape[:1] != (),
        f"{prefix} x and y must pair up, got {list(x.shape)} and {list(y.shape)}.",
    )
    for what, column in (("x", x), ("y", y)):
        require(
            _is_usable_dtype(column),
            f"{prefix} {what} must be floating or integer numbers, got {column.dtype}.",
        )
        native = column.dtype.isnative
        require(
            native,
            f"{prefix} {what} must be in this machine's byte order, got {column.dtype}; convert it.",
        )
    require(
        names <= set(splits), f"{prefix} splits must include {sorted(names)}, got {sorted(splits)}."
    )
    for name, (index, offsets) in splits.items():
        where = f"{prefix} {name} split"
        require(
            index.dtype == offsets.dtype == np.int64,
            f"{where} must be int64, got {index.dtype}, {offsets.dtype}.",
        )
        rising = (
            len(offsets) == examples.count + 1 > 1 and offsets[0] == 0 and offsets[-1] == len(index)
        )
        rising = rising and bool((np.diff(offsets) >= 0).all())
        require(
            rising,
            f"{where} must have {examples.count + 1} offsets that rise from 0 to {len(index)}.",
        )
        inside = bool(((index >= 0) & (index < len(x))).all())
        require(inside, f"{where} must point at examples from 0 to {len(x) - 1}.")


def validate_groups(
    name: str, client_names: NDArray[np.str_], groups: dict[str, NDArray[np.int64]], count: int
) -> None:
    """Everybody has a name of their own, and the groups are different people."""
    named = (
        client_names.dtype.kind == "U"
        and client_names.shape == (count,)
        and len(set(client_names.tolist())) == count
    )
    require(named, f"{name}: ids must be {count} different strings, one for each client.")
    require(
        set(groups) == set(GROUPS),
        f"{name}: groups must be {', '.join(GROUPS)}, got {', '.join(groups)}.",
    )
    for group, client_ids in groups.items():
        known = client_ids.dtype.kind == "i" and bool(
            ((client_ids >= 0) & (client_ids < count)).all()
        )
        known = known and len(np.unique(client_ids)) == len(client_ids)
        require(
            known,
            f"{name}: group {group!r} must list different clients by number, from 0 to {count - 1}.",
        )
    require(
        len(groups["train"]) > 0, f"{name}: group 'train' must have at least one client, got none."
    )
    for one, other in combinations(GROUPS, 2):
        both = client_names[np.intersect1d(groups[one], groups[other])].tolist()
        apart = (one, other) == ("train", "participating") or not both
        require(
            apart,
            f"{name}: groups {one!r} and {other!r} must be different people, but share {both[:3]}.",
        )


def find_owners(name: str, examples: ClientExamples, owner_names: list[str]) -> NDArray[np.int64]:
    """Who holds each example (-1: nobody); refuses an example held twice and a holder with nothing to train on."""
    for idle in np.flatnonzero(examples.splits["train"].sizes() == 0)[:1]:
        raise InputError(
            f"{name}: every client must have a train example, but {owner_names[idle]} has none; leave it out."
        )
    owners, positions = np.full(len(examples.x), UNASSIGNED), np.zeros(len(examples.x), np.int64)
    aliases = [examples.splits[name] for name in ("train", "test") if name in examples.splits]
    for kind in sorted(examples.splits, key="test".__eq__):
        if kind == "adapt" and any(examples.splits[kind] is known for known in aliases):
            continue  # who adapts on all of train, or on the very test examples, says so by naming the same split
        split, split_owners = examples.splits[kind].index, examples.splits[kind].owners()
        positions[split] = np.arange(len(split))
        # One person may have an example in two splits (a query set drawn from train), but never in test and elsewhere.
        earlier = owners[split]
        again = (positions[split] != np.arange(len(split))) | (
            (earlier != UNASSIGNED) & ((earlier != split_owners) | (kind == "test"))
        )
        for at in np.flatnonzero(again)[:1]:
            other = split_owners[positions[split[at]]] if earlier[at] == UNASSIGNED else earlier[at]
            both = " and ".join(dict.fromkeys([owner_names[split_owners[at]], owner_names[other]]))
            raise InputError(
                f"{name}: example {split[at]} must be held once, but is held more often, by {both}."
            )
        owners[split] = split_owners
    return owners


def validate_dtypes(
    name: str, clients: ClientExamples, classes: int | None, scale: float, tokens: bool
) -> None:
    """Tokens and labels are integers, and nothing but amounts is scaled."""
    whole, amounts = clients.x.dtype.kind != "f", clients.x.dtype.kind != "f" and not tokens
    require(whole or not tokens, f"{name}: tokens must be integers, got x of {clients.x.dtype}.")
    require(0 < scale < np.inf, f"{name}: scale must be positive and finite, got {scale}.")
    require(
        amounts or scale == 1,
        f"{name}: scale must be 1 unless x is integer and not tokens, got {scale}.",
    )
    if classes is not None:
        kind = clients.y.dtype
        require(
            classes >= 1,
            f"{name}: classes must be at least 1 (None for real-valued targets), got {classes}.",
        )
        require(
            kind.kind in "iu",
            f"{name}: labels must be integers where classes is given, got {kind}.",
        )


def validate_server(name: str, clients: ClientExamples, server: ClientExamples) -> None:
    """The server is one holder of examples like the clients'."""
    require(
        server.count == 1,
        f"{name}: the server's examples must have one holder, got {server.count}.",
    )
    for what, server_column, client_column in (
        ("x", server.x, clients.x),
        ("y", server.y, clients.y),
    ):
        came, wanted = (
            f"shape {list(column.shape[1:])} of {column.dtype}"
            for column in (server_column, client_column)
        )
        require(
            came == wanted,
            f"{name}: the server's {what} must have {wanted} as the clients', got {came}.",
        )


def validate_values(
    name: str,
    examples: ClientExamples,
    classes: int | None,
    owners: NDArray[np.int64],
    owner_names: list[str],
) -> None:
    """What anybody holds is finite, and its labels are of the classes there are."""
    y = examples.y
    for what, column in (("x", examples.x), ("y", y)):
        row = _find_first_row(_find_nonfinite, column, owners) if column.dtype.kind == "f" else None
        if row is not None:
            owner_name = owner_names[owners[row]]
            raise InputError(
                f"{name}: {what} must be finite, but example {row} of {owner_name} has a NaN or infinity."
            )
    if classes is not None:
        outside, highest = partial(_find_out_of_range, classes=classes), classes - 1
        row = _find_first_row(outside, y, owners)
        if row is not None:
            label, owner_name = y[row][outside(y[row])].flat[0], owner_names[owners[row]]
            raise InputError(
                f"{name}: labels must be from 0 to {highest}, but example {row} of {owner_name} has {label}."
            )


def validate_disjoint(
    name: str,
    clients: ClientExamples,
    server: ClientExamples,
    owners: NDArray[np.int64],
    owner_names: list[str],
) -> None:
    """No example of the server is one that a client holds."""
    pair = find_shared_example(server.x, clients.x, owners != UNASSIGNED)
    if pair is not None:
        raise InputError(
            f"{name}: the server's examples must not be clients', but its example {pair[0]} equals example "
            f"{pair[1]} of {owner_names[owners[pair[1]]]}; take it out, or say in `overlap` why it may stay."
        )


def _is_usable_dtype(column: Array) -> bool:
    return column.dtype.kind in "fiu" and column.dtype.itemsize <= 8


def _find_nonfinite(values: Array) -> Array:
    return ~np.isfinite(values)


def _find_out_of_range(labels: Array, classes: int) -> Array:
    return np.asarray((labels < 0) | (labels >= classes))


def _iter_row_slices(column: Array) -> Iterator[slice]:
    """Slices of rows that are small enough to work on."""
    size = max(1, BLOCK_BYTES // column[:1].nbytes)
    return (slice(start, min(start + size, len(column))) for start in range(0, len(column), size))


def _find_first_row(
    find_bad: Callable[[Array], Array], column: Array, owners: NDArray[np.int64]
) -> int | None:
    """The first row that somebody holds and that has a bad entry."""
    for block in _iter_row_slices(column):
        entries = find_bad(column[block])
        rows = entries.reshape(len(entries), -1).any(axis=1) & (owners[block] != UNASSIGNED)
        if rows.any():
            return int(block.start + rows.argmax())
    return None


def find_shared_example(
    few: Array, many: Array, is_owned: NDArray[np.bool_]
) -> tuple[int, int] | None:
    """The first pair of equal rows, one of each array; of `many` only the held rows count, read block by block."""
    hashes = np.concatenate([hash_rows(few[block]) for block in _iter_row_slices(few)])
    order = np.argsort(hashes)
    hashes = hashes[order]
    for block in _iter_row_slices(many):
        found = hash_rows(many[block])
        first, last = np.searchsorted(hashes, found), np.searchsorted(hashes, found, "right")
        for at in np.flatnonzero((last > first) & is_owned[block]):
            row = block.start + int(at)
            for candidate in order[first[at] : last[at]]:
                if np.array_equal(few[candidate], many[row]):
                    return int(candidate), row
    return None


def hash_rows(rows: Array) -> NDArray[np.uint64]:
    """A 64-bit number for each row, the same for rows that are equal as numbers.

    The row's words are mixed, multiplied by odd constants that depend on their place, mixed and added: mixing lets high
    bits matter, which multiplication alone carries out of the word (flipping two signs would change nothing).
    """
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    raw = (flat + flat.dtype.type(0) if flat.dtype.kind == "f" else flat).view(
        np.uint8
    )  # adding 0 turns -0.0 into 0.0
    words = np.zeros((len(raw), -(-raw.shape[1] // 8)), np.uint64)
    words.view(np.uint8)[:, : raw.shape[1]] = raw
    odd = np.random.Generator(np.random.Philox(0)).integers(
        0, 1 << 64, words.shape[1], np.uint64
    ) | np.uint64(1)
    words ^= words >> np.uint64(32)
    words *= odd
    words ^= words >> np.uint64(29)
    return np.asarray(words.sum(axis=1, dtype=np.uint64))
