"""AFML: meta-learns a head on an encoder with Gaussian weights, held by information bounds (anonymous, under review).

The paper is "Towards generalizable personalized federated learning with adaptive local adaptation". The model is cut at
its last layer, the head h. The encoder f before it has weights theta ~ N(mean, sigma). A linear layer on top of it,
Gaussian too, gives log s^2(x): the latent of an example x is z ~ N(f(x), s^2(x)).

    server   theta = mean + sigma eps, one draw a round, sent with h                                          line 4
    client   phi   = h - eta grad_h L(h; support)                                    the inner step, no noise     15
             L_q   = L(phi; query),   L_ENC = L(h on f + s eps'; query),   L_CONS = mean KL(z | N(0, I))     16, (4)
             h     moves by  -eta_1 d L_q / dh,  through the inner step                                        17, 9
             theta moves by  -eta_2 d [L_q + alpha (L_ENC + L_CONS)] / dtheta;  on average by D                   18
    server   mean += D - eta_2 beta dKL/dmean,   log sigma += D eps sigma - eta_2 beta dKL/dlog sigma             10
             where KL = L_CMPX = KL(N(mean, sigma) | N(0, I))

Clients upload what moves theta; the chain rule is the server's. Algorithm 1 is one step a round on all of a client's
examples: sets="whole". Further steps (ours) descend from theta and h, and upload how far they come. In sequences,
L_CONS is the mean over places. Prediction is with the mean weights, which are sent beside the sample. Personalising is
the inner loop on them: it moves the head alone.

Identities: with sigma -> 0 and alpha = beta = 0 it is FedMeta (MAML) whose inner step moves the head alone; with
eta = 0 besides, it is FedAvg on the query examples.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as nnf

from fedtailor import calculus, keyed, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, option, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Method, Params, Phase, Plan, Result, State, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of AFML."""

    lr: float = positive(0.3, "eta_2: rate of the encoder's mean and log sigma")
    eta_1: float | None = positive(None, "rate of the head; None: lr")
    eta: float = not_negative(0.5, "rate of the inner step, which adapts the head")
    alpha: float = not_negative(0.01, "weight of L_ENC and L_CONS")
    beta: float = not_negative(1e-5, "weight of L_CMPX, which the server descends once a round")
    sigma: float = positive(0.01, "first standard deviation of the encoder's weights")
    latent_sigma: float = positive(0.1, "first standard deviation of the latent, the same for every example")
    sets: Literal["batches", "whole"] = option(
        "batches", "what a step sees: batches, or all support and query examples"
    )
    epochs: int = positive(1, "passes over the client's query examples in a round")
    batch: int = positive(20, 'examples of each kind a step, if sets="batches"; and when personalising')
    tune_lr: float | None = positive(None, "step size of personalising, which adapts the head; None: eta")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        needed = f"afml: the server's chain rule needs gradients; optimiser must be sgd, got {self.optimiser}."
        require(self.optimiser == "sgd", needed)

    def plan(self) -> Plan:
        """What a client's training consumes in a round."""
        size = None if self.sets == "whole" else self.batch
        draws = (Draw("support", size), Draw("query", size))
        return Plan(draws, epochs=self.epochs) if self.steps is None else Plan(draws, steps=self.steps)


LATENT = ("log-variance.weight", "log-variance.bias")  # the layer on top of the encoder

Carry = tuple[Params, Tree]
"""A client's own weights, and its optimiser's memory."""


class Sent(NamedTuple):
    """What travels to clients; a change of the first part comes back."""

    sample: Params  # this round's draw of the encoder, its last layer included, and the head
    mean: Params  # the model's encoder to predict with


class Kept(NamedTuple):
    """What the server keeps besides the model, whose encoder has the mean weights."""

    latent: Params  # mean weights of the encoder's last layer
    log_sigma: Params  # of all of the encoder's weights


def head_of(task: Task, params: Params) -> Params:
    """The head's parameters."""
    return {name: params[name] for name in task.last}


def encoder_of(task: Task, params: Params) -> Params:
    """All others."""
    return {name: value for name, value in params.items() if name not in task.last}


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) | N(0, 1)), entry by entry."""
    return (log_variance.exp() + mean**2 - 1 - log_variance) / 2


def drawn(key: Tensor, like: Tensor) -> Tensor:
    """Standard normal noise of a tensor's shape and type."""
    return keyed.normal(key, like.shape, torch.promote_types(like.dtype, torch.float32)).to(like.dtype)


def head_loss(task: Task, head: Params, features: Tensor, batch: Batch) -> Tensor:
    """L of the head on features."""
    return task.mean_loss(task.head(head, features), batch)


def adapted(task: Task, rate: float, head: Params, features: Tensor, batch: Batch) -> Params:
    """phi = h - eta grad L(h)."""
    return trees.add(head, calculus.grad(partial(head_loss, task))(head, features, batch), -rate)


def encoding(task: Task, head: Params, features: Tensor, log_variance: Tensor, batch: Batch) -> Tensor:
    """L_ENC: the loss of a head on the noisy latent."""
    latent = features + (log_variance / 2).exp() * drawn(keyed.fold(batch.key, "latent"), features)
    return head_loss(task, head, latent, batch)


def constraint(features: Tensor, log_variance: Tensor, batch: Batch) -> Tensor:
    """L_CONS: how far the latent is from N(0, I)."""
    each = divergence(features, log_variance).sum(-1).reshape(len(features), -1).mean(1)
    return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)


