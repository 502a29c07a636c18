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
Q (their code, with optimiser="adam", new each round). Memory then grows with the number of inner steps. order=1 takes
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

from fedtailor import calculus, keyed, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, option, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Loss, Method, Params, Phase, State, Tree, Work

Learned = tuple[Params, Params]
"""The model, and its inner rates by the same names: those of Meta-SGD; none for MAML, whose rate is fixed."""


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of FedMeta."""

    inner: Literal["maml", "meta-sgd"] = option("maml", "one inner rate for ever, or one for each weight, learned")
    alpha: float = not_negative(0.01, "inner rate; of meta-sgd: the first")
    order: int = option(2, "2: through the inner steps; 1: support gradients count as constants")
    sets: Literal["batches", "whole"] = option("batches", "what a step sees of support and query: a batch each, or all")
    inner_steps: int = positive(1, "inner steps on the support batch, or passes over the whole support set")
    server_lr: float = positive(1.0, "rate at which the mean change is added; 1: the plain average")
    epochs: int = positive(1, 'passes over the client\'s query examples in a round; with sets="whole": outer steps')
    tune_lr: float | None = positive(None, "inner rate when personalising; None: alpha; not for meta-sgd")
    tune_epochs: int = not_negative(1, "passes over the client's examples when personalising, with the inner rule")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        require(self.order in (1, 2), f"fedmeta: order must be 1 or 2, got {self.order}.")
        learned = self.inner == "meta-sgd" and self.tune_lr is not None
        require(not learned, "fedmeta: meta-sgd personalises at the rates it has learned; leave tune_lr out.")


def inner_step(loss: Loss, alpha: float, learned: Learned, batch: Batch, order: int = 2) -> Params:
    """w - alpha o g(w; S), with the rates of Meta-SGD if there are any."""
    own, rates = learned
    slope = calculus.gradient(loss, own if order == 2 else trees.apply(Tensor.detach, own), batch)
    return trees.apply(lambda w, a, g: w - a * g, own, rates, slope) if rates else trees.add(own, slope, -alpha)


def minibatches(whole: Batch, size: int, key: Tensor) -> list[Batch]:
    """A batch in parts of at most so many examples; on a part of padding alone every gradient is zero."""
    columns = (torch.split(column, size) for column in whole[:3])
    return [Batch(x, y, mask, keyed.fold(key, place)) for place, (x, y, mask) in enumerate(zip(*columns, strict=True))]


def query_loss(hyper: Hyper, loss: Loss, learned: Learned, support: Batch, query: Batch) -> Tensor:
    """f(what(w); Q), which the outer step descends."""
    own, rates = learned
    for number in range(hyper.inner_steps):
        for batch in minibatches(support, hyper.batch, keyed.fold(support.key, number)):
            own = inner_step(loss, hyper.alpha, (own, rates), batch, hyper.order)
    return loss(own, query)


def begin(optimiser: Optimiser, sent: Learned, memory: Tree) -> tuple[Learned, Tree]:
    """Starts from what was sent."""
    return sent, tuple(map(optimiser.init, sent))


def outer_step(
    optimiser: Optimiser, objective: Callable[..., Tensor], sent: Learned, carry: Tree, batches: tuple[Batch, ...]
) -> Tree:
    """One step of the optimiser on the model and its rates; none if there is nothing in the query batch."""
    learned, memory = carry
    slopes = calculus.grad(objective)(learned, *batches)
    moved = tuple(zip(*map(optimiser.update, slopes, memory, learned), strict=True))
    asked = (batches[-1].mask > 0).any()
    return trees.apply(lambda new, old: torch.where(asked, new, old), moved, carry)


def training(hyper: Hyper, loss: Loss) -> Work:
    """A client's training on support and query; the query sets the epoch."""
    optimiser, size = pieces.local_optimiser(hyper), hyper.batch if hyper.sets == "batches" else None
    plan = hyper.plan()._replace(draws=(Draw("support", size), Draw("query", size)))
    step = partial(outer_step, optimiser, partial(query_loss, hyper, loss))
    return Work(partial(begin, optimiser), (Phase(step, plan),), pieces.change)


def first_rates(hyper: Hyper, params: Params) -> Params:
    """Meta-SGD's rates before the first round, by the names of the weights; MAML has none."""
    return trees.full(params, hyper.alpha) if hyper.inner == "meta-sgd" else {}


def sent(state: State) -> Learned:
    """Sends the model and its rates."""
    return state.params, state.extra


def server_step(rate: float, state: State, found: Learned) -> State:
    """Adds the mean change to the model and to its rates."""
    new, rates = trees.add(sent(state), found, rate)
    return state._replace(params=new, extra=rates)


def received(sent: Learned, memory: Tree) -> Learned:
    """Personalising starts from what was sent."""
    return sent


def tune(loss: Loss, alpha: float, sent: Learned, own: Learned, batches: tuple[Batch, ...]) -> Learned:
    """An inner step on a batch of the client's examples."""
    return inner_step(loss, alpha, own, batches[0]), own[1]


def build(task: Task, hyper: Hyper) -> Method:
    """FedMeta on a task."""
    tuning = hyper.tuning(partial(tune, task.loss, hyper.tune_lr or hyper.alpha))
    return Method(
        name="fedmeta",
        init=partial(first_rates, hyper),
        broadcast=sent,
        new_memory=pieces.nothing,
        client=training(hyper, task.loss),
        server=Work(pieces.mean_change, (), partial(server_step, hyper.server_lr)),
        personalise=Work(received, tuning, pieces.model),
        weigh_by="query",
    )
