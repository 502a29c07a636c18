"""The contract between methods and engines: the pieces of a method, and what travels in a round.

Every personalized federated method is the same round with different pieces:

    broadcast -> each client: init, step, step, ..., finalize -> upload its update (its state stays)
              -> server: correct each update -> aggregate -> update the model
              -> any client, participating or unseen: personalize, then predict

A `Method` is a record of pure functions, one for each piece. The engine decides where they run, in
which order, and for how many clients at a time.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

Params = dict[str, Tensor]
"""A model's trainable tensors by name."""

Tree = Any
"""Nested dicts, tuples and NamedTuples with tensors as leaves."""


class Batch(NamedTuple):
    """Examples that one step sees together, padded to a common size."""

    x: Tensor
    y: Tensor
    mask: Tensor  # 1 for an example, 0 for padding
    key: Tensor  # for the random draws of the step: dropout, latent noise


Loss = Callable[[Params, Batch], Tensor]
"""The mean loss of a model over the real examples of a batch."""


class BatchSpec(NamedTuple):
    """A stream of batches: the split it is drawn from, and the batch size."""

    split: str
    size: int | None  # None: the whole split as one batch


class BatchPlan(NamedTuple):
    """The batches of a phase: one stream for each spec, for a number of epochs or of steps.

    The streams are independent. The last spec sets the length of an epoch, and its stream is the
    one that FedAvg would draw, so that methods which reduce to FedAvg do so on equal batches.
    """

    specs: tuple[BatchSpec, ...]
    epochs: int | None = None
    steps: int | None = None


class Phase(NamedTuple):
    """A step that is repeated: `step(shared_input, carry, batches) -> carry`."""

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
    """The result of a client's routine."""

    update: Tree  # travels to the server: a difference, shaped like the broadcast's changed parts
    state: Tree  # stays with the client


class ServerState(NamedTuple):
    """The server's state between rounds. The engine advances `round` and sets `key`."""

    params: Params
    round: Tensor
    key: Tensor
    aux: Tree  # what the method keeps besides the model: momentum, control variates


class CohortUpdate(NamedTuple):
    """The aggregated update of a cohort, which the server's routine starts from.

    Weights are those of `Method.weight_by`: numbers of clients if all weigh alike.
    """

    update: Tree
    cohort_weight: Tensor  # of the clients that took part in the round, together
    total_weight: Tensor  # of the clients that cohorts are drawn from, together


MethodTag = Literal["adapts-head", "no-broadcast", "personal-layers", "server-learning"]
"""A property of a method that wrappers check before they go around it.

adapts-head      the head is adapted to every client, and the server's update relies on that
no-broadcast     clients receive nothing: each trains a model of its own
personal-layers  some layers stay with each client
server-learning  the server trains on data of its own after or beside the aggregation
"""


class Method(NamedTuple):
    """A federated method with its hyper-parameters bound.

    It pickles: its functions are top-level functions, bound with `partial`, and never lambdas. With
    `correct_update` and `aggregate` both None the server needs only the mean update. Such a method
    streams cohorts of any size and can run under secure aggregation.
    """

    name: str
    init: Callable[[Params], Tree]
    """Make `ServerState.aux` from the initial model."""
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
    """(server state, update) -> update: work on one upload, on the same server batches for all."""
    aggregate: Callable[[Tree, Tensor], Tree] | None = None
    """(stacked updates, weights) -> update; None is the weighted mean."""
    weight_by: str | None = None
    """The split whose size is a client's weight; None weighs all clients alike."""
    data_view: Literal["clients", "pooled", "shared"] = "clients"
    """Whose data a client trains on: its own, that of all clients, or its own and the server's."""
    num_offered_states: int = 0
    """Stored client states that an unseen client may try; 0 keeps them private."""
    tags: frozenset[MethodTag] = frozenset()
    """Properties that wrappers check; a wrapper that goes around a method adds its own."""
