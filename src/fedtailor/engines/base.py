"""What an engine is: it trains a cohort, does the server's work, and personalises and scores clients.

Data is reached only inside an engine, because on real machines it is somewhere else. An engine knows the type `Method`
and no method by name.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedtailor import keyed, trees
from fedtailor.data.batching import Place, places, sizes_of, step_counts
from fedtailor.data.dataset import FederatedDataset, Holders, Units
from fedtailor.data.decoding import taken, targets
from fedtailor.data.store.maps import read_at_random
from fedtailor.engines.memory import Memory
from fedtailor.errors import FedtailorError, InputError, WorkError, require
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Gathered, Method, Params, Phase, Plan, State, Tree, Work

SCORE_BATCH = 256
"""Examples scored at a time."""

_SENT = 1 << 26  # bytes of a column that are sent to a device at a time


class Trained(NamedTuple):
    """What training a cohort gives: the gathered change, and what it cost."""

    gathered: Gathered
    bytes_down: int
    bytes_up: int
    steps: int  # of all clients together


class Scored(NamedTuple):
    """Per client and figure (the loss and each metric) the pair (sum, weight), before and after personalising."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]


class Engine(Protocol):
    """Where and how the functions of a method run."""

    notes: tuple[str, ...]
    """What was decided on the way here that the user should know."""

    memory: Memory

    def train(self, state: State, cohort: np.ndarray, number: int) -> Trained:
        """Sends the broadcast to the clients of a cohort, lets them work, and gathers their changes."""
        ...

    def serve(self, state: State, gathered: Gathered, number: int) -> State:
        """Does the server's work on what was gathered."""
        ...

    def score(self, state: State, who: np.ndarray, personalise: Work | None = None) -> Scored:
        """Personalises clients, old or new, on their train examples and scores them on their test examples.

        They personalise as the method does, or as another work of the same kind does.
        """
        ...


