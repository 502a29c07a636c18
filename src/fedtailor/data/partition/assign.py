"""Whose each example of a stored data set is: people as the set says, or clients by a rule; what the server takes."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import content_hash
from fedtailor.data.arguments import require_int, resolve_count
from fedtailor.data.examples import Array, Split
from fedtailor.data.partition import (
    PARTITIONERS,
    UNASSIGNED,
    Owners,
    by_user,
    mixture,
    pachinko,
    relabel,
)
from fedtailor.data.partition.by_user import NaturalClients
from fedtailor.data.partition.options import PARTITION_OPTIONS
from fedtailor.data.partition.splits import (
    Groups,
    SplitConfig,
    assign_groups_covering_labels,
    assign_random_groups,
    split_rows,
)
from fedtailor.data.rng import make_rng
from fedtailor.data.server_data.holdout import PRE_PARTITION_DRAWS, draw_clients, draw_from_clients
from fedtailor.data.store import StoredDataset
from fedtailor.errors import is_number, require
from fedtailor.prng.streams import DataStream

Rows = NDArray[np.int64]
Options = dict[str, Any]
NO_ROWS = np.zeros(0, np.int64)


class ClientAssignment(NamedTuple):
    """Who holds what."""

    splits: dict[str, Split]
    groups: Groups
    client_names: NDArray[np.str_]
    server_rows: Rows  # the server's rows
    y: Array | None  # new labels, where people have given theirs an order of their own
    relabeled_clients: Rows  # these people, by number


def assign_clients(
    data: StoredDataset, options: Options, split_config: SplitConfig
) -> ClientAssignment:
    """The division that the options ask for."""
    source = options["server_from"] if options["server"] else ""
    if options["partition"] != "natural":
        return _assign_by_partitioner(data, options, split_config, source)
    clients = by_user.select_clients(data, options)
    server_rows = NO_ROWS
    if source == "people" or options["reserved"]:
        clients, server_rows = _reserve_server_clients(data, options, clients, source)
    runs = options["split"] == "last" or (
        options["split"] == "own" and by_user.has_test_rows_last(data)
    )
    if runs and options["zeta"] == 1 and source not in (*PRE_PARTITION_DRAWS, "clients"):
        groups = assign_random_groups(
            clients.is_test_only, split_config, make_rng(options["seed"], DataStream.GROUPS)
        )
        parts = by_user.split_into_ranges(clients, options, split_config)
        return ClientAssignment(
            parts,
            groups,
            np.asarray(data.client_names[clients.client_ids]),
            server_rows,
            None,
            NO_ROWS,
        )
    owners = by_user.compute_owners(data, clients, options)
    if source in PRE_PARTITION_DRAWS:
        server_rows, left = _draw_server_rows(data, np.flatnonzero(owners != UNASSIGNED), options)
        owners = np.where(np.isin(np.arange(data.num_rows), left), owners, UNASSIGNED)
    return _finish_assignment(
        data,
        options,
        split_config,
        source,
        owners,
        server_rows,
        np.asarray(data.client_names[clients.client_ids]),
    )


def _reserve_server_clients(
    data: StoredDataset, options: Options, clients: NaturalClients, source: str
) -> tuple[NaturalClients, Rows]:
    """The people but for the server's and those kept for it, and the server's rows."""
    rng, kept_back = make_rng(options["seed"], DataStream.STORE_SERVER), options["reserved"]
    good = (
        is_number(kept_back)
        and kept_back >= 0
        and (kept_back < 1 or is_number(kept_back, integer=True))
    )
    require(
        good,
        f"{data.name}: reserved must be a count or a share from 0 to less than 1, got {kept_back!r}.",
    )
    count, server = len(clients.client_ids), options["server"] if source == "people" else 0
    reserved = max(
        resolve_count(data.name, kept_back, count), resolve_count(data.name, server, count)
    )
    kept = draw_clients(data.name, clients.is_test_only, reserved, rng)
    server_rows = (
        clients.select(np.sort(kept[: resolve_count(data.name, server, count)])).get_rows()
        if source == "people"
        else NO_ROWS
    )
    rest = np.arange(count) if options["overlap"] else np.setdiff1d(np.arange(count), kept)
    return clients.select(rest), server_rows


def _assign_by_partitioner(
    data: StoredDataset, options: Options, split_config: SplitConfig, source: str
) -> ClientAssignment:
    """Clients by a rule, of what the server leaves if it takes examples before."""
    y, name = data.columns["y"], data.name
    labelled = y.ndim == 1 and y.dtype.kind in "iu"
    require(
        labelled,
        f"{name}: partition={options['partition']} needs one label for each example; take natural.",
    )
    require_int(name, "clients", options["clients"], 1)
    everything = np.arange(data.num_rows)
    server_rows, rows = (
        _draw_server_rows(data, everything, options)
        if source in PRE_PARTITION_DRAWS
        else (NO_ROWS, everything)
    )
    owners = np.full(data.num_rows, UNASSIGNED, np.int64)
    rng = make_rng(options["seed"], DataStream.STORE_PARTITION)
    owners[rows] = _bind_partitioner(data, rows, options)(
        y[rows].astype(np.int64), options["clients"], rng
    )
    count = int(owners.max()) + 1
    if source == "people":
        chosen = draw_clients(
            name,
            np.zeros(count, bool),
            resolve_count(name, options["server"], count),
            make_rng(options["seed"], DataStream.STORE_SERVER),
        )
        server_rows = np.flatnonzero(np.isin(owners, chosen))
        owners = (
            owners if options["overlap"] else np.where(np.isin(owners, chosen), UNASSIGNED, owners)
        )
    return _finish_assignment(
        data, options, split_config, source, owners, server_rows, np.arange(count).astype(str)
    )


def _bind_partitioner(data: StoredDataset, rows: Rows, options: Options) -> Any:
    """The partition that is asked for, with its options."""
    rule_options = {
        rule: {key: options[key] for key in PARTITION_OPTIONS[rule]}
        for rule in (options["partition"], options["others"])
        if rule
    }
    if options["partition"] == "pachinko":
        return partial(pachinko, _get_coarse_labels(data)[rows], **rule_options["pachinko"])
    first, *second = (partial(PARTITIONERS[rule], **its) for rule, its in rule_options.items())
    if options["others"] == options["partition"]:
        second = [first]
    return (
        partial(mixture, partitioner=first, other=second[0], share=options["others_share"])
        if second
        else first
    )


def _get_coarse_labels(data: StoredDataset) -> Array:
    """The coarse label of each example: a column of its own, or the group that its class belongs to."""
    if "coarse" in data.columns:
        return data.columns["coarse"]
    groups = data.attributes.get("coarse")
    require(
        groups is not None, f"{data.name}: pachinko needs coarse labels, but this set has none."
    )
    return np.array(groups)[data.columns["y"]]


def _draw_server_rows(data: StoredDataset, rows: Rows, options: Options) -> tuple[Rows, Rows]:
    """The server's of these rows, and what it leaves: of images, nothing that equals one of its own."""
    x, y = data.columns["x"], data.columns["y"]
    drawn = PRE_PARTITION_DRAWS[options["server_from"]](
        data.name, y[rows], options["server"], make_rng(options["seed"], DataStream.STORE_SERVER)
    )
    server_rows, rest = rows[drawn], np.delete(rows, drawn)
    if options["overlap"]:
        return server_rows, rows
    if len(server_rows) and not data.attributes.get("tokens"):
        rest = rest[~content_hash.is_duplicate(x, rest, content_hash.hash_examples(x, server_rows))]
    return server_rows, rest


