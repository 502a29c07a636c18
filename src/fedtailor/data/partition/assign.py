"""Assignment of a stored data set's examples to clients, their splits and groups, and the server.

Clients are the data set's own (partition "natural") or those of a partitioner. The server's
examples are drawn before the partition, or from the clients after it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_int, resolve_count
from fedtailor.data.examples import UNASSIGNED, Array, Split
from fedtailor.data.partition import LabelHierarchy, Owners, by_user, relabel
from fedtailor.data.partition.by_user import NaturalClients
from fedtailor.data.partition.options import (
    NATURAL,
    BoundPartitioner,
    NaturalOptions,
    ScenarioOptions,
)
from fedtailor.data.partition.splits import (
    Groups,
    assign_groups_covering_labels,
    assign_random_groups,
    split_rows,
)
from fedtailor.data.rng import make_rng
from fedtailor.data.server_data.holdout import draw_clients
from fedtailor.data.server_data.source import ClientDraw, ClientRowDraw, RowDraw
from fedtailor.data.store import StoredDataset
from fedtailor.errors import is_number, require
from fedtailor.prng.streams import DataStream

Rows = NDArray[np.int64]
NO_ROWS = np.zeros(0, np.int64)


class ClientAssignment(NamedTuple):
    """Rows of a data set that the clients and the server have."""

    splits: dict[str, Split]
    groups: Groups
    client_names: NDArray[np.str_]  # [clients]
    server_rows: Rows  # the server's rows of the data set
    y: Array | None  # new labels, [rows]; None: clients have those of the data set
    relabeled_clients: Rows  # numbers of the clients that permute their labels
    left_out: dict[str, int]  # numbers of rows that were left out on purpose, by reason
    unassigned_reason: str  # reason for all other rows that neither clients nor the server have


def assign_clients(data: StoredDataset, options: ScenarioOptions) -> ClientAssignment:
    """Return the assignment of a stored data set that the options ask for."""
    if isinstance(options.partition, NaturalOptions):
        return _assign_natural_clients(data, options, options.partition)
    return _assign_by_partitioner(data, options, options.partition)


def _assign_natural_clients(
    data: StoredDataset, options: ScenarioOptions, natural: NaturalOptions
) -> ClientAssignment:
    """Return the assignment of the data set's own clients."""
    general = options.general
    source = options.server_source
    clients = by_user.select_clients(data, general, natural)
    left_out = by_user.count_left_out(data, clients, natural)
    server_rows = NO_ROWS
    if source.draw_clients is not None or natural.reserved:
        selected_clients = clients
        clients, server_rows = _reserve_server_clients(data, options, natural, clients)
        if not general.overlap:
            num_reserved = selected_clients.sizes.sum() - clients.sizes.sum() - len(server_rows)
            left_out["of reserved clients"] = int(num_reserved)
    client_names = np.asarray(data.client_names[clients.client_ids])
    if _can_split_into_ranges(data, options):
        rng = make_rng(general.seed, DataStream.GROUPS)
        return ClientAssignment(
            splits=by_user.split_into_ranges(clients, general, natural),
            groups=assign_random_groups(clients.is_test_only, general.split_config, rng),
            client_names=client_names,
            server_rows=server_rows,
            y=None,
            relabeled_clients=NO_ROWS,
            left_out=left_out,
            unassigned_reason=_describe_unassigned(natural),
        )
    owners = by_user.compute_owners(data, clients, general, natural)
    if source.draw_rows is not None:
        assigned_rows = np.flatnonzero(owners != UNASSIGNED)
        server_rows, remaining_rows = _draw_server_rows(
            data, options, assigned_rows, source.draw_rows
        )
        is_remaining = np.isin(np.arange(data.num_rows), remaining_rows)
        owners = np.where(is_remaining, owners, UNASSIGNED)
    assignment = _finish_assignment(data, options, owners, server_rows, client_names)
    return assignment._replace(left_out=left_out, unassigned_reason=_describe_unassigned(natural))


def _describe_unassigned(natural: NaturalOptions) -> str:
    """Return why a row of a client of the dataset can be left out."""
    return f"beyond most={natural.most} of a client"


def _can_split_into_ranges(data: StoredDataset, options: ScenarioOptions) -> bool:
    """Return whether each client's rows in each split are consecutive rows of the data set."""
    source = options.server_source
    takes_single_rows = source.draw_rows is not None or source.draw_client_rows is not None
    if takes_single_rows or options.general.zeta != 1:
        return False
    if options.general.split == "own":
        return by_user.has_test_rows_last(data)
    return options.general.split == "last"


