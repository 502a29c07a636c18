"""Equality of examples by content, for server data that come from elsewhere.

Examples that were dealt out from one table are told apart by their row instead.
"""

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.content_hash import hash_rows
from fedtailor.data.examples import UNASSIGNED, Array, ClientExamples
from fedtailor.data.validation import iter_row_slices
from fedtailor.errors import InputError

NATURAL_REPEAT_SHARE = 0.01
"""Share of clients' examples that repeat another client's example, or one of their own.

From this share on, examples have so few values that equal ones say nothing about their origin.
"""

_LABEL_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor, so that x and y with equal hashes do not cancel each other out."""


def count_equal_examples(
    name: str,
    clients: ClientExamples,
    server: ClientExamples,
    owners: NDArray[np.int64],
    owner_names: list[str],
    overlap: bool,
) -> int:
    """Return how many examples of the server, from elsewhere, equal a client's in x and y.

    Raise `InputError` if any does, unless `overlap` allows it or clients' own examples repeat each
    other, so that equality is natural.

    Args:
        name: Data set that errors name.
        clients: Examples of all clients.
        server: Examples of the server, of the same shapes and types.
        owners: Client of each example, or `UNASSIGNED`, [examples].
        owner_names: What errors call each client, [clients].
        overlap: Whether clients may have the server's examples.
    """
    is_owned = owners != UNASSIGNED
    client_rows = find_equal_examples(server, clients, is_owned)
    server_rows = np.flatnonzero(client_rows != UNASSIGNED)
    if len(server_rows) == 0 or overlap:
        return len(server_rows)
    if compute_repeat_share(clients, is_owned) >= NATURAL_REPEAT_SHARE:
        return len(server_rows)
    server_row = server_rows[0]
    client_row = client_rows[server_row]
    raise InputError(
        f"{name}: the server's examples must not be clients', but its example {server_row} equals "
        f"example {client_row} of {owner_names[owners[client_row]]} in x and y; take it out, or "
        "allow that with overlap=true."
    )


def find_equal_examples(
    server: ClientExamples, clients: ClientExamples, is_owned: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return for each example of the server a client's row that equals it in x and y.

    Hashes are compared first, then the examples themselves. Columns are read in blocks.

    Args:
        server: Examples of the server, whose hashes must fit in RAM.
        clients: Examples of all clients.
        is_owned: Whether some client has each row, [clients' rows]; others are skipped.

    Returns:
        Row of the clients' columns, or `UNASSIGNED`, [server examples].
    """
    everything = np.ones(len(server.x), bool)
    server_hashes = _hash_pairs(server.x, server.y, everything)
    order = np.argsort(server_hashes, kind="stable")
    sorted_hashes = server_hashes[order]
    client_rows = np.full(len(server.x), UNASSIGNED)
    for block in iter_row_slices(clients.x):
        if not is_owned[block].any():
            continue
        hashes = _hash_block(clients.x[block], clients.y[block])
        first = np.searchsorted(sorted_hashes, hashes)
        last = np.searchsorted(sorted_hashes, hashes, "right")
        for position in np.flatnonzero((last > first) & is_owned[block]):
            row = block.start + int(position)
            candidates = order[first[position] : last[position]]
            for server_row in candidates[client_rows[candidates] == UNASSIGNED]:
                is_equal = np.array_equal(server.x[server_row], clients.x[row])
                if is_equal and np.array_equal(server.y[server_row], clients.y[row]):
                    client_rows[server_row] = row
    return client_rows


def compute_repeat_share(clients: ClientExamples, is_owned: NDArray[np.bool_]) -> float:
    """Return the share of clients' examples that repeat an earlier one in x and y, from 0 to 1.

    `is_owned` is whether some client has each row; the others do not count.
    """
    hashes = _hash_pairs(clients.x, clients.y, is_owned)
    return 1 - len(np.unique(hashes)) / max(1, len(hashes))


def _hash_pairs(x: Array, y: Array, is_counted: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the hashes of the counted examples, in order of their rows."""
    hashes = [np.zeros(0, np.uint64)]
    for block in iter_row_slices(x):
        if is_counted[block].any():
            hashes.append(_hash_block(x[block], y[block])[is_counted[block]])
    return np.concatenate(hashes)


def _hash_block(x: Array, y: Array) -> NDArray[np.uint64]:
    return hash_rows(x) ^ (hash_rows(y) * _LABEL_FACTOR)