def _finish_assignment(
    data: StoredDataset,
    options: Options,
    split_config: SplitConfig,
    source: str,
    owners: Owners,
    server_rows: Rows,
    client_names: NDArray[np.str_],
) -> ClientAssignment:
    """Everything else, once it is known whose each row is."""
    if source == "clients":
        server_rows, owners = _take_from_clients(data, options, owners)
    rows = np.flatnonzero(owners != UNASSIGNED)
    require(
        len(rows) > 0,
        f"{data.name}: the server leaves nothing to clients; ask for less than {options['server']}.",
    )
    still, row_owners = np.unique(owners[rows], return_inverse=True)
    is_test = _get_test_mask(data, options, rows)
    parts = split_rows(
        row_owners,
        len(still),
        split_config,
        make_rng(options["seed"], DataStream.SPLITS),
        options["split"],
        is_test,
    )
    placed = {what: Split(rows[split.index], split.offsets) for what, split in parts.items()}
    if isinstance(split_config.adapt, str):
        placed["adapt"] = placed[split_config.adapt]
    labels, changed = _relabel(data, options, rows, row_owners)
    tests = (
        np.zeros(len(still)) if is_test is None else np.bincount(row_owners, is_test, len(still))
    )
    is_test_only = tests == np.bincount(row_owners)
    if options["partition"] == "natural":
        groups = assign_random_groups(
            is_test_only, split_config, make_rng(options["seed"], DataStream.GROUPS)
        )
    else:
        groups = assign_groups_covering_labels(
            _tabulate_labels(data, rows, row_owners, labels), is_test_only, split_config
        )
    return ClientAssignment(placed, groups, client_names[still], server_rows, labels, changed)