def objective(task: Task, hyper: Hyper, own: Params, still: Params, support: Batch, query: Batch) -> Tensor:
    """L_q + alpha (L_ENC + L_CONS); L_ENC is of the head `still`, which it does not move."""
    model = {name: own[name] for name in task.params}
    seen, asked = task.features(model, support), task.features(model, query)
    loss = head_loss(task, adapted(task, hyper.eta, head_of(task, own), seen, support), asked, query)
    if trees.is_zero(hyper.alpha):
        return loss
    log_variance = nnf.linear(asked, *(own[name] for name in LATENT))
    return loss + hyper.alpha * (
        encoding(task, still, asked, log_variance, query) + constraint(asked, log_variance, query)
    )


def begin(optimiser: Optimiser, sent: Sent, memory: Tree) -> Carry:
    """Starts from the sample and the head."""
    return pieces.begin(optimiser, sent.sample, memory)


def descend(
    task: Task, hyper: Hyper, optimiser: Optimiser, sent: Sent, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """One step: the encoder at rate eta_2, the head at rate eta_1."""
    own, head = carry[0], head_of(task, carry[0])
    gradient = calculus.grad(partial(objective, task, hyper))(own, head, *batches)
    moved, memory = optimiser.update(gradient, carry[1], own)
    ratio = (hyper.eta_1 or hyper.lr) / hyper.lr
    return {**moved, **{name: value + ratio * (moved[name] - value) for name, value in head.items()}}, memory


def change(sent: Sent, carry: Carry) -> Result:
    """Uploads how far encoder and head have come."""
    return pieces.change(sent.sample, carry)


def first(task: Task, hyper: Hyper, width: int, params: Params) -> Kept:
    """A latent of one variance for all examples, and one sigma for all of the encoder's weights."""
    like = next(iter(params.values()))
    bias = like.new_full((width,), 2 * math.log(hyper.latent_sigma))
    latent = dict(zip(LATENT, (like.new_zeros(width, width), bias), strict=True))
    return Kept(latent, trees.full(encoder_of(task, {**params, **latent}), math.log(hyper.sigma)))


def noise(state: State) -> Params:
    """This round's eps, the same whenever it is asked for."""
    key, names = keyed.fold(keyed.fold(state.key, state.round), "weights"), sorted(state.extra.log_sigma)
    like = [state.extra.log_sigma[name] for name in names]
    flat = drawn(key, torch.cat([value.flatten() for value in like]))
    parts = torch.split(flat, [value.numel() for value in like])
    return {name: part.reshape(value.shape) for name, part, value in zip(names, parts, like, strict=True)}


def sample(task: Task, state: State) -> Sent:
    """theta = mean + sigma eps, with the head; and the mean."""
    means, eps = {**state.params, **state.extra.latent}, noise(state)
    theta = {name: means[name] + value.exp() * eps[name] for name, value in state.extra.log_sigma.items()}
    return Sent({**means, **theta}, encoder_of(task, state.params))


def complexity(mean: Params, log_sigma: Params) -> Tensor:
    """L_CMPX = KL(N(mean, sigma) | N(0, I))."""
    return torch.stack([divergence(mean[name], 2 * value).sum() for name, value in log_sigma.items()]).sum()


def server_step(rate: float, state: State, found: Params) -> State:
    """The chain rule from theta to mean and log sigma, and a step of rate eta_2 beta down L_CMPX."""
    means, log_sigma, eps = {**state.params, **state.extra.latent}, state.extra.log_sigma, noise(state)
    by_mean, by_log_sigma = torch.func.grad(complexity, (0, 1))(means, log_sigma)  # by the head: 0
    moved = trees.add(trees.add(means, found), by_mean, -rate)
    wider = {name: value + found[name] * eps[name] * value.exp() for name, value in log_sigma.items()}
    latent = {name: moved.pop(name) for name in LATENT}
    return state._replace(params=moved, extra=Kept(latent, trees.add(wider, by_log_sigma, -rate)))


def predicting(sent: Sent, memory: Tree) -> Params:
    """The model with the mean weights."""
    return {name: value for name, value in {**sent.sample, **sent.mean}.items() if name not in LATENT}


def tune(task: Task, rate: float, sent: Sent, params: Params, batches: tuple[Batch, ...]) -> Params:
    """A step of the inner loop: the head adapts."""
    features = task.features(params, batches[0])
    return {**params, **adapted(task, rate, head_of(task, params), features, batches[0])}


def build(task: Task, hyper: Hyper) -> Method:
    """AFML on a task."""
    taken = [name for name in LATENT if name in task.params]
    require(not taken, f"afml: the model's parameters must have other names than {', '.join(taken)}; rename the layer.")
    optimiser = pieces.local_optimiser(hyper)
    training = (Phase(partial(descend, task, hyper, optimiser), hyper.plan()),)
    tuning = hyper.tuning(partial(tune, task, hyper.tune_lr or hyper.eta))
    return Method(
        name="afml",
        init=partial(first, task, hyper, task.cut.width),
        broadcast=partial(sample, task),
        new_memory=pieces.nothing,
        client=Work(partial(begin, optimiser), training, change),
        server=Work(pieces.mean_change, (), partial(server_step, hyper.lr * hyper.beta)),
        personalise=Work(predicting, tuning, pieces.taken_up),
    )
