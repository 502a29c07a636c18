"""FedRep: heads are fitted first, then one pass for the shared base (Collins et al., ICML 2021).

    client   head_epochs of SGD on the client's own head, the base fixed;   then epochs of SGD on the base, that head
             fixed;   the base's change travels
    server   averages the bases;   heads never travel

Personalizing fits the head alone, from the client's own (a newcomer: the first one), on the shared base.

Identities: with head_epochs = 0 and personal = none it is FedAvg.
"""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from fedtailor.core import autodiff, optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    ClientResult,
    Loss,
    Method,
    Params,
    Phase,
    Routine,
    Tree,
)
from fedtailor.methods import local_training
from fedtailor.methods.hparams import make_local_optimizer, non_negative, positive
from fedtailor.methods.wrappers import personal_layers

Names = frozenset[str]
Carry = tuple[Params, Tree, Tree]
"""The model, and the optimizers' memories: of the head and of the base."""


@dataclass(frozen=True, kw_only=True)
class HParams(personal_layers.HParams):
    """Hyper-parameters of FedRep."""

    head_epochs: int = non_negative(
        5, "passes over the client's train examples for the head, before those for the base"
    )
    head_lr: float | None = positive(None, "step size for the head; None: lr")
    server_lr: float = positive(1.0, "1: the plain average")


def init_client(
    head_optimizer: Optimizer,
    base_optimizer: Optimizer,
    names: Names,
    broadcast: Params,
    client_state: Tree,
) -> Carry:
    """Starts from the base that was sent and the client's own head."""
    return (
        broadcast,
        head_optimizer.init(trees.select(broadcast, names, True)),
        base_optimizer.init(trees.select(broadcast, names, False)),
    )


def partial_loss(loss: Loss, fixed: Params, moving: Params, batch: Batch) -> Tensor:
    """The loss as a function of some of the parameters."""
    return loss({**fixed, **moving}, batch)


def client_step(
    optimizer: Optimizer,
    loss: Loss,
    names: Names,
    is_head: bool,
    broadcast: Params,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """One step on the head, or on the base, with the other fixed."""
    params, head_state, base_state = carry
    moving, fixed = trees.select(params, names, is_head), trees.select(params, names, not is_head)
    gradient = autodiff.gradient(partial(partial_loss, loss, fixed), moving, batches[0])
    moved, opt_state = optimizer.update(gradient, head_state if is_head else base_state, moving)
    return {**params, **moved}, *((opt_state, base_state) if is_head else (head_state, opt_state))


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """Uploads how far the client's model has come."""
    return ClientResult(update=trees.sub(carry[0], broadcast), state=())


def get_personal_params(broadcast: Params, carry: Carry) -> Params:
    """The client's own model."""
    return carry[0]


def build(task: Task, hparams: HParams) -> Method:
    """FedRep on a task."""
    names = personal_layers.select_param_names(task, hparams.personal)
    head_optimizer = make_local_optimizer(replace(hparams, lr=hparams.head_lr or hparams.lr))
    base_optimizer, finetune_optimizer = (
        make_local_optimizer(hparams),
        optimizers.sgd(hparams.finetune_lr or hparams.head_lr or hparams.lr),
    )
    on_head, on_base = (
        partial(client_step, optimizer, task.loss, names, is_head)
        for optimizer, is_head in ((head_optimizer, True), (base_optimizer, False))
    )
    fitting = BatchPlan((BatchSpec("train", hparams.batch),), epochs=hparams.head_epochs)
    first = (Phase(on_head, fitting),) if names and hparams.head_epochs else ()
    second = (Phase(on_base, hparams.batch_plan()),) if names < set(task.params) else ()
    finetune_phases = (
        hparams.finetune_phases(partial(client_step, finetune_optimizer, task.loss, names, True))
        if names
        else ()
    )
    together = Method(
        name="fedrep",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=Routine(
            partial(init_client, head_optimizer, base_optimizer, names),
            (*first, *second),
            finalize_client,
        ),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(local_training.apply_mean_update, hparams.server_lr),
        ),
        personalize=Routine(
            partial(init_client, finetune_optimizer, finetune_optimizer, names),
            finetune_phases,
            get_personal_params,
        ),
    )
    return personal_layers.wrap_method(together, names, tuple(task.params), hparams.offer)
