"""Distances between clients' data: total variation of labels, 1-Wasserstein distance of examples.

Per-FedAvg (section 4.1) bounds the diversity of clients' gradients, and of their Hessians, by
either distance from each client's distribution p_i to the mean one, p = 1/n sum_i p_i, in which
clients count alike whatever their size. Here p_i is the empirical distribution of client i's train
examples. The distances to the server's distribution are computed as well.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.data.label_table import normalize_counts, total_variation
from fedtailor.errors import require
from fedtailor.inspection.statistics.optimal_transport import (
    sample_directions,
    wasserstein,
    wasserstein_1d,
)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_EXACT_EXAMPLES = 500
"""Maximum number of train examples in all for which Wasserstein distances are exact by default."""

NUM_PROJECTIONS = 128
"""Default number of directions of sliced distances."""

BLOCK_BYTES = 1 << 23
"""Bytes of decoded examples that are held at a time."""

PROJECTION_BYTES = 1 << 27
"""Bytes of projections of the clients' examples that are held at a time."""

_FLOAT64_BYTES = 8


class Distances(NamedTuple):
    """Distances between distributions; those of the server are None if it has no examples."""

    clients: FloatArray  # [clients] from each client's distribution to the mean one
    server: float | None  # from the server's distribution to the clients' mean one
    from_server: FloatArray | None  # [clients] from the server's distribution to each client's
    projections: int = 0  # number of directions that sliced distances are a mean over; 0: exact


def compute_label_distances(
    dataset: FederatedDataset, client_ids: IntArray | None = None
) -> Distances | None:
    """Return total variation distances between the label distributions of clients and server.

    They are at most the total variation distances between distributions of whole examples, and
    equal to them where clients differ in their labels alone, that is, p_i(x | y) is the same for
    all.

    Args:
        dataset: The clients and the server, whose train examples are compared.
        client_ids: The clients that are compared and that make up the mean; None: all.

    Returns:
        The distances, from 0 to 1, or None if an example has no single label.
    """
    if dataset.classes is None or dataset.clients.y.ndim > 1:
        return None
    selected = _select_clients(dataset, client_ids)
    client_shares = _compute_label_shares(dataset.clients, selected, dataset.classes)
    mean_shares = client_shares.mean(axis=0)
    client_distances = total_variation(client_shares, mean_shares)
    if dataset.server is None:
        return Distances(client_distances, None, None)
    server_shares = _compute_label_shares(dataset.server, np.array([0]), dataset.classes)[0]
    return Distances(
        clients=client_distances,
        server=float(total_variation(server_shares, mean_shares)),
        from_server=total_variation(client_shares, server_shares),
    )


def compute_example_distances(
    dataset: FederatedDataset,
    client_ids: IntArray | None = None,
    *,
    label: float = 1.0,
    projections: int | None = None,
    seed: int = 0,
) -> Distances | None:
    """Return W1 distances between the distributions of examples z = (x, y) of clients and server.

        d(z, z')^2 = |x - x'|^2 + label^2 [y != y']       for labels; label^2 |y - y'|^2 for numbers

    with x in the model's units. Sliced distances are means over directions, which are less than W1.

    Args:
        dataset: The clients and the server, whose train examples are compared.
        client_ids: The clients that are compared and that make up the mean; None: all.
        label: Weight of targets against inputs; with 0, inputs alone count.
        projections: Number of directions of sliced distances. None: exact distances for at most
            `MAX_EXACT_EXAMPLES` examples, and sliced ones over `NUM_PROJECTIONS` beyond.
        seed: Seed of the directions.

    Returns:
        The distances, or None for tokens, between which there is no distance.
    """
    require(label >= 0, f"compute_example_distances: label must not be negative, got {label}.")
    if dataset.tokens:
        return None
    client_points = _ClientPoints(dataset, _select_clients(dataset, client_ids), label)
    if projections is not None:
        return _compute_sliced_distances(client_points, projections, seed)
    if len(client_points.rows) <= MAX_EXACT_EXAMPLES:
        return _compute_exact_distances(client_points)
    return _compute_sliced_distances(client_points, NUM_PROJECTIONS, seed)