def _reserve_server_clients(
    data: StoredDataset,
    options: ScenarioOptions,
    natural: NaturalOptions,
    clients: NaturalClients,
) -> tuple[NaturalClients, Rows]:
    """Return the clients that are not reserved for the server, and the server's rows.

    `reserved` clients are taken out even if the server has fewer or none, so that the others are
    the same whatever the server has. With `overlap` no client is taken out.
    """
    general = options.general
    reserved = natural.reserved
    is_share = is_number(reserved) and 0 <= reserved < 1
    is_count = is_number(reserved, integer=True) and reserved >= 0
    require(
        is_share or is_count,
        f"{data.name}: reserved must be a count or a share from 0 to less than 1, got "
        f"{reserved!r}.",
    )
    num_clients = len(clients.client_ids)
    draw: ClientDraw = draw_clients
    num_server_clients = 0
    if options.server_source.draw_clients is not None:
        draw = options.server_source.draw_clients
        num_server_clients = resolve_count(data.name, general.server, num_clients)
    num_reserved = resolve_count(data.name, reserved, num_clients)
    rng = make_rng(general.seed, DataStream.STORE_SERVER)
    reserved_ids = draw(data.name, clients.is_test_only, max(num_reserved, num_server_clients), rng)
    server_clients = clients.select(np.sort(reserved_ids[:num_server_clients]))
    remaining_ids = np.arange(num_clients)
    if not general.overlap:
        remaining_ids = np.setdiff1d(remaining_ids, reserved_ids)
    return clients.select(remaining_ids), server_clients.get_rows()


def _assign_by_partitioner(
    data: StoredDataset, options: ScenarioOptions, partitioner: BoundPartitioner
) -> ClientAssignment:
    """Return the assignment of all examples that the server leaves, by a partitioner."""
    name = data.name
    general = options.general
    source = options.server_source
    y = data.columns["y"]
    has_labels = y.ndim == 1 and y.dtype.kind in "iu"
    require(
        has_labels,
        f"{name}: partition={general.partition} needs one label for each example; take natural.",
    )
    require_int(name, "clients", general.clients, 1)
    server_rows = NO_ROWS
    rows = np.arange(data.num_rows)
    if source.draw_rows is not None:
        server_rows, rows = _draw_server_rows(data, options, rows, source.draw_rows)
    fine = y[rows].astype(np.int64)
    labels: Array | LabelHierarchy = fine
    if partitioner.is_hierarchical:
        coarse = _get_coarse_labels(data, general.partition)[rows]
        labels = LabelHierarchy(coarse, fine)
    rng = make_rng(general.seed, DataStream.STORE_PARTITION)
    owners = np.full(data.num_rows, UNASSIGNED, np.int64)
    owners[rows] = partitioner.assign(labels, general.clients, rng)
    count = int(owners.max()) + 1
    if source.draw_clients is not None:
        server_rows, owners = _take_whole_clients(data, options, owners, source.draw_clients)
    client_names = np.arange(count).astype(str)
    return _finish_assignment(data, options, owners, server_rows, client_names)


def _get_coarse_labels(data: StoredDataset, partition: str) -> Array:
    """Return each example's coarse label: a column, or an attribute with one for each class.

    `partition` is what the error says needs them.
    """
    if "coarse" in data.columns:
        return data.columns["coarse"]
    coarse_by_class = data.attributes.coarse
    require(
        len(coarse_by_class) > 0,
        f"{data.name}: {partition} needs coarse labels, but this set has none.",
    )
    return np.array(coarse_by_class)[data.columns["y"]]


def _draw_server_rows(
    data: StoredDataset, options: ScenarioOptions, rows: Rows, draw: RowDraw
) -> tuple[Rows, Rows]:
    """Return which of these rows are the server's, and which remain for clients.

    With `overlap` all remain.
    """
    y = data.columns["y"]
    general = options.general
    rng = make_rng(general.seed, DataStream.STORE_SERVER)
    positions = draw(data.name, y[rows], general.server, rng)
    server_rows = rows[positions]
    if general.overlap:
        return server_rows, rows
    return server_rows, np.delete(rows, positions)


def _take_whole_clients(
    data: StoredDataset, options: ScenarioOptions, owners: Owners, draw: ClientDraw
) -> tuple[Rows, Owners]:
    """Return all rows of some clients, the server's, and the owners without these clients."""
    general = options.general
    num_clients = int(owners.max()) + 1
    server_clients = draw(
        data.name,
        np.zeros(num_clients, bool),
        resolve_count(data.name, general.server, num_clients),
        make_rng(general.seed, DataStream.STORE_SERVER),
    )
    is_server_row = np.isin(owners, server_clients)
    if not general.overlap:
        owners = np.where(is_server_row, UNASSIGNED, owners)
    return np.flatnonzero(is_server_row), owners


