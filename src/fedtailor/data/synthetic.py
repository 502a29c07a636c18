"""Synthetic(alpha, beta): linear classifiers and inputs that differ from client to client by as much as one likes.

Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), section 5.1. For client k:

    u_k ~ N(0, alpha),   W_k[i, j] ~ N(u_k, 1),   b_k[j] ~ N(u_k, 1)      models: alpha
    B_k ~ N(0, beta),    v_k[i] ~ N(B_k, 1),      x ~ N(v_k, Sigma)       inputs: beta
    Sigma diagonal, Sigma[i, i] = i ** -1.2,      y = argmax softmax(x W_k + b_k)

The paper leaves open whether N(0, alpha) names a variance or a standard deviation. Its authors' code, which others have
copied, calls `normal(0, alpha)`: a standard deviation. So do we.

One thing is worth knowing: u_k adds the same to the scores of all classes, so that alpha changes no label. Clients'
models differ by the unit variance of W_k and b_k, whatever alpha; only `iid` makes them the same.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import from_arrays, generator, require_whole
from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import require

CLIENT, EXTRA, SHARED = 20, 21, 22


class World(NamedTuple):
    """What all clients of a dataset have in common."""

    alpha: float
    beta: float
    features: int
    classes: int
    iid: bool
    seed: int


Examples = tuple[NDArray[np.float32], NDArray[np.int64]]


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    clients: int = 30,
    features: int = 60,
    classes: int = 10,
    iid: bool = False,
    most: int = 1000,
    server: int = 100,
    server_clients: int = 10,
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    new_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """Clients with 50 + lognormal(4, 2) examples each, at most `most`; alpha and beta are standard deviations.

    The server's examples come in equal parts from `server_clients` further clients who are nobody else. With `iid` all
    clients share one W, b ~ N(0, 1) and one input distribution N(0, Sigma), whatever alpha and beta. A client's
    examples depend on the seed and its number alone, so more clients leave the first ones as they were.
    """
    _check_options(alpha, beta, clients, features, classes, most, server, server_clients)
    world = World(alpha, beta, features, classes, iid, seed)
    x, y, whose = _gather([_client(world, (CLIENT, k), most=most) for k in range(clients)])
    parts = [size for size in _even(server, server_clients) if size]
    own = _gather([_client(world, (EXTRA, k), size=size) for k, size in enumerate(parts)])[:2] if parts else None
    return from_arrays(
        x,
        y,
        whose,
        name="synthetic",
        classes=classes,
        test_share=test_share,
        validation_clients=validation_clients,
        new_clients=new_clients,
        adapt=adapt,
        support=support,
        server=own,
        seed=seed,
    )


def _check_options(
    alpha: float, beta: float, clients: int, features: int, classes: int, most: int, server: int, server_clients: int
) -> None:
    for what, value in (("alpha", alpha), ("beta", beta)):
        require(0 <= value < np.inf, f"synthetic: {what} must be at least 0 and finite, got {value}.")
    floors = (("clients", clients, 1), ("features", features, 2), ("classes", classes, 2), ("most", most, 1))
    for what, count, least in (*floors, ("server", server, 0), ("server_clients", server_clients, 1)):
        require_whole("synthetic", what, count, least)


def _client(world: World, person: tuple[int, int], *, size: int | None = None, most: int = 0) -> Examples:
    """The examples of one person: so many, or as many as the person has but at most `most`."""
    draws = generator(world.seed, *person)
    n = min(50 + int(draws.lognormal(4, 2)), most) if size is None else size
    centre, W, b = _iid_model(world) if world.iid else _own_model(world, draws)
    spread = np.arange(1, world.features + 1) ** -0.6  # the square root of Sigma
    x = (centre + spread * draws.standard_normal((n, world.features))).astype(np.float32)
    return x, np.argmax(x @ W + b, axis=1)


def _own_model(world: World, draws: np.random.Generator) -> tuple[NDArray[np.float64], ...]:
    u, B = draws.normal(0, world.alpha), draws.normal(0, world.beta)
    centre = draws.normal(B, 1, world.features)
    return centre, draws.normal(u, 1, (world.features, world.classes)), draws.normal(u, 1, world.classes)


def _iid_model(world: World) -> tuple[NDArray[np.float64], ...]:
    draws = generator(world.seed, SHARED)
    W, b = draws.standard_normal((world.features, world.classes)), draws.standard_normal(world.classes)
    return np.zeros(world.features), W, b


def _even(total: int, parts: int) -> list[int]:
    """Sizes that add up to the total and differ by one at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _gather(people: list[Examples]) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Everybody's examples below each other, and whose each is."""
    whose = np.repeat(np.arange(len(people)), [len(y) for _, y in people])
    return np.concatenate([x for x, _ in people]), np.concatenate([y for _, y in people]), whose