def diversity_from_total_variation(distances: Distances, bound: float) -> float:
    """Return gamma_G^2 = 4 B^2 1/n sum_i |p_i - p|_TV^2 (14a), which bounds gradient diversity.

    Args:
        distances: Total variation distances.
        bound: B, the largest norm of the gradient of any example's loss. With L, which bounds the
            norm of their Hessians, for B the result is gamma_H^2.
    """
    require(
        bound >= 0,
        f"diversity_from_total_variation: bound must not be negative, got {bound}.",
    )
    return float(4 * bound**2 * np.mean(distances.clients**2))


def diversity_from_wasserstein(distances: Distances, lipschitz: float) -> float:
    """Return gamma_G^2 = L_Z^2 1/n sum_i W1(p_i, p)^2 (16), which bounds gradient diversity.

    With sliced distances, which are less than W1, the result is an indication and not a bound.

    Args:
        distances: 1-Wasserstein distances.
        lipschitz: L_Z, the Lipschitz constant in the example, by the same distance between
            examples, of the gradients of losses. With rho_Z, that of their Hessians, for L_Z the
            result is gamma_H^2.
    """
    require(
        lipschitz >= 0,
        f"diversity_from_wasserstein: lipschitz must not be negative, got {lipschitz}.",
    )
    return float(lipschitz**2 * np.mean(distances.clients**2))


def _select_clients(dataset: FederatedDataset, client_ids: IntArray | None) -> IntArray:
    selected = np.arange(dataset.clients.count) if client_ids is None else np.asarray(client_ids)
    require(
        len(selected) > 0,
        f"{dataset.name}: at least one client is needed to measure distances, got none.",
    )
    return selected


def _compute_label_shares(
    examples: ClientExamples, client_ids: IntArray, classes: int
) -> FloatArray:
    """Return the share of each label among each client's train examples, [clients, classes]."""
    train = examples.splits["train"]
    counts = np.zeros((len(client_ids), classes), np.int64)
    for position, client in enumerate(client_ids):
        labels = examples.y[train.get_rows(int(client))].astype(np.int64)
        counts[position] = np.bincount(labels, minlength=classes)
    return normalize_counts(counts)