def _tensor(column: np.ndarray, device: torch.device) -> Tensor:
    """A column on the device; where it lies already if it can, even if it may not be written to: it never is.

    There may be gaps between rows, as in a view of a memory map. What is sent to another device is sent piece by piece,
    since torch would first copy a column with gaps whole.
    """
    step, whole_rows = column.strides[0], column[:1].flags.c_contiguous
    if not whole_rows or step < 0 or step % column.itemsize:  # torch knows no steps backwards or of parts of numbers
        column = np.ascontiguousarray(column)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        here = torch.from_numpy(column)
    if device.type == "cpu":
        read_at_random(column)
        return here
    there, rows = torch.empty(here.shape, dtype=here.dtype, device=device), max(1, _SENT // max(1, here[:1].nbytes))
    for start in range(0, len(here), rows):
        there[start : start + rows] = here[start : start + rows]
    return there


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device, without waiting for what the device still has to do."""
    return tensor if device.type == "cpu" else pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host where a CUDA device can fetch it by itself."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


class Site:
    """Somebody's examples as tensors on the device; batches are gathered and decoded there."""

    def __init__(self, holders: Holders, units: Units, dtype: torch.dtype, device: torch.device) -> None:
        self.holders = holders
        self.columns = _tensor(holders.x, device), _tensor(holders.y, device)
        self.decode = partial(gathered, units, dtype)
        self._device = device

    def batch(self, place: Place) -> Batch:
        """The examples at a place."""
        if self._device.type != "cpu":
            place = Place(*(leaf.to(self._device) for leaf in place))
        return self.decode(self.columns, place)


def gathered(units: Units, dtype: torch.dtype, columns: tuple[Tensor, ...], place: Place) -> Batch:
    """The examples at a place in columns, as a model takes them."""
    x, y = columns
    inputs = taken(x, place.rows, units, dtype)
    return Batch(inputs, targets(y[place.rows], dtype), place.mask.to(dtype), place.key)


@dataclass(frozen=True)
class Setting:
    """Everything an engine needs to know: the method, the task, the data, the seed, the device, the clients' memory."""

    method: Method
    task: Task
    data: FederatedDataset
    seed: int
    device: torch.device
    memory: Memory

    def __post_init__(self) -> None:
        _check_splits(self.method, self.data)

    def first_state(self, params: Params | None = None) -> State:
        """The state before the first round, from the task's parameters if no others are given."""
        params = trees.to(self.task.params if params is None else params, self.device)
        number = torch.zeros((), dtype=torch.int64, device=self.device)
        return State(params, number, keyed.key(self.seed, "server").to(self.device), self.method.init(params))

    def clients(self) -> Site:
        """The clients' examples on the device."""
        return Site(self.data.clients, self.data.units, self.task.dtype, self.device)

    def server(self) -> Site | None:
        """The server's examples on the device, if it has any."""
        return Site(self.data.server, self.data.units, self.task.dtype, self.device) if self.data.server else None

    def keys(self, purpose: str, number: int, who: Sequence[int] | np.ndarray) -> Tensor:
        """A key for each holder, for this purpose in this round."""
        base = keyed.key(self.seed, purpose, number).numpy()
        return torch.from_numpy(keyed.fold(base[None], np.asarray(who, dtype=np.int64)))

    def weights(self, who: np.ndarray) -> Tensor:
        """How much each client counts in the mean."""
        split = self.method.weigh_by
        sizes = np.ones(len(who)) if split is None else sizes_of(self.data.clients.splits[split], who)
        return sent(torch.as_tensor(sizes, dtype=self.task.dtype), self.device)

    def steps(self, who: np.ndarray) -> np.ndarray:
        """How many steps each client takes in a round."""
        counts = [step_counts(phase.plan, self.data.clients, who) for phase in self.method.client.phases]
        return sum(counts, np.zeros(len(who), dtype=np.int64))

    def offered(self) -> np.ndarray:
        """The clients whose memories a newcomer may try."""
        return offered(self.memory, self.data.groups["train"], self.method.tries, self.seed)

    def count(self, value: int) -> Tensor:
        """A number as a tensor of the task's kind."""
        return torch.full((), float(value), dtype=self.task.dtype, device=self.device)


class Collector:
    """Turns changes, as they arrive, into the one change that the server works with.

    Without a `combine` rule only the running weighted sum is kept, whatever the size of the cohort, unless all changes
    come `at_once`.
    """

    def __init__(
        self, method: Method, once: Callable[[Any], Any] = lambda function: function, at_once: bool = False
    ) -> None:
        self._combine, self._once, self._at_once = method.combine, once, at_once
        self._stacks: list[Tree] = []
        self._weights: list[Tensor] = []

    def add(self, changes: Tree, weights: Tensor) -> None:
        """Takes stacked changes with a weight for each."""
        if self._combine is None and not self._at_once:
            changes = self._once(_summed)(changes, weights)
            if self._stacks:
                changes = trees.add(self._stacks.pop(), changes)
        self._stacks.append(changes)
        self._weights.append(weights)

    def result(self) -> Tree:
        """The weighted mean of all changes, or what the combining rule makes of them."""
        weights = torch.cat(self._weights) if len(self._weights) > 1 else self._weights[0]
        if self._combine is not None:
            return self._combine(trees.concat(self._stacks), weights)
        return self._once(_mean if self._at_once else _shared_out)(self._stacks[0], weights)


def _mean(changes: Tree, weights: Tensor) -> Tree:
    return trees.weighted_sum(changes, weights / _total(weights))


def _summed(changes: Tree, weights: Tensor) -> Tree:
    return trees.apply(lambda x: x[None], trees.weighted_sum(changes, weights))


def _shared_out(summed: Tree, weights: Tensor) -> Tree:
    """The mean, from the sum and all weights."""
    total = _total(weights)
    return trees.apply(lambda x: x[0] / total.to(x.dtype), summed)


def _total(weights: Tensor) -> Tensor:
    """All weights together; if nobody counts, 1, so that nothing changes."""
    total = weights.sum()
    return torch.where(total > 0, total, torch.ones_like(total))


def alone(work: Work, given: Tree, own: Tree, site: Site | None, holder: int, key: Tensor) -> Tree:
    """Runs a work for one holder, step by step: the reference for every other way of running it."""
    carry, who = work.start(given, own), np.array([holder])
    for number, phase in enumerate(work.phases):
        for batches in batches_alone(phase.plan, site, who, keyed.fold(key, number)):
            carry = phase.step(given, carry, batches)
    return work.finish(given, carry)


def batches_alone(plan: Plan, site: Site | None, who: np.ndarray, key: Tensor) -> Iterator[tuple[Batch, ...]]:
    """What one holder sees, step by step; without data, steps without batches."""
    if site is None:
        yield from (() for _ in range(plan.steps or 0))
        return
    for placed in places(plan, site.holders, who, key[None], int(step_counts(plan, site.holders, who)[0])):
        yield tuple(site.batch(place.of(0)) for place in placed)


def scoring(task: Task, split: str = "test") -> Work:
    """The work of scoring a model: (nothing, params) -> sums and weights over the holder's examples of a split."""
    plan = Plan((Draw(split, SCORE_BATCH),), epochs=1)
    return Work(partial(_no_sums, task), (Phase(partial(_add_sums, task), plan),), _only_sums)


def offered(memory: Memory, people: np.ndarray, tries: int, seed: int) -> np.ndarray:
    """Of the people who remember something at most so many, always the same ones."""
    known: np.ndarray = people[memory.known.numpy()[people]]
    if len(known) <= tries:
        return known
    some = keyed.choice(keyed.key(seed, "offer"), len(known), tries).sort().values
    return np.asarray(known[some.numpy()])


def best_memory(method: Method, task: Task, given: Tree, memories: Tree, site: Site, holder: int, key: Tensor) -> Tree:
    """Of stacked memories the one with which the holder's model, once adapted, has the least loss on what it saw."""
    losses = []
    for place in range(len(trees.leaves(memories)[0])):
        params = alone(method.personalise, given, trees.row(memories, place), site, holder, key)
        losses.append(mean_loss(alone(scoring(task, "adapt"), (), params, site, holder, key)))
    return trees.row(memories, int(torch.stack(losses).argmin()))


def memory_of(setting: Setting, site: Site, given: Tree, fresh: Tree, client: int) -> Tree:
    """What a client remembers; a newcomer takes the best of what it is offered, or what everybody begins with."""
    tried = setting.offered() if setting.method.tries and not setting.memory.known[client] else ()
    if not len(tried):
        return trees.row(setting.memory.gather(np.array([client]), fresh), 0)
    key = setting.keys("personalise", 0, [client])[0]
    memories = setting.memory.gather(np.asarray(tried), fresh)
    return best_memory(setting.method, setting.task, given, memories, site, client, key)


def mean_loss(figures: dict[str, Tensor]) -> Tensor:
    """The mean loss that a scoring found; one that is no number is the worst."""
    total, weight = figures["loss"].unbind(-1)
    return torch.nan_to_num(total / weight.clamp(min=1), nan=torch.inf)


def _no_sums(task: Task, given: Tree, params: Params) -> tuple[Params, dict[str, Tensor]]:
    dtype, device = torch.promote_types(task.dtype, torch.float32), next(iter(params.values())).device
    names = ("loss", *(metric.name for metric in task.metrics))
    return params, {name: torch.zeros(2, dtype=dtype, device=device) for name in names}


def _add_sums(task: Task, given: Tree, carry: Tree, batches: tuple[Batch, ...]) -> Tree:
    params, sums = carry
    return params, trees.add(sums, task.sums(params, batches[0]))


def _only_sums(given: Tree, carry: Tree) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = carry[1]
    return sums


@contextmanager
def telling(stage: str, number: int, who: str) -> Iterator[None]:
    """Says at which stage, in which round and for whom something failed."""
    try:
        yield
    except FedtailorError:
        raise
    except Exception as problem:
        said = f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"
        if "out of memory" in said:  # torch goes on to tell of every process on the GPU
            said = "the device's memory is full; stack fewer clients (chunk=8, say) or have less beside it (jobs=1)."
        raise WorkError(f"{stage} failed in round {number} for {who}: {said}") from problem


def device_named(name: str) -> torch.device:
    """The device of that name, or a sentence saying why it cannot be had."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    require(kind in available, f"Engine: device must be cpu, cuda or mps, got {name!r}.")
    require(available[kind], f"Engine: device {name!r} was asked for, but PyTorch sees none here; use device=cpu.")
    return torch.device(name)


def calculate_in_tf32(allowed: bool) -> None:
    """Whether a GPU may round the factors of products and convolutions to 10 bits, which is much faster."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def _check_splits(method: Method, data: FederatedDataset) -> None:
    works = {"server": (method.server, method.correct), "client": (method.client, method.personalise)}
    for work in filter(None, works["server"]):
        if data.server is None and any(phase.plan.draws for phase in work.phases):
            raise InputError(
                f"{method.name}: the server's work needs data, but data set '{data.name}' gives the server none; "
                "hold some out for it (server=0.05, say) or choose a method without server data."
            )
    for work in filter(None, works["client"]):
        for draw in (draw for phase in work.phases for draw in phase.plan.draws):
            require(
                draw.split in data.clients.splits,
                f"{method.name}: clients need a split '{draw.split}', but data set '{data.name}' "
                f"has only {', '.join(data.clients.splits)}.",
            )


def one_step_each(method: Method) -> Method:
    """The same method whose clients take one step of everything, to see whether it works."""
    return method._replace(client=_one_step(method.client), personalise=_one_step(method.personalise))


def _one_step(work: Work) -> Work:
    phases = (phase._replace(plan=phase.plan._replace(epochs=None, steps=1)) for phase in work.phases)
    return work._replace(phases=tuple(phases))
