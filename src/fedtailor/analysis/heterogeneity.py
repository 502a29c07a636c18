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

from fedtailor.analysis.transport import directions, line_distances, wasserstein
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.holders import Holders
from fedtailor.data.picture import total_variation
from fedtailor.errors import require

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

EXACT = 500
"""With at most so many train examples in all, Wasserstein distances are exact unless one asks for projections."""
PROJECTIONS = 128
BLOCK_BYTES, PROJECTED_BYTES = 1 << 23, 1 << 27
"""So much of the examples, decoded, and so much of their projections is held at a time."""


class Distances(NamedTuple):
    """Distances between people's distributions; those with the server's are None if it has no examples."""

    clients: Numbers  # [clients] from each client's to the mean one
    server: float | None  # from the server's to the clients' mean one
    from_server: Numbers | None  # [clients] from the server's to each client's
    projections: int = 0  # over which sliced distances are a mean; 0: they are exact


def label_shares(holders: Holders, who: Whole, classes: int) -> Numbers:
    """The share of each label among the train examples of each holder, [who, classes]."""
    train = holders.splits["train"]
    counts = np.array([np.bincount(holders.y[train.of(int(one))].astype(np.int64), minlength=classes) for one in who])
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def label_distances(dataset: FederatedDataset, who: Whole | None = None) -> Distances | None:
    """Total variation between label distributions of all clients, or of the clients `who`, and of the server.

    None if examples have no single label. It is at most the total variation between distributions of whole examples,
    and equals it where clients differ in their labels alone: p_i(x | y) the same for all.
    """
    if dataset.classes is None or dataset.clients.y.ndim > 1:
        return None
    own = label_shares(dataset.clients, _people(dataset, who), dataset.classes)
    mean, to_mean = own.mean(axis=0), total_variation(own, own.mean(axis=0))
    if dataset.server is None:
        return Distances(to_mean, None, None)
    server = label_shares(dataset.server, np.array([0]), dataset.classes)[0]
    return Distances(to_mean, float(total_variation(server, mean)), total_variation(own, server))


def example_distances(
    dataset: FederatedDataset,
    who: Whole | None = None,
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
    people = _People(dataset, _people(dataset, who), label)
    if projections is None and people.sizes.sum() <= EXACT:
        return _exact(people)
    return _sliced(people, PROJECTIONS if projections is None else projections, seed)


def diversity_by_variation(distances: Distances, bound: float) -> float:
    """gamma_G^2 = 4 B^2 1/n sum_i |p_i - p|_TV^2 (14a), for gradients of any example's loss of norm at most B.

    With L, which bounds the norm of their Hessians, for B it is gamma_H^2. The distances are total variations.
    """
    require(bound >= 0, f"diversity_by_variation: bound must not be negative, got {bound}.")
    return float(4 * bound**2 * np.mean(distances.clients**2))


def diversity_by_transport(distances: Distances, lipschitz: float) -> float:
    """gamma_G^2 = L_Z^2 1/n sum_i W1(p_i, p)^2 (16), for gradients of losses that are L_Z-Lipschitz in the example.

    With rho_Z, the Lipschitz constant of their Hessians, for L_Z it is gamma_H^2. The constant goes with the distance
    between examples; of sliced distances the figure is an indication, not a bound.
    """
    require(lipschitz >= 0, f"diversity_by_transport: lipschitz must not be negative, got {lipschitz}.")
    return float(lipschitz**2 * np.mean(distances.clients**2))


def _people(dataset: FederatedDataset, who: Whole | None) -> Whole:
    people = np.arange(dataset.clients.count) if who is None else np.asarray(who)
    require(len(people) > 0, f"{dataset.name}: at least one client is needed to measure distances, got none.")
    return people


class _People:
    """The train examples of some clients, end to end, as points in which distances are Euclidean."""

    def __init__(self, dataset: FederatedDataset, who: Whole, label: float) -> None:
        self.dataset, self.label = dataset, label
        rows = [dataset.clients.splits["train"].of(int(client)) for client in who]
        self.rows, self.sizes = np.concatenate(rows), np.array([len(own) for own in rows])
        self.weights = np.repeat(1 / self.sizes, self.sizes)  # of a client's examples, to 1 for each client
        self.own = None if dataset.server is None else dataset.server.splits["train"].of(0)

    def points(self, holders: Holders, rows: Whole) -> Numbers:
        """Examples as points [rows, dimensions]."""
        x, y = holders.x[rows], holders.y[rows]
        flat = x.reshape(len(rows), -1).astype(np.float64) * self.dataset.scale
        if not self.label:
            return flat
        classes, targets = self.dataset.classes, y.reshape(len(rows), -1)
        if classes is not None and y.ndim == 1:
            targets = np.eye(classes)[y] / math.sqrt(2)  # corners of a simplex: any two labels are as far apart
        return np.concatenate([flat, self.label * targets], axis=1)

    def projected(self, holders: Holders, rows: Whole, lines: Numbers) -> Numbers:
        """Examples along lines, [lines, rows], block by block."""
        size = max(1, BLOCK_BYTES // (8 * lines.shape[1]))
        blocks = (rows[begin : begin + size] for begin in range(0, len(rows), size))
        return np.concatenate([lines @ self.points(holders, block).T for block in blocks], axis=1)


def _exact(people: _People) -> Distances:
    dataset = people.dataset
    points = people.points(dataset.clients, people.rows)
    each = np.split(points, np.cumsum(people.sizes)[:-1])
    weights = None if len(set(people.sizes.tolist())) == 1 else people.weights
    to_mean = np.array([wasserstein(own, points, to=weights) for own in each])
    if dataset.server is None or people.own is None:
        return Distances(to_mean, None, None)
    server = people.points(dataset.server, people.own)
    return Distances(
        to_mean, wasserstein(server, points, to=weights), np.array([wasserstein(server, own) for own in each])
    )


def _sliced(people: _People, projections: int, seed: int) -> Distances:
    found = [np.concatenate(_on_line(people, *line)) for line in _lines(people, projections, seed)]
    mean, count = np.mean(found, axis=0), len(people.sizes)
    if people.own is None:
        return Distances(mean, None, None, projections)
    return Distances(mean[:count], float(mean[-1]), mean[count:-1], projections)


def _lines(people: _People, projections: int, seed: int) -> Iterator[tuple[Numbers, Numbers | None]]:
    """Clients' and the server's examples along each direction in turn; as many at once as fit in a block."""
    dataset = people.dataset
    lines = directions(people.points(dataset.clients, people.rows[:1]).shape[1], projections, seed)
    at_once = max(1, PROJECTED_BYTES // (8 * len(people.rows)))
    for begin in range(0, projections, at_once):
        some = lines[begin : begin + at_once]
        clients = people.projected(dataset.clients, people.rows, some)
        own = [None] * len(some)
        if dataset.server is not None and people.own is not None:
            own = list(people.projected(dataset.server, people.own, some))
        yield from zip(clients, own, strict=True)


def _on_line(people: _People, clients: Numbers, server: Numbers | None) -> list[Numbers]:
    """Distances on one line: from clients to their mean, from clients to the server, from the server to the mean."""
    mean = people.weights / len(people.sizes)
    to_mean = line_distances(clients, people.weights, people.sizes, clients, mean)
    if server is None:
        return [to_mean]
    own = np.full(len(server), 1 / len(server))
    return [
        to_mean,
        line_distances(clients, people.weights, people.sizes, server, own),
        line_distances(server, own, np.array([len(server)]), clients, mean),
    ]
