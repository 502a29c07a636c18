"""Everything an engine needs to know about a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import CohortUpdate, Method, Params, Routine, ServerState, Tree
from fedtailor.data.batching import count_steps, get_client_sizes
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.client_state import ClientStateStore
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.scoring import select_offered
from fedtailor.errors import InputError, require
from fedtailor.ops.transfer import to_device
from fedtailor.prng.streams import Stream


@dataclass(frozen=True)
class EngineContext:
    """Everything an engine needs to know: the method, the task, the data, the seed, the device, the clients' memory."""

    method: Method
    task: Task
    data: FederatedDataset
    seed: int
    device: torch.device
    client_states: ClientStateStore

    def __post_init__(self) -> None:
        _check_splits(self.method, self.data)

    def init_server_state(self, params: Params | None = None) -> ServerState:
        """The state before the first round, from the task's parameters if no others are given."""
        params = trees.to(self.task.params if params is None else params, self.device)
        round_idx = torch.zeros((), dtype=torch.int64, device=self.device)
        return ServerState(
            params,
            round_idx,
            prng.key(self.seed, Stream.SERVER).to(self.device),
            self.method.init(params),
        )

    def make_client_dataset(self) -> DeviceDataset:
        """The clients' examples on the device."""
        return DeviceDataset(
            self.data.clients, self.data.example_spec, self.task.dtype, self.device
        )

    def make_server_dataset(self) -> DeviceDataset | None:
        """The server's examples on the device, if it has any."""
        return (
            DeviceDataset(self.data.server, self.data.example_spec, self.task.dtype, self.device)
            if self.data.server
            else None
        )

    def derive_keys(
        self, purpose: Stream, round_idx: int, client_ids: Sequence[int] | np.ndarray
    ) -> Tensor:
        """A key for each holder, for this purpose in this round."""
        base = prng.key(self.seed, purpose, round_idx).numpy()
        return torch.from_numpy(prng.fold(base[None], np.asarray(client_ids, dtype=np.int64)))

    def compute_weights(self, client_ids: np.ndarray) -> Tensor:
        """How much each client counts in the mean."""
        split = self.method.weight_by
        sizes = (
            np.ones(len(client_ids))
            if split is None
            else get_client_sizes(self.data.clients.splits[split], client_ids)
        )
        return to_device(torch.as_tensor(sizes, dtype=self.task.dtype), self.device)

    def count_steps(self, client_ids: np.ndarray) -> np.ndarray:
        """How many steps each client takes in a round."""
        counts = [
            count_steps(phase.plan, self.data.clients, client_ids)
            for phase in self.method.client.phases
        ]
        return sum(counts, np.zeros(len(client_ids), dtype=np.int64))

    def select_offered_clients(self) -> np.ndarray:
        """The clients whose memories a newcomer may try."""
        return select_offered(
            self.client_states, self.data.groups["train"], self.method.num_offered_states, self.seed
        )

    def make_cohort_update(self, update: Tree, cohort: np.ndarray) -> CohortUpdate:
        """Return what the server gets of a cohort: the aggregated update and the numbers of clients."""
        num_clients = len(self.data.groups["train"])
        return CohortUpdate(update, self.make_scalar(len(cohort)), self.make_scalar(num_clients))

    def make_scalar(self, value: int) -> Tensor:
        """Return a number as a tensor of the dtype of the task, on the device."""
        return torch.full((), float(value), dtype=self.task.dtype, device=self.device)


def resolve_device(name: str) -> torch.device:
    """The device of that name, or a sentence saying why it cannot be had."""
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    kind = name.split(":")[0]
    require(kind in available, f"Engine: device must be cpu, cuda or mps, got {name!r}.")
    require(
        available[kind],
        f"Engine: device {name!r} was asked for, but PyTorch sees none here; use device=cpu.",
    )
    return torch.device(name)


def allow_tf32(allowed: bool) -> None:
    """Whether a GPU may round the factors of products and convolutions to 10 bits, which is much faster."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def _check_splits(method: Method, data: FederatedDataset) -> None:
    routines = {
        "server": (method.server, method.correct_update),
        "client": (method.client, method.personalize),
    }
    for routine in filter(None, routines["server"]):
        if data.server is None and any(phase.plan.specs for phase in routine.phases):
            raise InputError(
                f"{method.name}: the server's work needs data, but data set '{data.name}' gives the server none; "
                "hold some out for it (server=0.05, say) or choose a method without server data."
            )
    for routine in filter(None, routines["client"]):
        for spec in (spec for phase in routine.phases for spec in phase.plan.specs):
            require(
                spec.split in data.clients.splits,
                f"{method.name}: clients need a split '{spec.split}', but data set '{data.name}' "
                f"has only {', '.join(data.clients.splits)}.",
            )


def limit_to_one_step(method: Method) -> Method:
    """The same method whose clients take one step of everything, to see whether it works."""
    return method._replace(
        client=_limit_routine_to_one_step(method.client),
        personalize=_limit_routine_to_one_step(method.personalize),
    )


def _limit_routine_to_one_step(routine: Routine) -> Routine:
    phases = (
        phase._replace(plan=phase.plan._replace(epochs=None, steps=1)) for phase in routine.phases
    )
    return routine._replace(phases=tuple(phases))
