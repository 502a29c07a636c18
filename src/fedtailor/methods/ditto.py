"""Ditto: FedAvg, and beside it a personal model held near the global one (Li, Hu, Beirami and Smith, ICML 2021).

    client   w_i   = epochs of SGD on f_i from w;   w_i - w travels                                  as in FedAvg
             v_i <- v_i - personal_lr (g_i(v_i) + lam (v_i - w)),   for `personal_epochs`;   v_i is kept
    server   w'    = w + server_lr mean_i (w_i - w)

The personal model is held near the w that was sent, not near the w_i that has moved. It takes no part in what travels,
so any other way of learning w would do as well. Both models take the same kind of optimizer, which begins anew each
round; their batches are different draws.

Personalizing goes on with SGD on the same personal objective, around the w of the broadcast; a newcomer's v_i begins at
w, and the model before personalizing is v_i as it was kept. Identities: w is always FedAvg's; with lam = 0, v_i is
training alone; where v_i is trained to the end, it minimizes f_i(v) + lam/2 |v - w|^2.
"""

from dataclasses import dataclass, replace
from functools import partial

from fedtailor.core import optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    ClientResult,
    Method,
    Params,
    Phase,
    Routine,
    Tree,
)
from fedtailor.methods import local_training
from fedtailor.methods.hparams import (
    LocalHParams,
    Step,
    make_local_optimizer,
    non_negative,
    positive,
)

Model = tuple[Params, Tree]
"""A model with its optimizer's state."""

Carry = tuple[Model, Model]
"""The client's copy of the global model, and its personal one."""


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of Ditto."""

    lam: float = non_negative(1.0, "how strongly the personal model is held near the global one")
    personal_lr: float | None = positive(None, "step size of the personal model; None: lr")
    personal_epochs: int = positive(
        1, "passes over the client's train examples for the personal model in a round"
    )
    personal_steps: int | None = positive(None, "a number of steps instead of these passes")
    server_lr: float = positive(1.0, "1: the plain average")
    finetune_lr: float | None = positive(
        None, "step size of personalizing by SGD; None: personal_lr"
    )

    def personal_batch_plan(self) -> BatchPlan:
        """What the personal model consumes in a round."""
        draws = (BatchSpec("train", self.batch),)
        by_epoch = self.personal_steps is None
        return (
            BatchPlan(draws, epochs=self.personal_epochs)
            if by_epoch
            else BatchPlan(draws, steps=self.personal_steps)
        )


def init_client(optimizer: Optimizer, broadcast: Params, personal: Params) -> Carry:
    """The global model begins at what was sent, the personal one at what was kept."""
    return (broadcast, optimizer.init(broadcast)), (personal, optimizer.init(personal))


def global_step(step: Step, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """A step of the client's copy of the global model."""
    return step(broadcast, carry[0], batches), carry[1]


def personal_step(step: Step, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """A step of the personal model."""
    return carry[0], step(broadcast, carry[1], batches)


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """How far the global model has come travels; the personal one stays."""
    (w, _), (v, _) = carry
    return ClientResult(update=trees.sub(w, broadcast), state=v)


def init_finetune(optimizer: Optimizer, broadcast: Params, personal: Params) -> Model:
    """Goes on from the personal model."""
    return personal, optimizer.init(personal)


def build(task: Task, hparams: HParams) -> Method:
    """Ditto on a task."""
    personal_lr = hparams.personal_lr or hparams.lr
    optimizer, personal_optimizer = (
        make_local_optimizer(hparams),
        make_local_optimizer(replace(hparams, lr=personal_lr)),
    )
    finetune_optimizer = optimizers.sgd(hparams.finetune_lr or personal_lr)
    plain, proximal = (
        partial(local_training.plain_gradient, task.loss),
        partial(local_training.proximal_gradient, task.loss, hparams.lam),
    )
    phases = (
        Phase(
            partial(global_step, partial(local_training.optimizer_step, optimizer, plain)),
            hparams.batch_plan(),
        ),
        Phase(
            partial(
                personal_step, partial(local_training.optimizer_step, personal_optimizer, proximal)
            ),
            hparams.personal_batch_plan(),
        ),
    )
    return Method(
        name="ditto",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.broadcast_params,
        client=Routine(partial(init_client, optimizer), phases, finalize_client),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(local_training.apply_mean_update, hparams.server_lr),
        ),
        personalize=Routine(
            partial(init_finetune, finetune_optimizer),
            hparams.finetune_phases(
                partial(local_training.optimizer_step, finetune_optimizer, proximal)
            ),
            local_training.get_local_params,
        ),
    )
