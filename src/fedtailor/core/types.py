"""The contract between methods and engines: what a method is made of, and what travels in a round.

Every personalized federated method is the same round with different pieces:

    broadcast -> each client: init, step, step, ..., finalize -> upload its update (its state stays)
              -> server: correct each update -> aggregate -> update the model
              -> any client, participating or unseen: personalize, then predict

A `Method` is a record of pure functions that say what the pieces are. Where they run, in what order and how many
at a time, is the engine's business.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

Params = dict[str, Tensor]
"""A model's trainable tensors by name."""

Tree = Any
"""Nested dicts, tuples and NamedTuples with tensors as leaves."""


class Batch(NamedTuple):
    """Examples that one step sees together."""

    x: Tensor
    y: Tensor
    mask: Tensor  # 1 for an example, 0 for padding
    key: Tensor  # for whatever the step draws: dropout, latent noise


Loss = Callable[[Params, Batch], Tensor]
"""The mean loss of a model over the real examples of a batch."""


class BatchSpec(NamedTuple):
    """Name the split that one batch of a step is drawn from, and its size; None is the whole split."""

    split: str
    size: int | None


class BatchPlan(NamedTuple):
    """Say which batches the steps of a phase see: `epochs` passes over the split of the last spec, or `steps` steps.

    The specs are independent streams. The last one sets the epoch and is the stream that FedAvg would see, so that
    methods which reduce to FedAvg do so on equal batches.
    """

    specs: tuple[BatchSpec, ...]
    epochs: int | None = None
    steps: int | None = None


class Phase(NamedTuple):
    """Repeat a step: `step(shared_input, carry, batches) -> carry`."""

    step: Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
    plan: BatchPlan


class Routine(NamedTuple):
    """Work on data, at a client or at the server.

    init      (shared_input, client_input) -> carry
    phases    steps from carry to carry, one phase after another
    finalize  (shared_input, carry) -> result
    """

    init: Callable[[Tree, Tree], Tree]
    phases: tuple[Phase, ...]
    finalize: Callable[[Tree, Tree], Any]


class ClientResult(NamedTuple):
    """What a client's routine ends with."""

    update: Tree  # travels to the server: a difference, shaped like the parts of the broadcast that it changes
    state: Tree  # stays with the client


class ServerState(NamedTuple):
    """What the server keeps from round to round. The engine owns `round` and `key`."""

    params: Params
    round: Tensor
    key: Tensor
    aux: Tree


class CohortUpdate(NamedTuple):
    """What the server has when every update of the cohort has arrived."""

    update: Tree
    cohort_size: Tensor  # clients that took part in the round
    num_clients: Tensor  # clients that may be drawn


MethodTag = Literal["adapts-head", "personal-layers", "server-learning"]
"""A property of a method that wrappers ask for: it adapts its head to every client, it has personal layers, or
its server learns from data of its own."""


class Method(NamedTuple):
    """A federated method with its hyper-parameters bound. It pickles: top-level functions and `partial`, no lambdas.

    With `correct_update` and `aggregate` both None the server needs only the mean update: such a method streams a
    cohort of any size and can run under secure aggregation.
    """

    name: str
    init: Callable[[Params], Tree]
    """Make `ServerState.aux`."""
    broadcast: Callable[[ServerState], Tree]
    """Choose what is sent to clients."""
    init_client_state: Callable[[ServerState], Tree]
    """Make the state of a client that has not taken part yet."""
    client: Routine
    """(broadcast, client state) -> ClientResult."""
    server: Routine
    """(server state, CohortUpdate) -> server state."""
    personalize: Routine
    """(broadcast, client state) -> Params; without its phases: the model before personalizing."""
    correct_update: Routine | None = None
    """(server state, update) -> update: the server's work on one update, on the same batches for all."""
    aggregate: Callable[[Tree, Tensor], Tree] | None = None
    """(stacked updates, weights) -> update; None is the weighted mean."""
    weight_by: str | None = None
    """The split whose size weighs a client; None weighs all alike."""
    data_view: Literal["clients", "pooled", "shared"] = "clients"
    """Clients with their own data, all data as one client's, or the server's examples added to every client's."""
    num_offered_states: int = 0
    """Stored client states that an unseen client may try; 0 keeps them private."""
    tags: frozenset[MethodTag] = frozenset()
    """What a wrapper must know before it goes around the method."""
