"""FedAvg as it is usually written: a DataLoader, autograd and torch.optim, one client after
another.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from peers.nets import loaded, wait, weights_of
from peers.protocol import Weights, Work, given, serve


class Loop:
    """The plain loop. Data lie on the device, as the others have them."""

    def __init__(self, work: Work, device: str) -> None:
        self.steps, self._work, self._device = 0, work, device
        self._model = loaded(work.net, work.weights, device)
        self._theta = {name: value.clone() for name, value in self._model.state_dict().items()}
        x, y = torch.from_numpy(work.pixels).to(device), torch.from_numpy(work.labels).to(device)
        self._data = [TensorDataset(*own) for own in zip(x, y, strict=True)]

    def round(self, number: int) -> None:
        """Trains everybody in turn and takes the mean."""
        cohort, orders = self._work.cohorts[number].tolist(), self._work.orders[number].tolist()
        total = {name: torch.zeros_like(value) for name, value in self._theta.items()}
        for client, order in zip(cohort, orders, strict=True):
            self._train(DataLoader(self._data[client], self._work.batch, sampler=order))
            for name, value in self._model.state_dict().items():
                total[name] += value / len(cohort)
        self._theta = total

    def _train(self, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
        self._model.load_state_dict(self._theta)
        optimizer = torch.optim.SGD(self._model.parameters(), self._work.lr)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(self._model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.steps += 1

    def settle(self) -> None:
        """Waits for the device."""
        wait(self._device)

    def weights(self) -> Weights:
        """The global model."""
        self._model.load_state_dict(self._theta)
        return weights_of(self._model)


if __name__ == "__main__":
    work, end, device = given()
    serve(Loop(work, device), end, torch=torch.__version__)
