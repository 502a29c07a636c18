"""Personal layers: some layers of any method's model stay with each client, the others are learned together.

    client   trains base and personal layers as the method does; changes of the base travel, personal layers stay
    server   never sees a personal layer; its own copy stays as it was

Around FedAvg with the last layer it is FedPer (Arivazhagan et al., 2019), with all but the last LG-FedAvg (Liang et
al., 2020), around FedMeta it is FedMeta-Per (Nguyen et al., ACIIDS 2022). A newcomer starts with the server's copy. If
clients offer their layers, it tries some of them on its own examples and keeps the best after adapting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from fedtailor.methods import local_training
from fedtailor.methods.hparams import LocalHParams, non_negative, option
from fedtailor.methods.wrappers import server_learning

Names = frozenset[str]
Order = tuple[str, ...]
"""The model's parameters as they follow each other: trees that are put together again must not change their order."""


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of personal layers."""

    personal: str | int | None = option(
        "last", "layers that stay with a client: last, all-but-last, all, none, or names: fc1,fc2"
    )
    offer: int = non_negative(
        0, "how many clients' personal layers a newcomer may try; 0: they stay private"
    )


def select_param_names(task: Task, layers: str | int | None) -> Names:
    """The parameters of the layers that stay with a client; None is what a command line makes of the word none."""
    personal = "none" if layers is None else str(layers)
    everything, last = frozenset(task.params), frozenset(task.head_param_names)
    words = {
        "last": last,
        "all-but-last": everything - last,
        "all": everything,
        "none": frozenset[str](),
    }
    if personal in words:
        return words[personal]
    found: set[str] = set()
    for layer in personal.split(","):
        matching = {name for name in everything if name == layer or name.startswith(f"{layer}.")}
        there = dict.fromkeys(name.rpartition(".")[0] for name in task.params)
        known = f"there are {', '.join(there)}, and the words {', '.join(words)}"
        require(bool(matching), f"personal: there is no layer '{layer}'; {known}.")
        found |= matching
    return frozenset(found)


def init_client(
    order: Order, init: Any, broadcast: Tree, client_state: tuple[Tree, Tree]
) -> tuple[Tree, Tree]:
    """The method's start, with the client's own layers in place."""
    personal, inner_state = client_state
    return personal, init(trees.combine(broadcast, personal, order), inner_state)


def client_step(
    order: Order,
    inner_step: Any,
    broadcast: Tree,
    carry: tuple[Tree, Tree],
    batches: tuple[Batch, ...],
) -> tuple[Tree, Tree]:
    """The method's step."""
    personal, inner_carry = carry
    return personal, inner_step(trees.combine(broadcast, personal, order), inner_carry, batches)


def split_result(
    names: Names, order: Order, finalize: Any, broadcast: Tree, carry: tuple[Tree, Tree]
) -> ClientResult:
    """Changes of the base travel; the personal layers stay, with whatever else the method keeps."""
    personal, inner_carry = carry
    result: ClientResult = finalize(trees.combine(broadcast, personal, order), inner_carry)
    new_personal = trees.add(personal, trees.select(result.update, names, True))
    return ClientResult(trees.select(result.update, names, False), (new_personal, result.state))


def get_personal_params(
    order: Order, finalize: Any, broadcast: Tree, carry: tuple[Tree, Tree]
) -> Params:
    """The method's model for the client."""
    personal, inner_carry = carry
    params: Params = finalize(trees.combine(broadcast, personal, order), inner_carry)
    return params


def broadcast_shared_part(names: Names, broadcast: Any, state: ServerState) -> Tree:
    """What travels: all but the personal layers."""
    return trees.select(broadcast(state), names, False)


def init_client_state(
    names: Names, broadcast: Any, init_inner_state: Any, state: ServerState
) -> tuple[Tree, Tree]:
    """What a newcomer begins with: the server's copy of the personal layers."""
    return trees.select(broadcast(state), names, True), init_inner_state(state)


