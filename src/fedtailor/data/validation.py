"""Checks that a dataset is consistent; errors name the client and the example at fault.

Columns are read in blocks, since they may be memory maps larger than RAM.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import UNASSIGNED, Array, ClientExamples, Split
from fedtailor.errors import InputError, require

GROUPS = ("train", "participating", "validation", "unseen")
"""Groups of clients that every dataset has."""

BLOCK_BYTES = 1 << 22
"""Maximum size of a block of a column."""


def validate_columns(prefix: str, examples: ClientExamples, split_names: set[str]) -> None:
    """Check that columns are numbers of equal length, and that splits point at their rows.

    Args:
        prefix: Beginning of error messages: the data set, and "the clients'" or "the server's".
        examples: Examples of all clients, or of the server.
        split_names: Names of splits that `examples` must have.
    """
    x, y, splits = examples
    shapes = f"{list(x.shape)} and {list(y.shape)}"
    require(x.size > 0 and y.size > 0, f"{prefix} x and y must hold examples, got {shapes}.")
    is_paired = x.ndim > 0 and x.shape[:1] == y.shape[:1]
    require(is_paired, f"{prefix} x and y must pair up, got {shapes}.")
    for column_name, column in (("x", x), ("y", y)):
        require(
            _is_usable_dtype(column),
            f"{prefix} {column_name} must be floating or integer numbers, got {column.dtype}.",
        )
        require(
            column.dtype.isnative,
            f"{prefix} {column_name} must be in this machine's byte order, got {column.dtype}; "
            "convert it.",
        )
    require(
        split_names <= set(splits),
        f"{prefix} splits must include {sorted(split_names)}, got {sorted(splits)}.",
    )
    for split_name, split in splits.items():
        _validate_split(f"{prefix} {split_name} split", split, examples.count, len(x))


def _validate_split(prefix: str, split: Split, num_clients: int, num_rows: int) -> None:
    index, offsets = split
    require(
        index.dtype == offsets.dtype == np.int64,
        f"{prefix} must be int64, got {index.dtype}, {offsets.dtype}.",
    )
    is_valid = num_clients > 0 and len(offsets) == num_clients + 1
    is_valid = is_valid and bool(offsets[0] == 0 and offsets[-1] == len(index))
    is_valid = is_valid and bool((np.diff(offsets) >= 0).all())
    require(
        is_valid,
        f"{prefix} must have {num_clients + 1} offsets that rise from 0 to {len(index)}.",
    )
    is_inside = bool(((index >= 0) & (index < num_rows)).all())
    require(is_inside, f"{prefix} must point at examples from 0 to {num_rows - 1}.")


def validate_groups(
    name: str, client_names: NDArray[np.str_], groups: dict[str, NDArray[np.int64]], count: int
) -> None:
    """Check that client names differ, and that groups are complete and have no clients in common.

    Args:
        name: Data set that errors name.
        client_names: Name of each client, [clients].
        groups: Client ids of each group; only "train" and "participating" may overlap.
        count: Number of clients.
    """
    has_names = client_names.dtype.kind == "U" and client_names.shape == (count,)
    has_names = has_names and len(set(client_names.tolist())) == count
    require(has_names, f"{name}: ids must be {count} different strings, one for each client.")
    require(
        set(groups) == set(GROUPS),
        f"{name}: groups must be {', '.join(GROUPS)}, got {', '.join(groups)}.",
    )
    for group, client_ids in groups.items():
        is_valid = client_ids.dtype.kind == "i"
        is_valid = is_valid and bool(((client_ids >= 0) & (client_ids < count)).all())
        is_valid = is_valid and len(np.unique(client_ids)) == len(client_ids)
        require(
            is_valid,
            f"{name}: group {group!r} must list different clients by number, from 0 to "
            f"{count - 1}.",
        )
    require(
        len(groups["train"]) > 0, f"{name}: group 'train' must have at least one client, got none."
    )
    for first, second in combinations(GROUPS, 2):
        if (first, second) == ("train", "participating"):
            continue
        shared_ids = np.intersect1d(groups[first], groups[second])
        shared_names = client_names[shared_ids].tolist()
        require(
            not shared_names,
            f"{name}: groups {first!r} and {second!r} must be different clients, but share "
            f"{shared_names[:3]}.",
        )


def find_owners(name: str, examples: ClientExamples, owner_names: list[str]) -> NDArray[np.int64]:
    """Return the client that has each example, or `UNASSIGNED`, [examples].

    Raise `InputError` for an example of two clients, one that is in "test" and another split, and a
    client without train examples. A client may have an example in two other splits: "support" and
    "query" consist of train examples.

    Args:
        name: Data set that errors name.
        examples: Examples of all clients, or of the server.
        owner_names: What errors call each client (or the server), [clients].
    """
    is_idle = examples.splits["train"].compute_sizes() == 0
    if is_idle.any():
        idle_name = owner_names[int(is_idle.argmax())]
        raise InputError(
            f"{name}: every client must have a train example, but {idle_name} has none; "
            "leave it out."
        )
    owners = np.full(len(examples.x), UNASSIGNED)
    # Last position of each example in the index of a split; an earlier one is a repetition.
    last_positions = np.zeros(len(examples.x), np.int64)
    # With "test" last, an example that it shares with any other split is noticed there.
    for split_name in sorted(examples.splits, key=lambda split_name: split_name == "test"):
        if split_name == "adapt" and _is_alias(examples, "adapt"):
            continue
        split = examples.splits[split_name]
        index = split.index
        split_owners = split.compute_owners()
        positions = np.arange(len(index))
        last_positions[index] = positions
        earlier_owners = owners[index]
        is_repeated = last_positions[index] != positions
        is_taken = earlier_owners != UNASSIGNED
        if split_name != "test":
            is_taken &= earlier_owners != split_owners
        is_conflict = is_repeated | is_taken
        if is_conflict.any():
            position = int(is_conflict.argmax())
            row = index[position]
            other_owner = earlier_owners[position]
            if other_owner == UNASSIGNED:
                other_owner = split_owners[last_positions[row]]
            names = (owner_names[split_owners[position]], owner_names[other_owner])
            raise InputError(
                f"{name}: example {row} must be held once, but is held more often, by "
                f"{' and '.join(dict.fromkeys(names))}."
            )
        owners[index] = split_owners
    return owners


def _is_alias(examples: ClientExamples, split_name: str) -> bool:
    """Return whether a split is the same object as "train" or "test"."""
    splits = examples.splits
    return any(splits[split_name] is splits.get(other) for other in ("train", "test"))


def validate_dtypes(
    name: str, clients: ClientExamples, classes: int | None, scale: float, tokens: bool
) -> None:
    """Check that tokens and labels are integers, and that a scale is given only for integers.

    Args:
        name: Data set that errors name.
        clients: Examples of all clients.
        classes: Number of classes, or None for real-valued targets.
        scale: Factor of x, which must be 1 if x is tokens or floating.
        tokens: Whether x is token ids.
    """
    x_dtype = clients.x.dtype
    is_integer = x_dtype.kind != "f"
    can_scale = is_integer and not tokens
    require(is_integer or not tokens, f"{name}: tokens must be integers, got x of {x_dtype}.")
    require(0 < scale < np.inf, f"{name}: scale must be positive and finite, got {scale}.")
    require(
        can_scale or scale == 1,
        f"{name}: scale must be 1 unless x is integer and not tokens, got {scale}.",
    )
    if classes is not None:
        require(
            classes >= 1,
            f"{name}: classes must be at least 1 (None for real-valued targets), got {classes}.",
        )
        y_dtype = clients.y.dtype
        require(
            y_dtype.kind in "iu",
            f"{name}: labels must be integers where classes is given, got {y_dtype}.",
        )


def validate_server(name: str, clients: ClientExamples, server: ClientExamples) -> None:
    """Check that the server's examples have one owner, and the shapes and types of the clients'.

    Args:
        name: Data set that errors name.
        clients: Examples of all clients.
        server: Examples of the server.
    """
    require(
        server.count == 1,
        f"{name}: the server's examples must have a single owner, got {server.count}.",
    )
    _validate_match(f"{name}: the server's x", clients.x, server.x)
    _validate_match(f"{name}: the server's y", clients.y, server.y)


def _validate_match(prefix: str, clients_column: Array, server_column: Array) -> None:
    expected = _describe_column(clients_column)
    actual = _describe_column(server_column)
    require(actual == expected, f"{prefix} must have {expected} as the clients', got {actual}.")


def _describe_column(column: Array) -> str:
    return f"shape {list(column.shape[1:])} of {column.dtype}"


def validate_values(
    name: str,
    examples: ClientExamples,
    classes: int | None,
    owners: NDArray[np.int64],
    owner_names: list[str],
) -> None:
    """Check that examples are finite and labels in range, for the examples that have an owner.

    Args:
        name: Data set that errors name.
        examples: Examples of all clients, or of the server.
        classes: Number of classes, or None for real-valued targets.
        owners: Client of each example, or `UNASSIGNED`, [examples].
        owner_names: What errors call each client, [clients].
    """
    for column_name, column in (("x", examples.x), ("y", examples.y)):
        if column.dtype.kind != "f":
            continue
        row = _find_first_row(_find_nonfinite, column, owners)
        if row is not None:
            raise InputError(
                f"{name}: {column_name} must be finite, but example {row} of "
                f"{owner_names[owners[row]]} has a NaN or infinity."
            )
    if classes is not None:
        find_out_of_range = partial(_find_out_of_range, classes=classes)
        row = _find_first_row(find_out_of_range, examples.y, owners)
        if row is not None:
            labels = np.atleast_1d(examples.y[row])
            bad_label = labels[find_out_of_range(labels)][0]
            raise InputError(
                f"{name}: labels must be from 0 to {classes - 1}, but example {row} of "
                f"{owner_names[owners[row]]} has {bad_label}."
            )


def validate_server_rows(
    name: str,
    server_rows: NDArray[np.int64],
    num_examples: int,
    owners: NDArray[np.int64],
    owner_names: list[str],
) -> None:
    """Check that the server's rows of the clients' columns are no client's.

    Args:
        name: Data set that errors name.
        server_rows: Row of each example of the server, [server examples].
        num_examples: Number of examples of the server.
        owners: Client of each row, or `UNASSIGNED`, [rows]; with overlap, of test rows alone.
        owner_names: What errors call each client, [clients].
    """
    is_valid = server_rows.dtype.kind == "i" and server_rows.shape == (num_examples,)
    is_valid = is_valid and bool(((server_rows >= 0) & (server_rows < len(owners))).all())
    require(
        is_valid,
        f"{name}: server_rows must be {num_examples} rows from 0 to {len(owners) - 1}, one for "
        "each example of the server.",
    )
    is_shared = owners[server_rows] != UNASSIGNED
    if is_shared.any():
        row = server_rows[int(is_shared.argmax())]
        raise InputError(
            f"{name}: the server's examples must not be clients', but it has row {row}, which "
            f"{owner_names[owners[row]]} has; take it out of one of them."
        )


def find_overflow(column: Array, limit: float) -> int | None:
    """Return the first row with a value beyond a limit in size, or None.

    Columns whose type cannot hold such a value are not read; others are read in blocks.
    """
    limits = np.iinfo(column.dtype) if column.dtype.kind in "iu" else np.finfo(column.dtype)
    if float(limits.max) <= limit:
        return None
    for block in iter_row_slices(column):
        is_beyond = np.abs(column[block].astype(np.float64)) > limit
        is_beyond_row = is_beyond.reshape(len(is_beyond), -1).any(axis=1)
        if is_beyond_row.any():
            return int(block.start + is_beyond_row.argmax())
    return None


def _is_usable_dtype(column: Array) -> bool:
    """Return whether values are numbers of at most 64 bits; longer floats have padding bytes."""
    return column.dtype.kind in "fiu" and column.dtype.itemsize <= 8


def _find_nonfinite(values: Array) -> Array:
    return ~np.isfinite(values)


def _find_out_of_range(labels: Array, classes: int) -> Array:
    return np.asarray((labels < 0) | (labels >= classes))


def iter_row_slices(column: Array) -> Iterator[slice]:
    """Yield slices of at most `BLOCK_BYTES`, or of a single row, that cover the column."""
    num_rows = max(1, BLOCK_BYTES // column[:1].nbytes)
    for start in range(0, len(column), num_rows):
        yield slice(start, min(start + num_rows, len(column)))


def _find_first_row(
    find_bad: Callable[[Array], Array], column: Array, owners: NDArray[np.int64]
) -> int | None:
    """Return the first row with an owner in which `find_bad` is true of an entry, or None."""
    for block in iter_row_slices(column):
        is_bad = find_bad(column[block])
        is_bad_row = is_bad.reshape(len(is_bad), -1).any(axis=1) & (owners[block] != UNASSIGNED)
        if is_bad_row.any():
            return int(block.start + is_bad_row.argmax())
    return None
