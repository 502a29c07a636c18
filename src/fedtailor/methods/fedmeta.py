"""FedMeta: a model meta-learned for adaptation, by MAML or Meta-SGD (Chen et al., 2018).

    client, with its train examples in two, support S and query Q, at each step:
             what <- what - alpha o g(what; S)        inner step, from what = w             (4), (6)
             w    <- w - lr d/dw f(what(w); Q)        outer step, through the inner one     (5), (7)
             and for inner="meta-sgd", where alpha is a tensor of w's shape,
             alpha <- alpha - lr d/dalpha f(what; Q)
    server   theta' = theta + server_lr mean_i Delta_i, by the sizes of the query sets,
             alpha likewise                                                                 (2), (3)
    personal inner steps on the client's examples

Equations are numbered as in FedMeta-Per (Nguyen, Cao and Le, ACIIDS 2022). sets="batches": a step
sees a batch of S and one of Q, and an epoch is a pass over Q (their text). sets="whole": a step
sees all of S and Q, takes an inner step on each of S's batches of `batch` examples, differentiates
through them all, and takes one outer step on the mean loss over Q (their code, with
optimizer="adam", new each round). Memory use grows with the number of inner steps. order=1
treats the support gradients as constants: the outer gradient is g(what; Q), and -g(what; Q) o
(their sum) for alpha.

A client whose only example is its support set has no query: it takes no step, and weighs nothing,
unless all clients weigh alike.
Identities: inner="maml" with alpha = 0 is FedAvg on the query split, weighted by its size. With
inner_steps = 1 and one batch for S and Q it is Per-FedAvg's exact step on that batch; with order=1
its first-order step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedtailor import prng
from fedtailor.core import autodiff, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    Loss,
    Method,
    Params,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import (
    AveragingHParams,
    make_batch_plan,
    non_negative,
    option,
    positive,
)

MetaParams = tuple[Params, Params]
"""The model, and Meta-SGD's inner rates by the same names; MAML has none, as its rate is fixed."""


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="fedmeta"):
    """Hyper-parameters of FedMeta."""

    inner: Literal["maml", "meta-sgd"] = option(
        "maml", "one fixed inner rate, or one for each weight, learned"
    )
    alpha: float = non_negative(0.01, "inner rate; of meta-sgd: the initial one")
    order: Literal[1, 2] = option(
        2, "2: through the inner steps; 1: support gradients count as constants"
    )
    sets: Literal["batches", "whole"] = option(
        "batches", "what a step sees of support and query: a batch each, or all"
    )
    inner_steps: int = positive(
        1, "inner steps on the support batch, or passes over the whole support set"
    )
    server_lr: float = positive(1.0, "step size of the server; 1: the average")
    weigh: Literal["clients", "examples"] = option(
        "examples", "how clients count in averages: all alike, or by their number of query examples"
    )
    epochs: int = positive(
        1, 'passes over the client\'s query examples in a round; with sets="whole": outer steps'
    )
    finetune_lr: float | None = positive(
        None, "inner rate when personalizing; None: alpha; not for meta-sgd"
    )
    finetune_epochs: int = non_negative(
        1, "passes over the client's examples when personalizing, with the inner rule"
    )

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        super().__post_init__()
        require(
            self.inner != "meta-sgd" or self.finetune_lr is None,
            f"{self.method_name}: meta-sgd personalizes at the rates it has learned; "
            "leave finetune_lr out.",
        )

    def build_batch_plan(self) -> BatchPlan:
        """Return the batches of a client's training in a round; the query sets the epoch."""
        size = self.batch if self.sets == "batches" else None
        specs = (BatchSpec("support", size), BatchSpec("query", size))
        return make_batch_plan(specs, epochs=self.epochs, steps=self.steps)


def inner_step(
    loss: Loss, alpha: float, meta_params: MetaParams, batch: Batch, order: int = 2
) -> Params:
    """Return w - alpha o g(w; S).

    Args:
        loss: f on a batch.
        alpha: MAML's rate, unused if there are learned rates.
        meta_params: w, with the rates of Meta-SGD.
        batch: S.
        order: With 1 the gradient is a constant for later derivatives.
    """
    params, rates = meta_params
    point = params
    if order == 1:
        point = trees.apply(Tensor.detach, params)
    gradient = autodiff.gradient(loss, point, batch)
    if rates:
        return trees.apply(lambda w, a, g: w - a * g, params, rates, gradient)
    return trees.add(params, gradient, -alpha)


def split_batch(batch: Batch, size: int, key: Tensor) -> list[Batch]:
    """Return a batch in parts of at most `size` examples.

    A part of nothing but padding has zero gradients.

    Args:
        batch: The whole batch.
        size: Largest number of examples in a part.
        key: Key from which the parts' keys are folded.
    """
    columns = [torch.split(column, size) for column in (batch.x, batch.y, batch.mask)]
    return [
        Batch(x, y, mask, prng.fold(key, index))
        for index, (x, y, mask) in enumerate(zip(*columns, strict=True))
    ]