def pad_update(
    names: Names, order: Order, broadcast: Any, state: ServerState, update: Tree
) -> Tree:
    """A change as the method's server expects it: personal layers have not moved."""
    return trees.combine(
        update, trees.zeros_like(trees.select(broadcast(state), names, True)), order
    )


def init_server(pad: Any, init: Any, state: ServerState, cohort_update: CohortUpdate) -> Tree:
    """The server's start."""
    return init(state, cohort_update._replace(update=pad(state, cohort_update.update)))


def restore_personal_part(
    names: Names, order: Order, finalize: Any, state: ServerState, carry: Tree
) -> ServerState:
    """The server's end: whatever it has mixed (a Hessian does), its copy of the personal layers is as it was."""
    new: ServerState = finalize(state, carry)
    restored = [
        trees.combine(trees.select(after, names, False), trees.select(before, names, True), order)
        for before, after in ((state.params, new.params), (state.aux, new.aux))
    ]
    return new._replace(params=restored[0], aux=restored[1])


def init_correction(pad: Any, init: Any, state: ServerState, update: Tree) -> Tree:
    """The start of the server's correction of one upload."""
    return init(state, pad(state, update))


def finalize_correction(names: Names, finalize: Any, state: ServerState, carry: Tree) -> Tree:
    """The corrected change of the base."""
    return trees.select(finalize(state, carry), names, False)


def build(task: Task, hparams: HParams, method: Method) -> Method:
    """A method whose clients keep some layers to themselves."""
    return wrap_method(
        method, select_param_names(task, hparams.personal), tuple(task.params), hparams.offer
    )


def wrap_method(method: Method, names: Names, order: Order, offer: int = 0) -> Method:
    """A method with these of the parameters personal."""
    _check_composition(method, offer)
    pad, correct_update = partial(pad_update, names, order, method.broadcast), method.correct_update
    return method._replace(
        broadcast=partial(broadcast_shared_part, names, method.broadcast),
        init_client_state=partial(
            init_client_state, names, method.broadcast, method.init_client_state
        ),
        client=_wrap_client_routine(
            method.client, order, partial(split_result, names, order, method.client.finalize)
        ),
        personalize=_wrap_client_routine(
            method.personalize,
            order,
            partial(get_personal_params, order, method.personalize.finalize),
        ),
        server=method.server._replace(
            init=partial(init_server, pad, method.server.init),
            finalize=partial(restore_personal_part, names, order, method.server.finalize),
        ),
        correct_update=correct_update
        and correct_update._replace(
            init=partial(init_correction, pad, correct_update.init),
            finalize=partial(finalize_correction, names, correct_update.finalize),
        ),
        num_offered_states=offer if names else 0,
    )


def _wrap_client_routine(routine: Routine, order: Order, finalize: Callable[..., Any]) -> Routine:
    """A client's work with the personal layers beside what it carries."""
    phases = tuple(
        Phase(partial(client_step, order, phase.step), phase.plan) for phase in routine.phases
    )
    return Routine(partial(init_client, order, routine.init), phases, finalize)


def _check_composition(method: Method, offer: int) -> None:
    """Refuses compositions that make no sense."""
    subject, inner_init = (
        f"personal layers: {method.name}",
        getattr(method.client.init, "func", None),
    )
    require(
        method.broadcast is not local_training.no_state,
        f"{subject} sends nothing, so everything is personal already.",
    )
    require(
        method.data_view != "pooled",
        f"{subject} has one client, the pool, and no clients to be personal to.",
    )
    require(inner_init is not init_client, f"{subject} has personal layers already.")
    head = "adapts its head to every client already, and moves it by what the server makes of gradients"
    require(method.name != "afml", f"{subject} {head}; compare it with fedmeta-per instead.")
    wanted = "put it outside, so that the server has layers of its own to learn with"
    require(
        not server_learning.has_server_learning(method),
        f"{subject} learns at the server; {wanted}.",
    )
    alone = not offer or method.init_client_state is local_training.no_state
    require(
        alone,
        f"{subject} keeps more at a client than layers, which cannot be offered to newcomers; set offer=0.",
    )
