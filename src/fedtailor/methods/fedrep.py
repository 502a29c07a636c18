"""FedRep: heads are fitted first, then one pass for the shared base (Collins et al., ICML 2021).

    client   head_epochs of SGD on the client's own head, the base fixed;
             then epochs of SGD on the base, that head fixed;   the base's change travels
    server   averages the bases;   heads never travel

Personalizing fits the head alone, on the shared base. It starts from the client's own head, or for
an unseen client from the initial one.

Identities: with head_epochs = 0 and personal = none it is FedAvg.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from torch import Tensor

from fedtailor.core import autodiff, optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
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
from fedtailor.methods.hparams import (
    AveragingHParams,
    make_batch_plan,
    non_negative,
    positive,
)
from fedtailor.methods.wrappers import personal_layers

Names = frozenset[str]

PartStep = Callable[[Params, Tree, Batch], tuple[Params, Tree]]
"""A step on a part of the model: (params, optimizer state, batch) -> (params, optimizer state)."""


@dataclass(frozen=True, kw_only=True)
class HParams(personal_layers.HParams, AveragingHParams, method="fedrep"):
    """Hyper-parameters of FedRep."""

    head_epochs: int = non_negative(
        5, "passes over the client's train examples for the head, before those for the base"
    )
    head_lr: float | None = positive(None, "step size for the head; None: lr")
    server_lr: float = positive(1.0, "step size of the server; 1: the average")


class Carry(NamedTuple):
    """The carry of a client's training."""

    params: Params  # base and head
    head_state: Tree  # of the head's optimizer
    base_state: Tree  # of the base's optimizer


def init_client(
    head_optimizer: Optimizer,
    base_optimizer: Optimizer,
    head_names: Names,
    broadcast: Params,
    client_state: Tree,
) -> Carry:
    """Start from the broadcast base and the client's own head.

    Args:
        head_optimizer: The optimizer of the head.
        base_optimizer: The optimizer of the base.
        head_names: The head's parameters.
        broadcast: The base, with the client's head, which the wrapper has put in its place.
        client_state: Unused: the wrapper keeps the head.
    """
    head = trees.select(broadcast, head_names, True)
    base = trees.select(broadcast, head_names, False)
    return Carry(broadcast, head_optimizer.init(head), base_optimizer.init(base))


def partial_loss(loss: Loss, fixed: Params, trainable: Params, batch: Batch) -> Tensor:
    """Return the loss as a function of some of the parameters.

    Args:
        loss: f_i on a batch.
        fixed: The other parameters.
        trainable: The parameters to differentiate by.
        batch: The examples of f_i.
    """
    return loss({**fixed, **trainable}, batch)


def part_step(
    optimizer: Optimizer, loss: Loss, names: Names, params: Params, opt_state: Tree, batch: Batch
) -> tuple[Params, Tree]:
    """Take one step on a part of the parameters, with the others fixed.

    Args:
        optimizer: The part's optimizer.
        loss: f_i on a batch.
        names: The parameters of the part.
        params: All parameters.
        opt_state: The state of the part's optimizer.
        batch: A batch of train examples.

    Returns:
        All parameters, and the new state of the part's optimizer.
    """
    trainable = trees.select(params, names, True)
    fixed = trees.select(params, names, False)
    gradient = autodiff.gradient(partial(partial_loss, loss, fixed), trainable, batch)
    new_part, new_opt_state = optimizer.update(gradient, opt_state, trainable)
    return {**params, **new_part}, new_opt_state


def head_step(step: PartStep, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """Take one step on the head, with the base fixed.

    Args:
        step: `part_step` on the head.
        broadcast: Unused.
        carry: The model and the optimizer states.
        batches: One batch.
    """
    params, head_state = step(carry.params, carry.head_state, batches[0])
    return carry._replace(params=params, head_state=head_state)


def base_step(step: PartStep, broadcast: Params, carry: Carry, batches: tuple[Batch, ...]) -> Carry:
    """Take one step on the base, with the head fixed.

    Args:
        step: `part_step` on the base.
        broadcast: Unused.
        carry: The model and the optimizer states.
        batches: One batch.
    """
    params, base_state = step(carry.params, carry.base_state, batches[0])
    return carry._replace(params=params, base_state=base_state)


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """Upload the change of the model; the wrapper keeps the head's part of it."""
    return ClientResult(update=trees.sub(carry.params, broadcast), state=())


def get_personal_params(broadcast: Params, carry: Carry) -> Params:
    """Return the client's model."""
    return carry.params


def build(task: Task, hparams: HParams) -> Method:
    """Return FedRep on a task."""
    head_names = personal_layers.select_param_names(task, hparams.personal)
    base_names = frozenset(task.params) - head_names
    head_lr = hparams.head_lr or hparams.lr
    head_optimizer = replace(hparams, lr=head_lr).make_optimizer()
    base_optimizer = hparams.make_optimizer()
    finetune_optimizer = optimizers.sgd(hparams.finetune_lr or head_lr)
    train_head = partial(part_step, head_optimizer, task.loss, head_names)
    train_base = partial(part_step, base_optimizer, task.loss, base_names)
    finetune_head = partial(part_step, finetune_optimizer, task.loss, head_names)
    client_phases: list[Phase] = []
    finetune_phases: tuple[Phase, ...] = ()
    if head_names:
        finetune_phases = hparams.build_finetune_phases(partial(head_step, finetune_head))
    if head_names and hparams.head_epochs:
        specs = (BatchSpec("train", hparams.batch),)
        plan = make_batch_plan(specs, epochs=hparams.head_epochs)
        client_phases.append(Phase(partial(head_step, train_head), plan))
    if base_names:
        client_phases += hparams.build_train_phases(partial(base_step, train_base))
    method = Method(
        name="fedrep",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=Routine(
            partial(init_client, head_optimizer, base_optimizer, head_names),
            tuple(client_phases),
            finalize_client,
        ),
        server=local_training.build_mean_update_routine(hparams.server_lr),
        personalize=Routine(
            partial(init_client, finetune_optimizer, finetune_optimizer, head_names),
            finetune_phases,
            get_personal_params,
        ),
        weight_by=hparams.choose_weight_split(),
    )
    return personal_layers.wrap_method(method, task, head_names, hparams.offer)
