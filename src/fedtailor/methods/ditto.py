"""Ditto: FedAvg, with personal models held near its model (Li, Hu, Beirami and Smith, ICML 2021).

    client   w_i   = epochs of SGD on f_i from w;   w_i - w travels                     as in FedAvg
             v_i <- v_i - personal_lr (g_i(v_i) + lam (v_i - w)),   for `personal_epochs`
             v_i is kept
    server   w'    = w + server_lr mean_i (w_i - w)

The personal model is held near the w that was sent, not near the w_i that has moved. It does not
affect what travels, so any other way of learning w would do as well. Both models use the same kind
of optimizer, whose state starts anew each round, on batches that are drawn independently.

Personalizing resumes SGD on the same personal objective, around the broadcast w. The v_i of an
unseen client starts at w, and the model before personalizing is v_i as it was kept. Identities: w
is always FedAvg's; with lam = 0, v_i is training alone; if v_i is trained to convergence, it
minimizes f_i(v) + lam/2 |v - w|^2.
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
    AveragingHParams,
    Step,
    make_batch_plan,
    non_negative,
    positive,
)

Model = tuple[Params, Tree]
"""A model with its optimizer's state."""

Carry = tuple[Model, Model]
"""The client's copy of the global model, and its personal one."""


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="ditto"):
    """Hyper-parameters of Ditto."""

    lam: float = non_negative(1.0, "how strongly the personal model is held near the global one")
    personal_lr: float | None = positive(None, "step size of the personal model; None: lr")
    personal_epochs: int = positive(
        1, "passes over the client's train examples for the personal model in a round"
    )
    personal_steps: int | None = positive(None, "a number of steps instead of these passes")
    server_lr: float = positive(1.0, "step size of the server; 1: the average")
    finetune_lr: float | None = positive(
        None, "step size of personalizing by SGD; None: personal_lr"
    )

    def build_personal_batch_plan(self) -> BatchPlan:
        """Return the batches of the personal model in a round."""
        specs = (BatchSpec("train", self.batch),)
        return make_batch_plan(specs, epochs=self.personal_epochs, steps=self.personal_steps)


def init_client(optimizer: Optimizer, broadcast: Params, personal: Params) -> Carry:
    """Start both models, with new optimizer states.

    Args:
        optimizer: The client's optimizer, of either model.
        broadcast: w, where the copy of the global model starts.
        personal: v_i, the client's state.
    """
    return (broadcast, optimizer.init(broadcast)), (personal, optimizer.init(personal))


def global_step(step: Step, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """Take a step of the client's copy of the global model.

    Args:
        step: A step on a `Model`.
        broadcast: w.
        carry: w_i and v_i.
        batches: One batch of train examples.
    """
    global_model, personal_model = carry
    return step(broadcast, global_model, batches), personal_model


def personal_step(step: Step, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """Take a step of the personal model.

    Args:
        step: A step on a `Model`.
        broadcast: w.
        carry: w_i and v_i.
        batches: One batch of train examples.
    """
    global_model, personal_model = carry
    return global_model, step(broadcast, personal_model, batches)


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """Upload w_i - w and keep v_i."""
    (w, _), (v, _) = carry
    return ClientResult(update=trees.sub(w, broadcast), state=v)


def init_finetune(optimizer: Optimizer, broadcast: Params, personal: Params) -> Model:
    """Start personalizing from the personal model.

    Args:
        optimizer: SGD.
        broadcast: w, which the steps refer to.
        personal: v_i, the client's state.
    """
    return personal, optimizer.init(personal)


def build(task: Task, hparams: HParams) -> Method:
    """Return Ditto on a task."""
    personal_lr = hparams.personal_lr or hparams.lr
    optimizer = hparams.make_optimizer()
    personal_optimizer = replace(hparams, lr=personal_lr).make_optimizer()
    finetune_optimizer = optimizers.sgd(hparams.finetune_lr or personal_lr)
    plain = partial(local_training.plain_gradient, task.loss)
    proximal = partial(local_training.proximal_gradient, task.loss, hparams.lam)
    train_global = partial(local_training.optimizer_step, optimizer, plain)
    train_personal = partial(local_training.optimizer_step, personal_optimizer, proximal)
    finetune = partial(local_training.optimizer_step, finetune_optimizer, proximal)
    return Method(
        name="ditto",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.broadcast_params,
        client=Routine(
            partial(init_client, optimizer),
            (
                *hparams.build_train_phases(partial(global_step, train_global)),
                Phase(partial(personal_step, train_personal), hparams.build_personal_batch_plan()),
            ),
            finalize_client,
        ),
        server=local_training.build_mean_update_routine(hparams.server_lr),
        personalize=Routine(
            partial(init_finetune, finetune_optimizer),
            hparams.build_finetune_phases(finetune),
            local_training.get_local_params,
        ),
        weight_by=hparams.choose_weight_split(),
    )
