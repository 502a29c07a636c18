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

from fedtailor.data.arguments import require_int
from fedtailor.data.builtin.arrays import from_arrays
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.rng import make_rng
from fedtailor.errors import require
from fedtailor.prng.streams import DataStream


class SyntheticParams(NamedTuple):
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
    unseen_clients: float = 0.2,
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
    params = SyntheticParams(alpha, beta, features, classes, iid, seed)
    x, y, owners = _concatenate_clients(
        [
            _make_client(params, (DataStream.SYNTHETIC_CLIENT, k), max_size=most)
            for k in range(clients)
        ]
    )
    parts = [size for size in _split_evenly(server, server_clients) if size]
    server_examples = (
        _concatenate_clients(
            [
                _make_client(params, (DataStream.SYNTHETIC_SERVER_CLIENT, k), size=size)
                for k, size in enumerate(parts)
            ]
        )[:2]
        if parts
        else None
    )
    return from_arrays(
        x,
        y,
        owners,
        name="synthetic",
        classes=classes,
        test_share=test_share,
        validation_clients=validation_clients,
        unseen_clients=unseen_clients,
        adapt=adapt,
        support=support,
        server=server_examples,
        seed=seed,
    )


def _check_options(
    alpha: float,
    beta: float,
    clients: int,
    features: int,
    classes: int,
    most: int,
    server: int,
    server_clients: int,
) -> None:
    for what, value in (("alpha", alpha), ("beta", beta)):
        require(
            0 <= value < np.inf, f"synthetic: {what} must be at least 0 and finite, got {value}."
        )
    floors = (
        ("clients", clients, 1),
        ("features", features, 2),
        ("classes", classes, 2),
        ("most", most, 1),
    )
    for what, count, least in (
        *floors,
        ("server", server, 0),
        ("server_clients", server_clients, 1),
    ):
        require_int("synthetic", what, count, least)


def _make_client(
    params: SyntheticParams, stream: tuple[int, int], *, size: int | None = None, max_size: int = 0
) -> Examples:
    """The examples of one person: so many, or as many as the person has but at most `most`."""
    rng = make_rng(params.seed, *stream)
    n = min(50 + int(rng.lognormal(4, 2)), max_size) if size is None else size
    center, W, b = _draw_shared_model(params) if params.iid else _draw_client_model(params, rng)
    spread = np.arange(1, params.features + 1) ** -0.6  # the square root of Sigma
    x = (center + spread * rng.standard_normal((n, params.features))).astype(np.float32)
    return x, np.argmax(x @ W + b, axis=1)


def _draw_client_model(
    params: SyntheticParams, rng: np.random.Generator
) -> tuple[NDArray[np.float64], ...]:
    u, B = rng.normal(0, params.alpha), rng.normal(0, params.beta)
    center = rng.normal(B, 1, params.features)
    return (
        center,
        rng.normal(u, 1, (params.features, params.classes)),
        rng.normal(u, 1, params.classes),
    )


def _draw_shared_model(params: SyntheticParams) -> tuple[NDArray[np.float64], ...]:
    rng = make_rng(params.seed, DataStream.SYNTHETIC_SHARED)
    W, b = (
        rng.standard_normal((params.features, params.classes)),
        rng.standard_normal(params.classes),
    )
    return np.zeros(params.features), W, b


def _split_evenly(total: int, parts: int) -> list[int]:
    """Sizes that add up to the total and differ by one at most."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _concatenate_clients(
    clients: list[Examples],
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Everybody's examples below each other, and whose each is."""
    owners = np.repeat(np.arange(len(clients)), [len(y) for _, y in clients])
    return np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients]), owners
