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

from fedtailor import trees
from fedtailor.errors import require
from fedtailor.methods import pieces, server_learning
from fedtailor.methods.pieces import not_negative, option
from fedtailor.task import Task
from fedtailor.types import Batch, Gathered, Method, Params, Phase, Result, State, Tree, Work

Names = frozenset[str]
Order = tuple[str, ...]
"""The model's parameters as they follow each other: trees that are put together again must not change their order."""


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of personal layers."""

    personal: str | int | None = option(
        "last", "layers that stay with a client: last, all-but-last, all, none, or names: fc1,fc2"
    )
    offer: int = not_negative(0, "how many clients' personal layers a newcomer may try; 0: they stay private")


def chosen(task: Task, layers: str | int | None) -> Names:
    """The parameters of the layers that stay with a client; None is what a command line makes of the word none."""
    personal = "none" if layers is None else str(layers)
    everything, last = frozenset(task.params), frozenset(task.last)
    words = {"last": last, "all-but-last": everything - last, "all": everything, "none": frozenset[str]()}
    if personal in words:
        return words[personal]
    found: set[str] = set()
    for layer in personal.split(","):
        own = {name for name in everything if name == layer or name.startswith(f"{layer}.")}
        there = dict.fromkeys(name.rpartition(".")[0] for name in task.params)
        known = f"there are {', '.join(there)}, and the words {', '.join(words)}"
        require(bool(own), f"personal: there is no layer '{layer}'; {known}.")
        found |= own
    return frozenset(found)


def start(order: Order, begin: Any, sent: Tree, memory: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """The method's start, with the client's own layers in place."""
    own, inside = memory
    return own, begin(trees.joined(sent, own, order), inside)


def step(
    order: Order, inner: Any, sent: Tree, carry: tuple[Tree, Tree], batches: tuple[Batch, ...]
) -> tuple[Tree, Tree]:
    """The method's step."""
    own, inside = carry
    return own, inner(trees.joined(sent, own, order), inside, batches)


def keep(names: Names, order: Order, finish: Any, sent: Tree, carry: tuple[Tree, Tree]) -> Result:
    """Changes of the base travel; the personal layers stay, with whatever else the method keeps."""
    own, inside = carry
    result: Result = finish(trees.joined(sent, own, order), inside)
    mine = trees.add(own, trees.part(result.change, names, True))
    return Result(trees.part(result.change, names, False), (mine, result.memory))


def model(order: Order, finish: Any, sent: Tree, carry: tuple[Tree, Tree]) -> Params:
    """The method's model for the client."""
    own, inside = carry
    params: Params = finish(trees.joined(sent, own, order), inside)
    return params


def base(names: Names, broadcast: Any, state: State) -> Tree:
    """What travels: all but the personal layers."""
    return trees.part(broadcast(state), names, False)


def copy(names: Names, broadcast: Any, new_memory: Any, state: State) -> tuple[Tree, Tree]:
    """What a newcomer begins with: the server's copy of the personal layers."""
    return trees.part(broadcast(state), names, True), new_memory(state)


def unseen(names: Names, order: Order, broadcast: Any, state: State, change: Tree) -> Tree:
    """A change as the method's server expects it: personal layers have not moved."""
    return trees.joined(change, trees.zeros(trees.part(broadcast(state), names, True)), order)


def gather(pad: Any, begin: Any, state: State, gathered: Gathered) -> Tree:
    """The server's start."""
    return begin(state, gathered._replace(change=pad(state, gathered.change)))


def restore(names: Names, order: Order, finish: Any, state: State, carry: Tree) -> State:
    """The server's end: whatever it has mixed (a Hessian does), its copy of the personal layers is as it was."""
    new: State = finish(state, carry)
    kept = [
        trees.joined(trees.part(after, names, False), trees.part(before, names, True), order)
        for before, after in ((state.params, new.params), (state.extra, new.extra))
    ]
    return new._replace(params=kept[0], extra=kept[1])


def begin_correction(pad: Any, begin: Any, state: State, change: Tree) -> Tree:
    """The start of the server's correction of one upload."""
    return begin(state, pad(state, change))


def end_correction(names: Names, finish: Any, state: State, carry: Tree) -> Tree:
    """The corrected change of the base."""
    return trees.part(finish(state, carry), names, False)


def build(task: Task, hyper: Hyper, method: Method) -> Method:
    """A method whose clients keep some layers to themselves."""
    return wrapped(method, chosen(task, hyper.personal), tuple(task.params), hyper.offer)


def wrapped(method: Method, names: Names, order: Order, offer: int = 0) -> Method:
    """A method with these of the parameters personal."""
    _refuse(method, offer)
    pad, correct = partial(unseen, names, order, method.broadcast), method.correct
    return method._replace(
        broadcast=partial(base, names, method.broadcast),
        new_memory=partial(copy, names, method.broadcast, method.new_memory),
        client=_lifted(method.client, order, partial(keep, names, order, method.client.finish)),
        personalise=_lifted(method.personalise, order, partial(model, order, method.personalise.finish)),
        server=method.server._replace(
            start=partial(gather, pad, method.server.start), finish=partial(restore, names, order, method.server.finish)
        ),
        correct=correct
        and correct._replace(
            start=partial(begin_correction, pad, correct.start), finish=partial(end_correction, names, correct.finish)
        ),
        tries=offer if names else 0,
    )


def _lifted(work: Work, order: Order, finish: Callable[..., Any]) -> Work:
    """A client's work with the personal layers beside what it carries."""
    phases = tuple(Phase(partial(step, order, phase.step), phase.plan) for phase in work.phases)
    return Work(partial(start, order, work.start), phases, finish)


def _refuse(method: Method, offer: int) -> None:
    """Refuses compositions that make no sense."""
    who, inside = f"personal layers: {method.name}", getattr(method.client.start, "func", None)
    require(method.broadcast is not pieces.nothing, f"{who} sends nothing, so everything is personal already.")
    require(method.view != "pooled", f"{who} has one client, the pool, and nobody to be personal to.")
    require(inside is not start, f"{who} has personal layers already.")
    head = "adapts its head to every client already, and moves it by what the server makes of gradients"
    require(method.name != "afml", f"{who} {head}; compare it with fedmeta-per instead.")
    wanted = "put it outside, so that the server has layers of its own to learn with"
    require(not server_learning.learns(method), f"{who} learns at the server; {wanted}.")
    alone = not offer or method.new_memory is pieces.nothing
    require(alone, f"{who} keeps more at a client than layers, which cannot be offered to newcomers; set offer=0.")