class _ClientPoints:
    """Train examples of some clients, client after client, as points with Euclidean distances.

    Attributes:
        sizes: Number of examples of each client, [clients].
        rows: Rows of the examples in the data set's columns, [examples].
        weights: Weight of each example, which sum to 1 for each client, [examples].
        server_rows: Rows of the server's examples, or None if it has none.
    """

    def __init__(self, dataset: FederatedDataset, client_ids: IntArray, label: float) -> None:
        train = dataset.clients.splits["train"]
        rows_by_client = [train.get_rows(int(client)) for client in client_ids]
        self.dataset = dataset
        self.label = label
        self.sizes = np.array([len(rows) for rows in rows_by_client])
        self.rows = np.concatenate(rows_by_client)
        self.weights = np.repeat(1 / self.sizes, self.sizes)
        self.server_rows: IntArray | None = None
        if dataset.server is not None:
            self.server_rows = dataset.server.splits["train"].get_rows(0)

    def to_points(self, examples: ClientExamples, rows: IntArray) -> FloatArray:
        """Return examples as points, [rows, dimensions]."""
        x = examples.x[rows]
        inputs = x.reshape(len(rows), -1).astype(np.float64) * self.dataset.scale
        if not self.label:
            return inputs
        y = examples.y[rows]
        classes = self.dataset.classes
        if classes is not None and y.ndim == 1:
            # Labels are corners of a simplex with edges of length 1.
            targets = np.eye(classes)[y] / math.sqrt(2)
        else:
            targets = y.reshape(len(rows), -1)
        return np.concatenate([inputs, self.label * targets], axis=1)

    def project(
        self, examples: ClientExamples, rows: IntArray, directions: FloatArray
    ) -> FloatArray:
        """Return projections of examples, [directions, rows], decoding them block by block.

        Args:
            examples: The clients' or the server's examples.
            rows: Rows of the examples to project.
            directions: Unit vectors, [directions, dimensions].
        """
        bytes_per_point = _FLOAT64_BYTES * directions.shape[1]
        block_size = max(1, BLOCK_BYTES // bytes_per_point)
        projections = []
        for begin in range(0, len(rows), block_size):
            points = self.to_points(examples, rows[begin : begin + block_size])
            projections.append(directions @ points.T)
        return np.concatenate(projections, axis=1)


def _compute_exact_distances(client_points: _ClientPoints) -> Distances:
    dataset = client_points.dataset
    points = client_points.to_points(dataset.clients, client_points.rows)
    points_by_client = np.split(points, np.cumsum(client_points.sizes)[:-1])
    # Without weights `wasserstein` can match points one to one, which is faster.
    has_equal_sizes = len(set(client_points.sizes.tolist())) == 1
    weights = None if has_equal_sizes else client_points.weights
    client_distances = np.array(
        [wasserstein(client, points, other_weights=weights) for client in points_by_client]
    )
    if dataset.server is None or client_points.server_rows is None:
        return Distances(client_distances, None, None)
    server_points = client_points.to_points(dataset.server, client_points.server_rows)
    return Distances(
        clients=client_distances,
        server=wasserstein(server_points, points, other_weights=weights),
        from_server=np.array([wasserstein(server_points, client) for client in points_by_client]),
    )


def _compute_sliced_distances(
    client_points: _ClientPoints, projections: int, seed: int
) -> Distances:
    distances_by_line = [
        _compute_line_distances(client_points, clients, server)
        for clients, server in _iter_projections(client_points, projections, seed)
    ]
    distances = np.mean(distances_by_line, axis=0)
    if client_points.server_rows is None:
        return Distances(distances, None, None, projections)
    num_clients = len(client_points.sizes)
    return Distances(
        clients=distances[:num_clients],
        server=float(distances[-1]),
        from_server=distances[num_clients:-1],
        projections=projections,
    )


def _iter_projections(
    client_points: _ClientPoints, projections: int, seed: int
) -> Iterator[tuple[FloatArray, FloatArray | None]]:
    """Yield the projections of the clients' and of the server's examples on each direction.

    As many directions as fit into `PROJECTION_BYTES` are computed together.
    """
    dataset = client_points.dataset
    first_point = client_points.to_points(dataset.clients, client_points.rows[:1])
    directions = sample_directions(first_point.shape[1], projections, seed)
    bytes_per_direction = _FLOAT64_BYTES * len(client_points.rows)
    block_size = max(1, PROJECTION_BYTES // bytes_per_direction)
    for begin in range(0, projections, block_size):
        block = directions[begin : begin + block_size]
        clients = client_points.project(dataset.clients, client_points.rows, block)
        if dataset.server is None or client_points.server_rows is None:
            for client_line in clients:
                yield client_line, None
        else:
            server = client_points.project(dataset.server, client_points.server_rows, block)
            yield from zip(clients, server, strict=True)


def _compute_line_distances(
    client_points: _ClientPoints, clients: FloatArray, server: FloatArray | None
) -> FloatArray:
    """Return the distances along one direction.

    Args:
        client_points: Sizes and weights of the clients' examples.
        clients: Projections of the clients' examples, [examples].
        server: Projections of the server's examples, or None if it has none.

    Returns:
        Distances from each client to the clients' mean, [clients]. With a server they are followed
        by those from each client to the server and from the server to the clients' mean,
        [2 clients + 1].
    """
    sizes = client_points.sizes
    weights = client_points.weights
    mean_weights = weights / len(sizes)
    client_to_mean = wasserstein_1d(clients, weights, sizes, clients, mean_weights)
    if server is None:
        return client_to_mean
    server_size = np.array([len(server)])
    server_weights = np.full(len(server), 1 / len(server))
    client_to_server = wasserstein_1d(clients, weights, sizes, server, server_weights)
    server_to_mean = wasserstein_1d(server, server_weights, server_size, clients, mean_weights)
    return np.concatenate([client_to_mean, client_to_server, server_to_mean])
