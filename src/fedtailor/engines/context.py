"""A run as engines see it: method, task, data, seed, device and client states."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import (
    BatchSpec,
    CohortUpdate,
    Method,
    Params,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.data.batching import count_steps, get_client_sizes
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.offered_states import select_offered
from fedtailor.errors import InputError, require
from fedtailor.ops.transfer import to_device
from fedtailor.prng.streams import Stream


@dataclass(frozen=True)
class EngineContext:
    """A run as engines see it, and values that derive from it.

    Constructing it raises an InputError if the method draws batches from a split that the data do
    not have.
    """

    method: Method
    task: Task
    data: FederatedDataset
    seed: int
    device: torch.device
    client_states: ClientStateStore

    def __post_init__(self) -> None:
        _check_server_data(self.method, self.data)
        _check_client_splits(self.method, self.data)

    def init_server_state(self, params: Params | None = None) -> ServerState:
        """Return the server state before the first round.

        Args:
            params: Initial model; None is the task's.
        """
        if params is None:
            params = self.task.params
        return init_server_state(self.method, params, self.seed, self.device)

    def make_client_dataset(self) -> DeviceDataset:
        """Return the clients' examples on the device."""
        return DeviceDataset(
            self.data.clients, self.data.example_spec, self.task.dtype, self.device
        )

    def make_server_dataset(self) -> DeviceDataset | None:
        """Return the server's examples on the device; None if it has none."""
        if self.data.server is None:
            return None
        return DeviceDataset(self.data.server, self.data.example_spec, self.task.dtype, self.device)

    def derive_keys(
        self, purpose: Stream, round_idx: int, client_ids: Sequence[int] | np.ndarray
    ) -> Tensor:
        """Return a random key for each client, [clients].

        Args:
            purpose: Stream that the keys belong to.
            round_idx: Index of the round; 0 outside of rounds.
            client_ids: Indices of the clients; the server is 0 in a stream of its own.
        """
        round_key = prng.key(self.seed, purpose, round_idx).numpy()
        keys = prng.fold(round_key[None], np.asarray(client_ids, dtype=np.int64))
        return torch.from_numpy(keys)

    def compute_weights(self, client_ids: np.ndarray) -> Tensor:
        """Return the weight of each client's update in the mean, [clients]; not normalized."""
        split = self.method.weight_by
        if split is None:
            weights: np.ndarray = np.ones(len(client_ids))
        else:
            weights = get_client_sizes(self.data.clients.splits[split], client_ids)
        return to_device(torch.as_tensor(weights, dtype=self.task.dtype), self.device)

    def count_steps(self, client_ids: np.ndarray) -> np.ndarray:
        """Return the number of steps of each client in a round, all phases together, [clients]."""
        num_steps = np.zeros(len(client_ids), dtype=np.int64)
        for phase in self.method.client.phases:
            num_steps = num_steps + count_steps(phase.plan, self.data.clients, client_ids)
        return num_steps

    def select_offered_clients(self) -> np.ndarray:
        """Return the training clients whose states an unseen client may try."""
        return select_offered(
            self.client_states, self.data.groups["train"], self.method.num_offered_states, self.seed
        )

    def make_cohort_update(self, update: Tree, cohort: np.ndarray) -> CohortUpdate:
        """Return the aggregated update of a cohort with the weights of it and of all clients."""
        cohort_weight = self._sum_weights(cohort)
        total_weight = self._sum_weights(self.data.groups["train"])
        return CohortUpdate(update, self.make_scalar(cohort_weight), self.make_scalar(total_weight))

    def _sum_weights(self, client_ids: np.ndarray) -> int:
        """Return the weight of some clients together."""
        split = self.method.weight_by
        if split is None:
            return len(client_ids)
        return int(get_client_sizes(self.data.clients.splits[split], client_ids).sum())

    def make_scalar(self, value: int) -> Tensor:
        """Return a number as a tensor of the task's dtype, on the device."""
        return torch.full((), float(value), dtype=self.task.dtype, device=self.device)


def init_server_state(
    method: Method, params: Params, seed: int, device: torch.device
) -> ServerState:
    """Return the server state of a method before the first round.

    Args:
        method: Its `init` makes what the server keeps besides the model.
        params: Initial model.
        seed: Seed of the run.
        device: Device of the state.
    """
    params = trees.to(params, device)
    return ServerState(
        params=params,
        round=torch.zeros((), dtype=torch.int64, device=device),
        key=prng.key(seed, Stream.SERVER).to(device),
        aux=method.init(params),
    )


def resolve_device(name: str) -> torch.device:
    """Return a device by its name, such as "cuda:1"; raise an InputError if PyTorch sees none."""
    is_available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    kind = name.split(":")[0]
    require(kind in is_available, f"Engine: device must be cpu, cuda or mps, got {name!r}.")
    require(
        is_available[kind],
        f"Engine: device {name!r} was asked for, but PyTorch sees none here; use device=cpu.",
    )
    index = name.partition(":")[2]
    num_devices = torch.cuda.device_count() if kind == "cuda" else 0
    is_index = index.isdecimal() and int(index) < num_devices
    require(
        name == kind or is_index,
        f"Engine: device {name!r} was asked for, but PyTorch sees no device of that number here; "
        f"use device={kind}.",
    )
    return torch.device(name)


def allow_tf32(is_allowed: bool) -> None:
    """Set whether GPUs may round the factors of matrix products and convolutions to TF32.

    TF32 keeps 10 bits of the mantissa and is much faster than float32.
    """
    torch.backends.cuda.matmul.allow_tf32 = is_allowed
    torch.backends.cudnn.allow_tf32 = is_allowed


def limit_to_one_step(method: Method) -> Method:
    """Return the method with one step in each phase of a client, to try out whether it runs."""
    return method._replace(
        client=_limit_routine_to_one_step(method.client),
        personalize=_limit_routine_to_one_step(method.personalize),
    )


def _limit_routine_to_one_step(routine: Routine) -> Routine:
    phases = []
    for phase in routine.phases:
        plan = phase.plan._replace(epochs=None, steps=1)
        phases.append(phase._replace(plan=plan))
    return routine._replace(phases=tuple(phases))


def _check_server_data(method: Method, data: FederatedDataset) -> None:
    """Raise an InputError if the server's routines draw batches but the server has no data."""
    if data.server is not None:
        return
    for routine in (method.server, method.correct_update):
        if routine is not None and _list_batch_specs(routine):
            raise InputError(
                f"{method.name}: the server's work needs data, but data set '{data.name}' gives "
                "the server none; hold some out for it (server=0.05, say) or choose a method "
                "without server data."
            )


def _check_client_splits(method: Method, data: FederatedDataset) -> None:
    """Raise an InputError if the clients' routines draw batches from a missing split."""
    splits = data.clients.splits
    for routine in (method.client, method.personalize):
        for batch_spec in _list_batch_specs(routine):
            require(
                batch_spec.split in splits,
                f"{method.name}: clients need a split '{batch_spec.split}', but data set "
                f"'{data.name}' has only {', '.join(splits)}.",
            )


def _list_batch_specs(routine: Routine) -> list[BatchSpec]:
    return [batch_spec for phase in routine.phases for batch_spec in phase.plan.specs]