def query_loss(
    hparams: HParams, loss: Loss, meta_params: MetaParams, support: Batch, query: Batch
) -> Tensor:
    """Return f(what(w); Q), the objective of the outer step.

    Args:
        hparams: The inner steps: their number, rate and order.
        loss: f on a batch.
        meta_params: w, with the rates of Meta-SGD.
        support: S.
        query: Q.
    """
    params, rates = meta_params
    for pass_idx in range(hparams.inner_steps):
        for batch in split_batch(support, hparams.batch, prng.fold(support.key, pass_idx)):
            params = inner_step(loss, hparams.alpha, (params, rates), batch, hparams.order)
    return loss(params, query)


def init_client(
    optimizer: Optimizer, broadcast: MetaParams, client_state: Tree
) -> tuple[MetaParams, Tree]:
    """Start from the broadcast, with an optimizer state for the model and one for the rates.

    Args:
        optimizer: The client's optimizer.
        broadcast: The model and its rates.
        client_state: Unused.
    """
    params, rates = broadcast
    return broadcast, (optimizer.init(params), optimizer.init(rates))


def outer_step(
    optimizer: Optimizer,
    objective: Callable[..., Tensor],
    broadcast: MetaParams,
    carry: Tree,
    batches: tuple[Batch, ...],
) -> Tree:
    """Take one step of the optimizer on the model and its rates; none without query examples.

    Args:
        optimizer: The client's optimizer.
        objective: (meta params, support, query) -> f(what(w); Q).
        broadcast: Unused.
        carry: The meta params and their optimizer states.
        batches: A support and a query batch.
    """
    (params, rates), (params_state, rates_state) = carry
    params_grad, rates_grad = autodiff.grad(objective)((params, rates), *batches)
    new_params, new_params_state = optimizer.update(params_grad, params_state, params)
    new_rates, new_rates_state = optimizer.update(rates_grad, rates_state, rates)
    new_carry = ((new_params, new_rates), (new_params_state, new_rates_state))
    has_query = (batches[-1].mask > 0).any()
    return trees.apply(lambda new, old: torch.where(has_query, new, old), new_carry, carry)


def build_training_routine(hparams: HParams, loss: Loss) -> Routine:
    """Return a client's training on support and query examples."""
    optimizer = hparams.make_optimizer()
    step = partial(outer_step, optimizer, partial(query_loss, hparams, loss))
    return Routine(
        partial(init_client, optimizer),
        hparams.build_train_phases(step),
        local_training.upload_update,
    )


def init_rates(hparams: HParams, params: Params) -> Params:
    """Return Meta-SGD's initial rates by the names of the weights, or no rates for MAML."""
    if hparams.inner == "meta-sgd":
        return trees.full_like(params, hparams.alpha)
    return {}


def broadcast_meta_params(state: ServerState) -> MetaParams:
    """Send the model and its rates."""
    return state.params, state.aux


def server_step(server_lr: float, state: ServerState, mean_update: MetaParams) -> ServerState:
    """Add `server_lr` * `mean_update` to the model and its rates, which are in `state`."""
    params, rates = trees.add(broadcast_meta_params(state), mean_update, server_lr)
    return state._replace(params=params, aux=rates)


def init_finetune(broadcast: MetaParams, client_state: Tree) -> MetaParams:
    """Start personalizing from the broadcast."""
    return broadcast


def finetune_step(
    loss: Loss,
    alpha: float,
    broadcast: MetaParams,
    meta_params: MetaParams,
    batches: tuple[Batch, ...],
) -> MetaParams:
    """Take an inner step on a batch of the client's examples.

    Args:
        loss: f on a batch.
        alpha: MAML's rate when personalizing.
        broadcast: Unused.
        meta_params: The client's model, with the learned rates.
        batches: One batch.
    """
    return inner_step(loss, alpha, meta_params, batches[0]), meta_params[1]


def build(task: Task, hparams: HParams) -> Method:
    """Return FedMeta on a task."""
    finetune_lr = hparams.finetune_lr or hparams.alpha
    finetune_phases = hparams.build_finetune_phases(partial(finetune_step, task.loss, finetune_lr))
    return Method(
        name="fedmeta",
        init=partial(init_rates, hparams),
        broadcast=broadcast_meta_params,
        init_client_state=local_training.no_state,
        client=build_training_routine(hparams, task.loss),
        server=Routine(
            local_training.start_from_mean_update, (), partial(server_step, hparams.server_lr)
        ),
        personalize=Routine(init_finetune, finetune_phases, local_training.get_local_params),
        weight_by=hparams.choose_weight_split("query"),
    )
