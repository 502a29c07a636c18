"""FedJAX: its federated averaging with the jit backend, and its own network for EMNIST without
dropout.

FedJAX 0.0.17 still says `jax.tree_map`, which JAX has since renamed.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np

from peers.protocol import Weights, Work, given, serve

jax.tree_map = jax.tree.map

import fedjax  # type: ignore[import-not-found]  # noqa: E402
import haiku as hk  # type: ignore[import-not-found]  # noqa: E402
from fedjax.algorithms import fed_avg  # type: ignore[import-not-found]  # noqa: E402

SIDE, CHANNELS = 12, 64  # of what the dense layers of the cnn are given


def cnn(batch: Mapping[str, Any]) -> Any:
    """As fedjax.models.emnist has it: channels last."""
    features = (
        hk.Conv2D(32, 3, padding="VALID"),
        jax.nn.relu,
        hk.Conv2D(64, 3, padding="VALID"),
        jax.nn.relu,
    )
    dense = (hk.Flatten(), hk.Linear(128), jax.nn.relu, hk.Linear(62))
    return hk.Sequential([*features, hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID"), *dense])(
        batch["x"]
    )


def mlp(batch: Mapping[str, Any]) -> Any:
    """784-80-60-10 with ELU."""
    return hk.Sequential(
        [hk.Flatten(), hk.Linear(80), jax.nn.elu, hk.Linear(60), jax.nn.elu, hk.Linear(10)]
    )(batch["x"])


NETS = {"cnn": cnn, "mlp": mlp}


def from_torch(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A weight as JAX lays it out: what comes in before what goes out, and channels last."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if value.ndim == 2 and value.shape[1] == CHANNELS * SIDE * SIDE:
        value = (
            value.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1).reshape(len(value), -1)
        )
    return value.T


def to_torch(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same back."""
    if value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    value = value.T
    if value.ndim == 2 and value.shape[1] == CHANNELS * SIDE * SIDE:
        value = (
            value.reshape(-1, SIDE, SIDE, CHANNELS).transpose(0, 3, 1, 2).reshape(len(value), -1)
        )
    return value


class FedJax:
    """Rounds of federated averaging. Orders of examples are given, so FedJAX's own shuffling is
    left out.
    """

    def __init__(self, work: Work) -> None:
        self.steps, self._work = 0, work
        self._x = np.moveaxis(work.pixels, 2, -1)
        net = hk.transform(NETS[work.net])
        first = net.init(jax.random.PRNGKey(0), {"x": self._x[0, : work.batch]})
        leaves = iter(from_torch(value) for value in work.weights.values())
        params = {
            layer: {leaf: jnp.asarray(next(leaves)) for leaf in ("w", "b")} for layer in first
        }
        sgd, server = fedjax.optimizers.sgd(work.lr), fedjax.optimizers.sgd(1.0)
        batches = fedjax.ShuffleRepeatBatchHParams(
            batch_size=work.batch, num_epochs=1, skip_shuffle=True
        )
        gradient = fedjax.grad(
            lambda params, batch, key: losses(net.apply(params, None, batch), batch["y"])
        )
        with fedjax.for_each_client_backend("jit"):
            self._algorithm = fed_avg.federated_averaging(gradient, sgd, server, batches)
        self._state = self._algorithm.init(params)
        self._keys = list(jax.random.split(jax.random.PRNGKey(1), work.cohorts.shape[1]))
        self._counted = fedjax.BatchPreprocessor([self._count])

    def _count(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        self.steps += 1
        return batch

    def round(self, number: int) -> None:
        """One round."""
        clients = [
            (place, self._dataset(number, place), key) for place, key in enumerate(self._keys)
        ]
        self._state, _ = self._algorithm.apply(self._state, clients)

    def _dataset(self, number: int, place: int) -> Any:
        client, order = self._work.cohorts[number, place], self._work.orders[number, place]
        own = {"x": self._x[client][order], "y": self._work.labels[client][order]}
        return fedjax.ClientDataset(own, self._counted)

    def settle(self) -> None:
        """Waits for the device."""
        jax.block_until_ready(self._state.params)

    def weights(self) -> Weights:
        """The global model."""
        leaves = [
            to_torch(np.asarray(layer[leaf]))
            for layer in self._state.params.values()
            for leaf in ("w", "b")
        ]
        return dict(zip(self._work.weights, leaves, strict=True))


def losses(outputs: Any, labels: Any) -> Any:
    """Everybody's cross-entropy."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], axis=1)
    return -chosen[:, 0]


if __name__ == "__main__":
    work, end, _ = given()
    serve(FedJax(work), end, fedjax=version("fedjax"), jax=jax.__version__)
