"""Ditto: FedAvg, and beside it a personal model held near the global one (Li, Hu, Beirami and Smith, ICML 2021).

    client   w_i   = epochs of SGD on f_i from w;   w_i - w travels                                  as in FedAvg
             v_i <- v_i - personal_lr (g_i(v_i) + lam (v_i - w)),   for `personal_epochs`;   v_i is kept
    server   w'    = w + server_lr mean_i (w_i - w)

The personal model is held near the w that was sent, not near the w_i that has moved. It takes no part in what travels,
so any other way of learning w would do as well. Both models take the same kind of optimiser, which begins anew each
round; their batches are different draws.

Personalising goes on with SGD on the same personal objective, around the w of the broadcast; a newcomer's v_i begins at
w, and the model before personalising is v_i as it was kept. Identities: w is always FedAvg's; with lam = 0, v_i is
training alone; where v_i is trained to the end, it minimises f_i(v) + lam/2 |v - w|^2.
"""

from dataclasses import dataclass, replace
from functools import partial

from fedtailor import optim, trees
from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Method, Params, Phase, Plan, Result, Tree, Work

Model = tuple[Params, Tree]
"""A model with its optimiser's state."""

Carry = tuple[Model, Model]
"""The client's copy of the global model, and its personal one."""


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of Ditto."""

    lam: float = not_negative(1.0, "how strongly the personal model is held near the global one")
    personal_lr: float | None = positive(None, "step size of the personal model; None: lr")
    personal_epochs: int = positive(1, "passes over the client's train examples for the personal model in a round")
    personal_steps: int | None = positive(None, "a number of steps instead of these passes")
    server_lr: float = positive(1.0, "1: the plain average")
    tune_lr: float | None = positive(None, "step size of personalising by SGD; None: personal_lr")

    def personal_plan(self) -> Plan:
        """What the personal model consumes in a round."""
        draws = (Draw("train", self.batch),)
        by_epoch = self.personal_steps is None
        return Plan(draws, epochs=self.personal_epochs) if by_epoch else Plan(draws, steps=self.personal_steps)


def start(optimiser: Optimiser, sent: Params, kept: Params) -> Carry:
    """The global model begins at what was sent, the personal one at what was kept."""
    return (sent, optimiser.init(sent)), (kept, optimiser.init(kept))


def global_step(step: pieces.Step, sent: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """A step of the client's copy of the global model."""
    return step(sent, carry[0], batches), carry[1]


def personal_step(step: pieces.Step, sent: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """A step of the personal model."""
    return carry[0], step(sent, carry[1], batches)


def finish(sent: Params, carry: Carry) -> Result:
    """How far the global model has come travels; the personal one stays."""
    (w, _), (v, _) = carry
    return Result(change=trees.sub(w, sent), memory=v)


def start_tuning(optimiser: Optimiser, sent: Params, kept: Params) -> Model:
    """Goes on from the personal model."""
    return kept, optimiser.init(kept)


def build(task: Task, hyper: Hyper) -> Method:
    """Ditto on a task."""
    personal_lr = hyper.personal_lr or hyper.lr
    optimiser, own = pieces.local_optimiser(hyper), pieces.local_optimiser(replace(hyper, lr=personal_lr))
    tuner = optim.sgd(hyper.tune_lr or personal_lr)
    plain, held = partial(pieces.plain, task.loss), partial(pieces.proximal, task.loss, hyper.lam)
    phases = (
        Phase(partial(global_step, partial(pieces.descend, optimiser, plain)), hyper.plan()),
        Phase(partial(personal_step, partial(pieces.descend, own, held)), hyper.personal_plan()),
    )
    return Method(
        name="ditto",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.params,
        client=Work(partial(start, optimiser), phases, finish),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.server_lr)),
        personalise=Work(
            partial(start_tuning, tuner), hyper.tuning(partial(pieces.descend, tuner, held)), pieces.model
        ),
    )
