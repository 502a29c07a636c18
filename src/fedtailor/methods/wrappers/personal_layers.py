"""Personal layers: some layers of any method's model stay with each client, the others are shared.

    client   trains base and personal layers as the method does
             changes of the base travel, personal layers stay
    server   never sees a personal layer; its own copy stays as it was

Around FedAvg with the last layer it is FedPer (Arivazhagan et al., 2019), with all but the last it
is LG-FedAvg (Liang et al., 2020), around FedMeta it is FedMeta-Per (Nguyen et al., ACIIDS 2022). An
unseen client starts with the server's copy. If clients offer their layers, it tries some of them on
its own examples and keeps the best after adapting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    ClientResult,
    CohortUpdate,
    Method,
    Params,
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods.hparams import LocalHParams, non_negative, option

Names = frozenset[str]
"""The names of the personal parameters."""

Order = tuple[str, ...]
"""The names of all parameters in the model's order, which trees keep when they are recombined."""


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams, method="personal layers"):
    """Hyper-parameters of personal layers."""

    personal: str | int | None = option(
        "last", "layers that stay with a client: last, all-but-last, all, none, or names: fc1,fc2"
    )
    offer: int = non_negative(
        0, "how many clients' personal layers an unseen client may try; 0: they stay private"
    )


def select_param_names(task: Task, layers: str | int | None) -> Names:
    """Return the names of the parameters of the personal layers.

    `layers` is a word, or names of layers or parameters joined by commas. None means "none", which
    a command line turns into None, and a number is the name of a layer of an `nn.Sequential`.
    """
    selection = "none" if layers is None else str(layers)
    everything = frozenset(task.params)
    last = frozenset(task.head_param_names)
    words: dict[str, Names] = {
        "last": last,
        "all-but-last": everything - last,
        "all": everything,
        "none": frozenset(),
    }
    if selection in words:
        return words[selection]
    names: set[str] = set()
    for layer in selection.split(","):
        matches = {name for name in everything if name == layer or name.startswith(f"{layer}.")}
        known_layers = dict.fromkeys(name.rpartition(".")[0] for name in task.params)
        require(
            bool(matches),
            f"personal: there is no layer '{layer}'; there are {', '.join(known_layers)}, "
            f"and the words {', '.join(words)}.",
        )
        names |= matches
    return frozenset(names)


# Clients: the carry is (personal layers at the start of the round, the method's carry)


def init_client(
    order: Order, init: Any, broadcast: Tree, client_state: tuple[Tree, Tree]
) -> tuple[Tree, Tree]:
    """Start the method's routine with the client's own layers in the broadcast.

    Args:
        order: The names of all parameters.
        init: The start of the method's routine.
        broadcast: The shared part.
        client_state: The personal layers, and the method's client state.
    """
    personal, inner_state = client_state
    return personal, init(trees.combine(broadcast, personal, order), inner_state)


def client_step(
    order: Order,
    inner_step: Any,
    broadcast: Tree,
    carry: tuple[Tree, Tree],
    batches: tuple[Batch, ...],
) -> tuple[Tree, Tree]:
    """Take a step of the method.

    Args:
        order: The names of all parameters.
        inner_step: The method's step.
        broadcast: The shared part.
        carry: The personal layers, and the method's carry.
        batches: The batches of the step.
    """
    personal, inner_carry = carry
    return personal, inner_step(trees.combine(broadcast, personal, order), inner_carry, batches)


def split_result(
    names: Names, order: Order, finalize: Any, broadcast: Tree, carry: tuple[Tree, Tree]
) -> ClientResult:
    """Upload the update of the base and keep the personal layers, with the method's client state.

    Args:
        names: The personal parameters.
        order: The names of all parameters.
        finalize: The end of the method's routine.
        broadcast: The shared part.
        carry: The personal layers, and the method's carry.
    """
    personal, inner_carry = carry
    result: ClientResult = finalize(trees.combine(broadcast, personal, order), inner_carry)
    new_personal = trees.add(personal, trees.select(result.update, names, True))
    base_update = trees.select(result.update, names, False)
    return ClientResult(base_update, (new_personal, result.state))


def get_personal_params(
    order: Order, finalize: Any, broadcast: Tree, carry: tuple[Tree, Tree]
) -> Params:
    """Return the method's model for the client.

    Args:
        order: The names of all parameters.
        finalize: The end of the method's routine.
        broadcast: The shared part.
        carry: The personal layers, and the method's carry.
    """
    personal, inner_carry = carry
    params: Params = finalize(trees.combine(broadcast, personal, order), inner_carry)
    return params


# The server


def broadcast_shared_part(names: Names, broadcast: Any, state: ServerState) -> Tree:
    """Send all but the personal layers.

    Args:
        names: The personal parameters.
        broadcast: The method's function.
        state: The server state.
    """
    return trees.select(broadcast(state), names, False)


def init_client_state(
    names: Names, broadcast: Any, init_inner_state: Any, state: ServerState
) -> tuple[Tree, Tree]:
    """Return the server's copy of the personal layers, and the method's client state.

    Args:
        names: The personal parameters.
        broadcast: The method's function.
        init_inner_state: The method's function.
        state: The server state.
    """
    return trees.select(broadcast(state), names, True), init_inner_state(state)


