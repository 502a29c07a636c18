"""Synthetic(alpha, beta): linear classifiers and inputs that differ between clients.

Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), section 5.1. For client k:

    u_k ~ N(0, alpha),   W_k[i, j] ~ N(u_k, 1),   b_k[j] ~ N(u_k, 1)      models: alpha
    B_k ~ N(0, beta),    v_k[i] ~ N(B_k, 1),      x ~ N(v_k, Sigma)       inputs: beta
    Sigma diagonal, Sigma[i, i] = i ** -1.2,      y = argmax softmax(x W_k + b_k)

The paper leaves open whether N(0, alpha) names a variance or a standard deviation. Its authors'
code, which others have copied, calls `normal(0, alpha)`: a standard deviation. So do we.

Note that u_k adds the same to the scores of all classes, so that alpha changes no label. Clients'
models differ by the unit variance of W_k and b_k, whatever alpha; only `iid` makes them the same.
"""

from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arguments import require_bool, require_int
from fedtailor.data.builtin.arrays import SplitOptions, from_arrays
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.rng import make_rng
from fedtailor.errors import is_number, require
from fedtailor.prng.streams import DataStream
from fedtailor.storage.memory import require_memory

FloatArray = NDArray[np.float64]

MIN_EXAMPLES = 50
"""Least number of examples of a client, unless `most` is less."""

MAX_DEVIATION = 1e12
"""Largest `alpha` and `beta`, with which x is far from overflowing."""


class SyntheticParams(NamedTuple):
    """Parameters of the distribution that clients are drawn from."""

    alpha: float
    beta: float
    features: int
    classes: int
    iid: bool
    seed: int


class LinearModel(NamedTuple):
    """Distribution of a client's examples: the mean of x, and the classifier that labels them."""

    center: FloatArray  # v_k, [features]
    W: FloatArray  # [features, classes]
    b: FloatArray  # [classes]


class Examples(NamedTuple):
    """Examples of one client."""

    x: NDArray[np.float32]  # [examples, features]
    y: NDArray[np.int64]  # [examples]


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
    seed: int = 0,
    **split_options: Unpack[SplitOptions],
) -> FederatedDataset:
    """Generate Synthetic(alpha, beta): clients with linear models and inputs of their own.

    Each client has 50 + lognormal(4, 2) examples. They depend on the seed and the client's number
    alone, so that with more clients the first ones stay the same.

    Args:
        alpha: Standard deviation of the means u_k of the clients' models.
        beta: Standard deviation of the means B_k of the clients' inputs.
        clients: Number of clients.
        features: Length of x, at least 2.
        classes: Number of classes, at least 2.
        iid: Whether all clients share one W, b ~ N(0, 1) and one input distribution N(0, Sigma),
            whatever alpha and beta.
        most: Maximum number of examples of a client.
        server: Number of the server's examples.
        server_clients: Number of further clients that the server's examples come from, in equal
            parts; they are no clients of the dataset.
        seed: Seed of everything random.
        split_options: test_share, validation_clients, unseen_clients, adapt and support, as for
            `from_arrays`.
    """
    for option, deviation in (("alpha", alpha), ("beta", beta)):
        require(
            is_number(deviation) and 0 <= deviation <= MAX_DEVIATION,
            f"synthetic: {option} must be at least 0 and at most {MAX_DEVIATION:g}, got "
            f"{deviation!r}.",
        )
    require_bool("synthetic", "iid", iid)
    require_int("synthetic", "clients", clients, 1)
    require_int("synthetic", "features", features, 2)
    require_int("synthetic", "classes", classes, 2)
    require_int("synthetic", "most", most, 1)
    require_int("synthetic", "server", server, 0)
    require_int("synthetic", "server_clients", server_clients, 1)
    smallest_size = min(MIN_EXAMPLES, most)
    num_values = (clients * smallest_size + server + classes) * features
    advice = "ask for fewer clients, features or classes"
    require_memory("synthetic: the data set", 4 * num_values, advice)
    params = SyntheticParams(alpha, beta, features, classes, iid, seed)
    client_examples = []
    for client in range(clients):
        rng = make_rng(seed, DataStream.SYNTHETIC_CLIENT, client)
        size = min(MIN_EXAMPLES + int(rng.lognormal(4, 2)), most)
        client_examples.append(_draw_examples(params, size, rng))
    sizes = [len(examples.y) for examples in client_examples]
    x, y = _concatenate(client_examples)
    return from_arrays(
        x,
        y,
        np.repeat(np.arange(clients), sizes),
        name="synthetic",
        classes=classes,
        server=_draw_server_examples(params, server, server_clients),
        seed=seed,
        **split_options,
    )


def _draw_server_examples(params: SyntheticParams, total: int, num_clients: int) -> Examples | None:
    """Return `total` examples in equal parts from clients that are not in the dataset."""
    if total == 0:
        return None
    client_examples = []
    for client in range(min(num_clients, total)):
        size = total // num_clients + (client < total % num_clients)
        rng = make_rng(params.seed, DataStream.SYNTHETIC_SERVER_CLIENT, client)
        client_examples.append(_draw_examples(params, size, rng))
    return _concatenate(client_examples)


def _draw_examples(params: SyntheticParams, size: int, rng: np.random.Generator) -> Examples:
    """Return `size` examples of a client, whose model `rng` draws first."""
    model = _draw_shared_model(params) if params.iid else _draw_client_model(params, rng)
    deviations = np.arange(1, params.features + 1) ** -0.6  # the square root of Sigma
    noise = rng.standard_normal((size, params.features))
    x = (model.center + deviations * noise).astype(np.float32)
    return Examples(x, np.argmax(x @ model.W + model.b, axis=1))


def _draw_client_model(params: SyntheticParams, rng: np.random.Generator) -> LinearModel:
    u = rng.normal(0, params.alpha)
    B = rng.normal(0, params.beta)
    center = rng.normal(B, 1, params.features)
    W = rng.normal(u, 1, (params.features, params.classes))
    b = rng.normal(u, 1, params.classes)
    return LinearModel(center, W, b)


def _draw_shared_model(params: SyntheticParams) -> LinearModel:
    rng = make_rng(params.seed, DataStream.SYNTHETIC_SHARED)
    W = rng.standard_normal((params.features, params.classes))
    b = rng.standard_normal(params.classes)
    return LinearModel(np.zeros(params.features), W, b)


def _concatenate(client_examples: list[Examples]) -> Examples:
    x = np.concatenate([examples.x for examples in client_examples])
    y = np.concatenate([examples.y for examples in client_examples])
    return Examples(x, y)