def _finish_assignment(
    data: StoredDataset,
    options: ScenarioOptions,
    owners: Owners,
    server_rows: Rows,
    client_names: NDArray[np.str_],
) -> ClientAssignment:
    """Return the assignment with splits, groups and labels for known owners.

    Args:
        data: Stored data set.
        options: All options that apply.
        owners: Client of each row, or `UNASSIGNED`, [rows]. Clients without rows are left out.
        server_rows: The server's rows, unless it takes some from the clients.
        client_names: Name of each client, [clients].
    """
    general = options.general
    split_config = general.split_config
    draw_client_rows = options.server_source.draw_client_rows
    if draw_client_rows is not None:
        server_rows, owners = _take_client_rows(data, options, owners, draw_client_rows)
    rows = np.flatnonzero(owners != UNASSIGNED)
    require(
        len(rows) > 0,
        f"{data.name}: the server leaves nothing to clients; ask for less than {general.server}.",
    )
    client_ids, row_owners = np.unique(owners[rows], return_inverse=True)
    is_test = None
    if general.split == "own":
        is_test = np.asarray(by_user.get_test_column(data)[rows])
    splits = split_rows(
        row_owners,
        len(client_ids),
        split_config,
        make_rng(general.seed, DataStream.SPLITS),
        general.split,
        is_test,
    )
    for split_name, split in splits.items():
        splits[split_name] = Split(rows[split.index], split.offsets)
    if isinstance(split_config.adapt, str):
        # One object for both names, which the store keeps as one file.
        splits["adapt"] = splits[split_config.adapt]
    y, relabeled_clients = _relabel(data, options, rows, row_owners)
    is_test_only = np.zeros(len(client_ids), bool)
    if is_test is not None:
        is_test_only = np.bincount(row_owners, is_test) == np.bincount(row_owners)
    if general.partition == NATURAL:
        rng = make_rng(general.seed, DataStream.GROUPS)
        groups = assign_random_groups(is_test_only, split_config, rng)
    else:
        labels = data.columns["y"] if y is None else y
        has_label = _tabulate_labels(row_owners, labels[rows])
        groups = assign_groups_covering_labels(has_label, is_test_only, split_config)
    return ClientAssignment(
        splits=splits,
        groups=groups,
        client_names=client_names[client_ids],
        server_rows=server_rows,
        y=y,
        relabeled_clients=relabeled_clients,
        left_out={},
        unassigned_reason=f"not used by partition={general.partition}",
    )


def _take_client_rows(
    data: StoredDataset, options: ScenarioOptions, owners: Owners, draw: ClientRowDraw
) -> tuple[Rows, Owners]:
    """Return the server's rows, drawn from some clients, and the owners without these rows."""
    general = options.general
    assigned_rows = np.flatnonzero(owners != UNASSIGNED)
    rng = make_rng(general.seed, DataStream.STORE_SERVER)
    positions = draw(data.name, owners[assigned_rows], general.server, rng)
    server_rows = assigned_rows[positions]
    if general.overlap:
        return server_rows, owners
    remaining_owners = owners.copy()
    remaining_owners[server_rows] = UNASSIGNED
    return server_rows, remaining_owners


def _relabel(
    data: StoredDataset, options: ScenarioOptions, rows: Rows, row_owners: Owners
) -> tuple[Array | None, Rows]:
    """Return new labels, [rows of the data set], and the numbers of the clients that permute them.

    Args:
        data: Stored data set.
        options: All options; with zeta 1, labels are None and no client permutes them.
        rows: Rows of the clients, [clients' rows].
        row_owners: Client of each of these rows, [clients' rows].
    """
    zeta = options.general.zeta
    seed = options.general.seed
    if zeta == 1:
        return None, NO_ROWS
    y = data.columns["y"]
    require(y.ndim == 1, f"{data.name}: zeta needs one label for each example.")
    labels = np.array(y)
    rng = make_rng(seed, DataStream.RELABEL)
    labels[rows] = relabel(labels[rows], row_owners, rng, zeta=zeta)
    # The first draw of `relabel`, again, for which clients it chose.
    count = int(row_owners.max()) + 1
    order = make_rng(seed, DataStream.RELABEL).permutation(count)
    client_ids = order[: round((1 - zeta) * count)]
    return labels, np.sort(client_ids)


def _tabulate_labels(row_owners: Owners, labels: Array) -> NDArray[np.bool_]:
    """Return which labels each client has, [clients, labels], from those of the clients' rows."""
    distinct_labels, label_ids = np.unique(labels, return_inverse=True)
    has_label = np.zeros((int(row_owners.max()) + 1, len(distinct_labels)), bool)
    has_label[row_owners, label_ids] = True
    return has_label
