"""FedRep: heads are fitted first, then one pass for the shared base (Collins et al., ICML 2021).

    client   head_epochs of SGD on the client's own head, the base fixed;   then epochs of SGD on the base, that head
             fixed;   the base's change travels
    server   averages the bases;   heads never travel

Personalising fits the head alone, from the client's own (a newcomer: the first one), on the shared base.

Identities: with head_epochs = 0 and personal = none it is FedAvg.
"""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from fedtailor import calculus, optim, trees
from fedtailor.methods import personal_layers, pieces
from fedtailor.methods.pieces import not_negative, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Loss, Method, Params, Phase, Plan, Result, Tree, Work

Names = frozenset[str]
Carry = tuple[Params, Tree, Tree]
"""The model, and the optimisers' memories: of the head and of the base."""


@dataclass(frozen=True, kw_only=True)
class Hyper(personal_layers.Hyper):
    """Hyper-parameters of FedRep."""

    head_epochs: int = not_negative(
        5, "passes over the client's train examples for the head, before those for the base"
    )
    head_lr: float | None = positive(None, "step size for the head; None: lr")
    server_lr: float = positive(1.0, "1: the plain average")


def begin(head: Optimiser, base: Optimiser, names: Names, sent: Params, memory: Tree) -> Carry:
    """Starts from the base that was sent and the client's own head."""
    return sent, head.init(trees.part(sent, names, True)), base.init(trees.part(sent, names, False))


def of_part(loss: Loss, fixed: Params, moving: Params, batch: Batch) -> Tensor:
    """The loss as a function of some of the parameters."""
    return loss({**fixed, **moving}, batch)


def descend(
    optimiser: Optimiser, loss: Loss, names: Names, head: bool, sent: Params, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """One step on the head, or on the base, with the other fixed."""
    params, of_head, of_base = carry
    moving, fixed = trees.part(params, names, head), trees.part(params, names, not head)
    gradient = calculus.gradient(partial(of_part, loss, fixed), moving, batches[0])
    moved, memory = optimiser.update(gradient, of_head if head else of_base, moving)
    return {**params, **moved}, *((memory, of_base) if head else (of_head, memory))


def change(sent: Params, carry: Carry) -> Result:
    """Uploads how far the client's model has come."""
    return Result(change=trees.sub(carry[0], sent), memory=())


def model(sent: Params, carry: Carry) -> Params:
    """The client's own model."""
    return carry[0]


def build(task: Task, hyper: Hyper) -> Method:
    """FedRep on a task."""
    names = personal_layers.chosen(task, hyper.personal)
    head = pieces.local_optimiser(replace(hyper, lr=hyper.head_lr or hyper.lr))
    base, tuner = pieces.local_optimiser(hyper), optim.sgd(hyper.tune_lr or hyper.head_lr or hyper.lr)
    on_head, on_base = (partial(descend, by, task.loss, names, own) for by, own in ((head, True), (base, False)))
    fitting = Plan((Draw("train", hyper.batch),), epochs=hyper.head_epochs)
    first = (Phase(on_head, fitting),) if names and hyper.head_epochs else ()
    second = (Phase(on_base, hyper.plan()),) if names < set(task.params) else ()
    tuning = hyper.tuning(partial(descend, tuner, task.loss, names, True)) if names else ()
    together = Method(
        name="fedrep",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=Work(partial(begin, head, base, names), (*first, *second), change),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.server_lr)),
        personalise=Work(partial(begin, tuner, tuner, names), tuning, model),
    )
    return personal_layers.wrapped(together, names, tuple(task.params), hyper.offer)
