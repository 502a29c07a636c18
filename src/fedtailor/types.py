"""The words of the house: what a method is made of, and what travels between the rooms.

Every personalised federated method is the same round with different pieces:

    broadcast -> each client: start, step, step, ..., finish -> upload (memory stays)
              -> server: correct each upload -> mean -> update
              -> any client, old or new: personalise, then predict

A `Method` is a record of pure functions that say what the pieces are. Where, in what order and how many at a time they
run is the engine's business.
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


class Draw(NamedTuple):
    """One batch of a step: which of the holder's splits it comes from, and how large it is (None: all of it)."""

    split: str
    size: int | None


class Plan(NamedTuple):
    """What the steps of a phase consume: `epochs` passes over the last draw's split, or `steps` steps.

    The draws are independent streams. The last one sets the epoch and is the stream that FedAvg would see, so that
    methods which reduce to FedAvg do so on equal batches.
    """

    draws: tuple[Draw, ...]
    epochs: int | None = None
    steps: int | None = None


class Phase(NamedTuple):
    """Repeated steps: `step(given, carry, batches) -> carry`."""

    step: Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
    plan: Plan


class Work(NamedTuple):
    """Anything that anybody does with data: `start(given, own) -> carry`, steps, `finish(given, carry) -> result`."""

    start: Callable[[Tree, Tree], Tree]
    phases: tuple[Phase, ...]
    finish: Callable[[Tree, Tree], Any]


class Result(NamedTuple):
    """What a client's work ends with."""

    change: Tree  # travels to the server: always a change, shaped like the parts of the broadcast that it changes
    memory: Tree  # stays with the client


class State(NamedTuple):
    """What the server keeps from round to round. The engine owns `round` and `key`."""

    params: Params
    round: Tensor
    key: Tensor
    extra: Tree


class Gathered(NamedTuple):
    """What the server has when every upload of the cohort has arrived."""

    change: Tree
    cohort: Tensor  # how many clients took part
    clients: Tensor  # how many there are


class Method(NamedTuple):
    """A federated method with its hyper-parameters bound. It pickles: top-level functions and `partial`, no lambdas.

    With `correct` and `combine` both None the server needs only the average change: such a method streams a cohort of
    any size and can run under secure aggregation.
    """

    name: str
    init: Callable[[Params], Tree]  # -> State.extra
    broadcast: Callable[[State], Tree]
    new_memory: Callable[[State], Tree]  # made at the server, handed to a client once
    client: Work  # (broadcast, memory) -> Result
    server: Work  # (state, Gathered) -> State
    personalise: Work  # (broadcast, memory) -> Params; without its phases: the model before personalising
    correct: Work | None = (
        None  # (state, change) -> change: the server's work on ONE upload, on the same batches for all
    )
    combine: Callable[[Tree, Tensor], Tree] | None = None  # (stacked changes, weights) -> change; None: weighted mean
    weigh_by: str | None = None  # None: all clients alike; else by the size of that split
    view: Literal["clients", "pooled", "shared"] = (
        "clients"  # or all clients' data as one's, or with the server's added
    )
    tries: int = 0  # stored memories that a newcomer may try; 0: memories stay private
