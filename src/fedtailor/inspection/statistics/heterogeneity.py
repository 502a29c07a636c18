"""How far apart people's distributions are: total variation of labels, 1-Wasserstein of examples.

Per-FedAvg (section 4.1) bounds the diversity of clients' gradients, and of their Hessians, by either distance from each
client's distribution p_i to the mean one, p = 1/n sum_i p_i, in which clients count alike whatever their size. Here p_i
is the empirical distribution of client i's train examples. The same distances tell how far the server's data are.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.data.label_table import total_variation
from fedtailor.errors import require
from fedtailor.inspection.statistics.optimal_transport import (
    sample_directions,
    wasserstein,
    wasserstein_1d,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_EXACT_EXAMPLES = 500
"""With at most so many train examples in all, Wasserstein distances are exact unless one asks for projections."""
NUM_PROJECTIONS = 128
BLOCK_BYTES, PROJECTION_BYTES = 1 << 23, 1 << 27
"""So much of the examples, decoded, and so much of their projections is held at a time."""


class Distances(NamedTuple):
    """Distances between people's distributions; those with the server's are None if it has no examples."""

    clients: FloatArray  # [clients] from each client's to the mean one
    server: float | None  # from the server's to the clients' mean one
    from_server: FloatArray | None  # [clients] from the server's to each client's
    projections: int = 0  # over which sliced distances are a mean; 0: they are exact


def compute_label_shares(
    examples: ClientExamples, client_ids: IntArray, classes: int
) -> FloatArray:
    """The share of each label among the train examples of each holder, [who, classes]."""
    train = examples.splits["train"]
    counts = np.array(
        [
            np.bincount(examples.y[train.get_rows(int(one))].astype(np.int64), minlength=classes)
            for one in client_ids
        ]
    )
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def compute_label_distances(
    dataset: FederatedDataset, client_ids: IntArray | None = None
) -> Distances | None:
    """Total variation between label distributions of all clients, or of the clients `who`, and of the server.

    None if examples have no single label. It is at most the total variation between distributions of whole examples,
    and equals it where clients differ in their labels alone: p_i(x | y) the same for all.
    """
    if dataset.classes is None or dataset.clients.y.ndim > 1:
        return None
    client_shares = compute_label_shares(
        dataset.clients, _select_clients(dataset, client_ids), dataset.classes
    )
    mean, to_mean = (
        client_shares.mean(axis=0),
        total_variation(client_shares, client_shares.mean(axis=0)),
    )
    if dataset.server is None:
        return Distances(to_mean, None, None)
    server = compute_label_shares(dataset.server, np.array([0]), dataset.classes)[0]
    return Distances(
        to_mean, float(total_variation(server, mean)), total_variation(client_shares, server)
    )


def compute_example_distances(
    dataset: FederatedDataset,
    client_ids: IntArray | None = None,
    *,
    label: float = 1.0,
    projections: int | None = None,
    seed: int = 0,
) -> Distances | None:
    """W1 between distributions of examples z = (x, y) of all clients, or of the clients `who`, and of the server.

        d(z, z')^2 = |x - x'|^2 + label^2 [y != y']            for labels; label^2 |y - y'|^2 for other targets

    with x in the model's units. None for tokens, which are at no distance from each other. Without `projections` the
    distances are exact for at most `EXACT` examples; beyond that, as with `projections`, they are sliced, along the
    `directions` of the seed: a mean over lines, which is less than W1.
    """
    require(label >= 0, f"example_distances: label must not be negative, got {label}.")
    if dataset.tokens:
        return None
    client_points = _ClientPoints(dataset, _select_clients(dataset, client_ids), label)
    if projections is None and client_points.sizes.sum() <= MAX_EXACT_EXAMPLES:
        return _compute_exact_distances(client_points)
    return _compute_sliced_distances(
        client_points, NUM_PROJECTIONS if projections is None else projections, seed
    )


def diversity_from_total_variation(distances: Distances, bound: float) -> float:
    """gamma_G^2 = 4 B^2 1/n sum_i |p_i - p|_TV^2 (14a), for gradients of any example's loss of norm at most B.

    With L, which bounds the norm of their Hessians, for B it is gamma_H^2. The distances are total variations.
    """
    require(bound >= 0, f"diversity_by_variation: bound must not be negative, got {bound}.")
    return float(4 * bound**2 * np.mean(distances.clients**2))


def diversity_from_wasserstein(distances: Distances, lipschitz: float) -> float:
    """gamma_G^2 = L_Z^2 1/n sum_i W1(p_i, p)^2 (16), for gradients of losses that are L_Z-Lipschitz in the example.

    With rho_Z, the Lipschitz constant of their Hessians, for L_Z it is gamma_H^2. The constant goes with the distance
    between examples; of sliced distances the figure is an indication, not a bound.
    """
    require(
        lipschitz >= 0, f"diversity_by_transport: lipschitz must not be negative, got {lipschitz}."
    )
    return float(lipschitz**2 * np.mean(distances.clients**2))


def _select_clients(dataset: FederatedDataset, client_ids: IntArray | None) -> IntArray:
    selected = np.arange(dataset.clients.count) if client_ids is None else np.asarray(client_ids)
    require(
        len(selected) > 0,
        f"{dataset.name}: at least one client is needed to measure distances, got none.",
    )
    return selected


class _ClientPoints:
    """The train examples of some clients, end to end, as points in which distances are Euclidean."""

    def __init__(self, dataset: FederatedDataset, client_ids: IntArray, label: float) -> None:
        self.dataset, self.label = dataset, label
        rows = [dataset.clients.splits["train"].get_rows(int(client)) for client in client_ids]
        self.rows, self.sizes = np.concatenate(rows), np.array([len(own) for own in rows])
        self.weights = np.repeat(
            1 / self.sizes, self.sizes
        )  # of a client's examples, to 1 for each client
        self.server_rows = (
            None if dataset.server is None else dataset.server.splits["train"].get_rows(0)
        )

    def to_points(self, examples: ClientExamples, rows: IntArray) -> FloatArray:
        """Examples as points [rows, dimensions]."""
        x, y = examples.x[rows], examples.y[rows]
        flat = x.reshape(len(rows), -1).astype(np.float64) * self.dataset.scale
        if not self.label:
            return flat
        classes, targets = self.dataset.classes, y.reshape(len(rows), -1)
        if classes is not None and y.ndim == 1:
            targets = np.eye(classes)[y] / math.sqrt(
                2
            )  # corners of a simplex: any two labels are as far apart
        return np.concatenate([flat, self.label * targets], axis=1)

    def project(self, examples: ClientExamples, rows: IntArray, lines: FloatArray) -> FloatArray:
        """Examples along lines, [lines, rows], block by block."""
        size = max(1, BLOCK_BYTES // (8 * lines.shape[1]))
        blocks = (rows[begin : begin + size] for begin in range(0, len(rows), size))
        return np.concatenate(
            [lines @ self.to_points(examples, block).T for block in blocks], axis=1
        )


def _compute_exact_distances(client_points: _ClientPoints) -> Distances:
    dataset = client_points.dataset
    points = client_points.to_points(dataset.clients, client_points.rows)
    each = np.split(points, np.cumsum(client_points.sizes)[:-1])
    weights = None if len(set(client_points.sizes.tolist())) == 1 else client_points.weights
    to_mean = np.array([wasserstein(own, points, other_weights=weights) for own in each])
    if dataset.server is None or client_points.server_rows is None:
        return Distances(to_mean, None, None)
    server = client_points.to_points(dataset.server, client_points.server_rows)
    return Distances(
        to_mean,
        wasserstein(server, points, other_weights=weights),
        np.array([wasserstein(server, own) for own in each]),
    )


def _compute_sliced_distances(
    client_points: _ClientPoints, projections: int, seed: int
) -> Distances:
    found = [
        np.concatenate(_compute_line_distances(client_points, *line))
        for line in _iter_projections(client_points, projections, seed)
    ]
    mean, count = np.mean(found, axis=0), len(client_points.sizes)
    if client_points.server_rows is None:
        return Distances(mean, None, None, projections)
    return Distances(mean[:count], float(mean[-1]), mean[count:-1], projections)


def _iter_projections(
    client_points: _ClientPoints, projections: int, seed: int
) -> Iterator[tuple[FloatArray, FloatArray | None]]:
    """Clients' and the server's examples along each direction in turn; as many at once as fit in a block."""
    dataset = client_points.dataset
    lines = sample_directions(
        client_points.to_points(dataset.clients, client_points.rows[:1]).shape[1], projections, seed
    )
    lines_per_block = max(1, PROJECTION_BYTES // (8 * len(client_points.rows)))
    for begin in range(0, projections, lines_per_block):
        some = lines[begin : begin + lines_per_block]
        clients = client_points.project(dataset.clients, client_points.rows, some)
        server = [None] * len(some)
        if dataset.server is not None and client_points.server_rows is not None:
            server = list(client_points.project(dataset.server, client_points.server_rows, some))
        yield from zip(clients, server, strict=True)


def _compute_line_distances(
    client_points: _ClientPoints, clients: FloatArray, server: FloatArray | None
) -> list[FloatArray]:
    """Distances on one line: from clients to their mean, from clients to the server, from the server to the mean."""
    mean = client_points.weights / len(client_points.sizes)
    to_mean = wasserstein_1d(clients, client_points.weights, client_points.sizes, clients, mean)
    if server is None:
        return [to_mean]
    server_weights = np.full(len(server), 1 / len(server))
    return [
        to_mean,
        wasserstein_1d(clients, client_points.weights, client_points.sizes, server, server_weights),
        wasserstein_1d(server, server_weights, np.array([len(server)]), clients, mean),
    ]