def _take_from_clients(
    data: StoredDataset, options: Options, owners: Owners
) -> tuple[Rows, Owners]:
    """Examples of some clients for the server, and whose everything is then."""
    held, rng = (
        np.flatnonzero(owners != UNASSIGNED),
        make_rng(options["seed"], DataStream.STORE_SERVER),
    )
    server_rows = held[
        draw_from_clients(
            data.name, owners[held], options["server"], rng, each=options["server_each"]
        )
    ]
    left = owners.copy()
    left[server_rows] = owners[server_rows] if options["overlap"] else UNASSIGNED
    return server_rows, left


def _get_test_mask(data: StoredDataset, options: Options, rows: Rows) -> NDArray[np.bool_] | None:
    """Which rows are of the set's own test part, if that is asked for."""
    if options["split"] != "own":
        return None
    require(
        "testing" in data.columns,
        f"{data.name}: split=own needs a test part, but this set has none; take random.",
    )
    return np.asarray(data.columns["testing"][rows])


def _relabel(
    data: StoredDataset, options: Options, rows: Rows, row_owners: Owners
) -> tuple[Array | None, Rows]:
    """New labels where some people give theirs an order of their own, and who does."""
    if options["zeta"] == 1:
        return None, NO_ROWS
    y = data.columns["y"]
    require(y.ndim == 1, f"{data.name}: zeta needs one label for each example.")
    labels, count = np.array(y), int(row_owners.max()) + 1
    labels[rows] = relabel(
        labels[rows],
        row_owners,
        make_rng(options["seed"], DataStream.RELABEL),
        zeta=options["zeta"],
    )
    client_ids = make_rng(options["seed"], DataStream.RELABEL).permutation(count)[
        : round((1 - options["zeta"]) * count)
    ]
    return labels, np.sort(client_ids)


def _tabulate_labels(
    data: StoredDataset, rows: Rows, row_owners: Owners, labels: Array | None
) -> NDArray[np.bool_]:
    """Who has which labels."""
    kinds, codes = np.unique(
        (data.columns["y"] if labels is None else labels)[rows], return_inverse=True
    )
    has_label = np.zeros((int(row_owners.max()) + 1, len(kinds)), bool)
    has_label[row_owners, codes] = True
    return has_label