def pad_update(
    names: Names, order: Order, broadcast: Any, state: ServerState, update: Tree
) -> Tree:
    """Return an update as the method's server expects it, with zeros for the personal layers.

    Args:
        names: The personal parameters.
        order: The names of all parameters.
        broadcast: The method's function, for the shapes.
        state: The server state.
        update: The update of the base.
    """
    personal = trees.select(broadcast(state), names, True)
    return trees.combine(update, trees.zeros_like(personal), order)


def init_server(pad: Any, init: Any, state: ServerState, cohort_update: CohortUpdate) -> Tree:
    """Start the method's server routine with the padded update.

    Args:
        pad: `pad_update`, bound.
        init: The start of the method's routine.
        state: The server state.
        cohort_update: The cohort's update of the base.
    """
    return init(state, cohort_update._replace(update=pad(state, cohort_update.update)))


def restore_personal_part(
    names: Names, order: Order, finalize: Any, state: ServerState, carry: Tree
) -> ServerState:
    """Finish the method's server routine, and restore the server's copy of the personal layers.

    Zeros in the update do not suffice: a Hessian product, for one, mixes all layers.

    Args:
        names: The personal parameters.
        order: The names of all parameters.
        finalize: The end of the method's routine.
        state: The server state before the round.
        carry: The method's carry.
    """
    new: ServerState = finalize(state, carry)
    restored = [
        trees.combine(trees.select(after, names, False), trees.select(before, names, True), order)
        for before, after in ((state.params, new.params), (state.aux, new.aux))
    ]
    params, aux = restored
    return new._replace(params=params, aux=aux)


def init_correction(pad: Any, init: Any, state: ServerState, update: Tree) -> Tree:
    """Start the method's correction of one upload with the padded update.

    Args:
        pad: `pad_update`, bound.
        init: The start of the method's routine.
        state: The server state.
        update: A client's update of the base.
    """
    return init(state, pad(state, update))


def finalize_correction(names: Names, finalize: Any, state: ServerState, carry: Tree) -> Tree:
    """Return the corrected update of the base.

    Args:
        names: The personal parameters.
        finalize: The end of the method's routine.
        state: The server state.
        carry: The method's carry.
    """
    return trees.select(finalize(state, carry), names, False)


# Building


def build(task: Task, hparams: HParams, method: Method) -> Method:
    """Return a method whose clients keep some layers to themselves.

    Args:
        task: The model.
        hparams: Which layers are personal, and whether they are offered.
        method: The method to go around.
    """
    names = select_param_names(task, hparams.personal)
    return wrap_method(method, task, names, hparams.offer)


def wrap_method(method: Method, task: Task, names: Names, offer: int = 0) -> Method:
    """Return a method with some of the parameters personal.

    Args:
        method: The method to go around.
        task: The model.
        names: The personal parameters.
        offer: Number of clients whose layers an unseen client may try.
    """
    _check_composition(method)
    if offer:
        _check_offer(method, task)
    order = tuple(task.params)
    pad = partial(pad_update, names, order, method.broadcast)
    finalize_client = partial(split_result, names, order, method.client.finalize)
    finalize_personalize = partial(get_personal_params, order, method.personalize.finalize)
    correct_update = method.correct_update
    if correct_update is not None:
        correct_update = correct_update._replace(
            init=partial(init_correction, pad, correct_update.init),
            finalize=partial(finalize_correction, names, correct_update.finalize),
        )
    return method._replace(
        broadcast=partial(broadcast_shared_part, names, method.broadcast),
        init_client_state=partial(
            init_client_state, names, method.broadcast, method.init_client_state
        ),
        client=_wrap_client_routine(method.client, order, finalize_client),
        personalize=_wrap_client_routine(method.personalize, order, finalize_personalize),
        server=method.server._replace(
            init=partial(init_server, pad, method.server.init),
            finalize=partial(restore_personal_part, names, order, method.server.finalize),
        ),
        correct_update=correct_update,
        num_offered_states=offer if names else 0,
        tags=method.tags | {"personal-layers"},
    )


def _wrap_client_routine(routine: Routine, order: Order, finalize: Callable[..., Any]) -> Routine:
    """Return a client's routine with the personal layers beside the method's carry."""
    phases = tuple(
        Phase(partial(client_step, order, phase.step), phase.plan) for phase in routine.phases
    )
    return Routine(partial(init_client, order, routine.init), phases, finalize)


def _check_composition(method: Method) -> None:
    """Raise an `InputError` if personal layers make no sense around a method."""
    subject = f"personal layers: {method.name}"
    require(
        "no-broadcast" not in method.tags,
        f"{subject} sends nothing, so everything is personal already.",
    )
    require(
        method.data_view != "pooled",
        f"{subject} has one client, the pool, and no clients to be personal to.",
    )
    require("personal-layers" not in method.tags, f"{subject} has personal layers already.")
    require(
        "adapts-head" not in method.tags,
        f"{subject} adapts its head to every client already, and moves it by what the server makes "
        "of gradients; compare it with fedmeta-per instead.",
    )
    require(
        "server-learning" not in method.tags,
        f"{subject} learns at the server; put it outside, so that the server has layers of its own "
        "to learn with.",
    )


def _check_offer(method: Method, task: Task) -> None:
    """Raise an `InputError` if a method's clients would offer more than personal layers."""
    zero = torch.zeros((), dtype=torch.int64)
    state = ServerState(task.params, round=zero, key=zero, aux=method.init(task.params))
    require(
        not trees.leaves(method.init_client_state(state)),
        f"personal layers: {method.name} keeps more at a client than layers, "
        "which cannot be offered to newcomers; set offer=0.",
    )
