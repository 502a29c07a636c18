"""FedMeta: the model, and how fast to adapt it, learned across clients by MAML or Meta-SGD (Chen et al., 2018).

    client, with its train examples in two, support S and query Q, at each step:
             what <- what - alpha o g(what; S)                  inner step, from what = w                     (4), (6)
             w    <- w - lr d/dw f(what(w); Q)                  outer step, through the inner one             (5), (7)
             and for inner="meta-sgd", where alpha is a tensor of w's shape, alpha <- alpha - lr d/dalpha f(what; Q)
    server   theta' = theta + server_lr mean_i Delta_i, by the sizes of the query sets, alpha likewise        (2), (3)
    personal inner steps on the client's examples

Equations are numbered as in FedMeta-Per (Nguyen, Cao and Le, ACIIDS 2022). sets="batches": a step sees a batch of S and
one of Q, and an epoch is a pass over Q (their text). sets="whole": a step sees all of S and Q, takes an inner step on
each of S's batches of `batch` examples, differentiates through them all, and takes one outer step on the mean loss over
Q (their code, with optimizer="adam", new each round). Memory then grows with the number of inner steps. order=1 takes
the support gradients for constants: the outer gradient is g(what; Q), and -g(what; Q) o (their sum) for alpha.

A client whose one example is its support set has no query: it takes no step, and weighs nothing.
Identities: inner="maml" with alpha = 0 is FedAvg on the query split, weighed by its size. With inner_steps = 1 and one
batch for S and Q it is Per-FedAvg's exact step on that batch; with order=1 its first-order step.
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
    BatchSpec,
    Loss,
    Method,
    Params,
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import (
    LocalHParams,
    make_local_optimizer,
    non_negative,
    option,
    positive,
)

MetaParams = tuple[Params, Params]
"""The model, and its inner rates by the same names: those of Meta-SGD; none for MAML, whose rate is fixed."""


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of FedMeta."""

    inner: Literal["maml", "meta-sgd"] = option(
        "maml", "one inner rate for ever, or one for each weight, learned"
    )
    alpha: float = non_negative(0.01, "inner rate; of meta-sgd: the first")
    order: int = option(2, "2: through the inner steps; 1: support gradients count as constants")
    sets: Literal["batches", "whole"] = option(
        "batches", "what a step sees of support and query: a batch each, or all"
    )
    inner_steps: int = positive(
        1, "inner steps on the support batch, or passes over the whole support set"
    )
    server_lr: float = positive(1.0, "rate at which the mean change is added; 1: the plain average")
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
        """Refuses values out of range."""
        super().__post_init__()
        require(self.order in (1, 2), f"fedmeta: order must be 1 or 2, got {self.order}.")
        learned = self.inner == "meta-sgd" and self.finetune_lr is not None
        require(
            not learned,
            "fedmeta: meta-sgd personalizes at the rates it has learned; leave finetune_lr out.",
        )


def inner_step(
    loss: Loss, alpha: float, meta_params: MetaParams, batch: Batch, order: int = 2
) -> Params:
    """w - alpha o g(w; S), with the rates of Meta-SGD if there are any."""
    params, rates = meta_params
    slope = autodiff.gradient(
        loss, params if order == 2 else trees.apply(Tensor.detach, params), batch
    )
    return (
        trees.apply(lambda w, a, g: w - a * g, params, rates, slope)
        if rates
        else trees.add(params, slope, -alpha)
    )


def split_batch(whole: Batch, size: int, key: Tensor) -> list[Batch]:
    """A batch in parts of at most so many examples; on a part of padding alone every gradient is zero."""
    columns = (torch.split(column, size) for column in whole[:3])
    return [
        Batch(x, y, mask, prng.fold(key, index))
        for index, (x, y, mask) in enumerate(zip(*columns, strict=True))
    ]


def query_loss(
    hparams: HParams, loss: Loss, meta_params: MetaParams, support: Batch, query: Batch
) -> Tensor:
    """f(what(w); Q), which the outer step descends."""
    params, rates = meta_params
    for pass_idx in range(hparams.inner_steps):
        for batch in split_batch(support, hparams.batch, prng.fold(support.key, pass_idx)):
            params = inner_step(loss, hparams.alpha, (params, rates), batch, hparams.order)
    return loss(params, query)


def init_client(
    optimizer: Optimizer, broadcast: MetaParams, client_state: Tree
) -> tuple[MetaParams, Tree]:
    """Starts from what was sent."""
    return broadcast, tuple(map(optimizer.init, broadcast))


def outer_step(
    optimizer: Optimizer,
    objective: Callable[..., Tensor],
    broadcast: MetaParams,
    carry: Tree,
    batches: tuple[Batch, ...],
) -> Tree:
    """One step of the optimizer on the model and its rates; none if there is nothing in the query batch."""
    meta_params, opt_state = carry
    slopes = autodiff.grad(objective)(meta_params, *batches)
    moved = tuple(zip(*map(optimizer.update, slopes, opt_state, meta_params), strict=True))
    asked = (batches[-1].mask > 0).any()
    return trees.apply(lambda new, old: torch.where(asked, new, old), moved, carry)


def training_routine(hparams: HParams, loss: Loss) -> Routine:
    """A client's training on support and query; the query sets the epoch."""
    optimizer, size = (
        make_local_optimizer(hparams),
        hparams.batch if hparams.sets == "batches" else None,
    )
    plan = hparams.batch_plan()._replace(
        specs=(BatchSpec("support", size), BatchSpec("query", size))
    )
    step = partial(outer_step, optimizer, partial(query_loss, hparams, loss))
    return Routine(
        partial(init_client, optimizer), (Phase(step, plan),), local_training.upload_update
    )


def init_rates(hparams: HParams, params: Params) -> Params:
    """Meta-SGD's rates before the first round, by the names of the weights; MAML has none."""
    return trees.full_like(params, hparams.alpha) if hparams.inner == "meta-sgd" else {}


def broadcast_meta_params(state: ServerState) -> MetaParams:
    """Sends the model and its rates."""
    return state.params, state.aux


def server_step(rate: float, state: ServerState, mean_update: MetaParams) -> ServerState:
    """Adds the mean change to the model and to its rates."""
    new, rates = trees.add(broadcast_meta_params(state), mean_update, rate)
    return state._replace(params=new, aux=rates)


def init_finetune(broadcast: MetaParams, client_state: Tree) -> MetaParams:
    """Personalizing starts from what was sent."""
    return broadcast


def finetune_step(
    loss: Loss,
    alpha: float,
    broadcast: MetaParams,
    meta_params: MetaParams,
    batches: tuple[Batch, ...],
) -> MetaParams:
    """An inner step on a batch of the client's examples."""
    return inner_step(loss, alpha, meta_params, batches[0]), meta_params[1]


def build(task: Task, hparams: HParams) -> Method:
    """FedMeta on a task."""
    finetune_phases = hparams.finetune_phases(
        partial(finetune_step, task.loss, hparams.finetune_lr or hparams.alpha)
    )
    return Method(
        name="fedmeta",
        init=partial(init_rates, hparams),
        broadcast=broadcast_meta_params,
        init_client_state=local_training.no_state,
        client=training_routine(hparams, task.loss),
        server=Routine(
            local_training.start_from_mean_update, (), partial(server_step, hparams.server_lr)
        ),
        personalize=Routine(init_finetune, finetune_phases, local_training.get_local_params),
        weight_by="query",
    )
