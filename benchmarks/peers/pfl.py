"""pfl-research: its SimulatedBackend and FederatedAveraging, in one process."""

from importlib.metadata import version
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
from pfl.hyperparam.base import NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch import Tensor, nn

from peers.nets import loaded, wait, weights_of
from peers.protocol import Weights, Work, given, serve


class Classifier(nn.Module):
    """A network with a loss, as pfl wants it; it counts how often a loss was asked for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.steps = net, 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        self.steps += 1
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing is scored."""
        return {}


class Pfl:
    """A round is a run up to the next number of rounds, which goes on where the last one ended."""

    def __init__(self, work: Work, device: str) -> None:
        self._work, self._device = work, device
        self._model = Classifier(loaded(work.net, work.weights, device))
        central = torch.optim.SGD(self._model.parameters(), 1.0)
        self._pfl = PyTorchModel(self._model, torch.optim.SGD, central)
        x, y = torch.from_numpy(work.pixels).to(device), torch.from_numpy(work.labels).to(device)
        self._columns, self._orders = (x, y), torch.from_numpy(work.orders).to(device)
        turns = (
            (number, place)
            for number, cohort in enumerate(work.cohorts)
            for place in range(len(cohort))
        )
        people = FederatedDataset(self._dataset, turns.__next__)
        self._backend, self._algorithm = SimulatedBackend(people, people), FederatedAveraging()
        self._hyper = NNTrainHyperParams(
            local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=work.lr
        )

    def _dataset(self, turn: tuple[int, int]) -> Any:
        client, order = int(self._work.cohorts[turn]), self._orders[turn]
        return PyTorchTensorDataset(tuple(column[client][order] for column in self._columns))

    def round(self, number: int) -> None:
        """One central iteration, without scoring, which pfl does in the first one only: its
        warm-up.
        """
        clients = self._work.cohorts.shape[1]
        rounds = NNAlgorithmParams(
            number + 1, evaluation_frequency=1 << 30, train_cohort_size=clients, val_cohort_size=0
        )
        options = {
            "model": self._pfl,
            "model_train_params": self._hyper,
            "send_metrics_to_platform": False,
        }
        self._algorithm.run(rounds, self._backend, **options)

    @property
    def steps(self) -> int:
        """How many losses were asked for."""
        return self._model.steps

    def settle(self) -> None:
        """Waits for the device."""
        wait(self._device)

    def weights(self) -> Weights:
        """The global model."""
        return weights_of(self._model.net)


if __name__ == "__main__":
    work, end, device = given()
    serve(Pfl(work, device), end, pfl=version("pfl"), torch=torch.__version__)
