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
L_CONS is the mean over places. Prediction is with the mean weights, which are sent beside the sample. Personalizing is
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

from fedtailor import prng
from fedtailor.core import autodiff, trees
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
from fedtailor.prng.streams import Stream


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of AFML."""

    lr: float = positive(0.3, "eta_2: rate of the encoder's mean and log sigma")
    eta_1: float | None = positive(None, "rate of the head; None: lr")
    eta: float = non_negative(0.5, "rate of the inner step, which adapts the head")
    alpha: float = non_negative(0.01, "weight of L_ENC and L_CONS")
    beta: float = non_negative(1e-5, "weight of L_CMPX, which the server descends once a round")
    sigma: float = positive(0.01, "first standard deviation of the encoder's weights")
    latent_sigma: float = positive(
        0.1, "first standard deviation of the latent, the same for every example"
    )
    sets: Literal["batches", "whole"] = option(
        "batches", "what a step sees: batches, or all support and query examples"
    )
    epochs: int = positive(1, "passes over the client's query examples in a round")
    batch: int = positive(
        20, 'examples of each kind a step, if sets="batches"; and when personalizing'
    )
    finetune_lr: float | None = positive(
        None, "step size of personalizing, which adapts the head; None: eta"
    )

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        needed = f"afml: the server's chain rule needs gradients; optimizer must be sgd, got {self.optimizer}."
        require(self.optimizer == "sgd", needed)

    def batch_plan(self) -> BatchPlan:
        """What a client's training consumes in a round."""
        size = None if self.sets == "whole" else self.batch
        draws = (BatchSpec("support", size), BatchSpec("query", size))
        return (
            BatchPlan(draws, epochs=self.epochs)
            if self.steps is None
            else BatchPlan(draws, steps=self.steps)
        )


LATENT = ("log-variance.weight", "log-variance.bias")  # the layer on top of the encoder

Carry = tuple[Params, Tree]
"""A client's own weights, and its optimizer's memory."""


class Broadcast(NamedTuple):
    """What travels to clients; a change of the first part comes back."""

    sample: Params  # this round's draw of the encoder, its last layer included, and the head
    mean: Params  # the model's encoder to predict with


class ServerAux(NamedTuple):
    """What the server keeps besides the model, whose encoder has the mean weights."""

    latent: Params  # mean weights of the encoder's last layer
    log_sigma: Params  # of all of the encoder's weights


def select_head(task: Task, params: Params) -> Params:
    """The head's parameters."""
    return {name: params[name] for name in task.head_param_names}


def select_encoder(task: Task, params: Params) -> Params:
    """All others."""
    return {name: value for name, value in params.items() if name not in task.head_param_names}


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) | N(0, 1)), entry by entry."""
    return (log_variance.exp() + mean**2 - 1 - log_variance) / 2


def draw_noise(key: Tensor, like: Tensor) -> Tensor:
    """Standard normal noise of a tensor's shape and type."""
    return prng.normal(key, like.shape, torch.promote_types(like.dtype, torch.float32)).to(
        like.dtype
    )


def head_loss(task: Task, head: Params, features: Tensor, batch: Batch) -> Tensor:
    """L of the head on features."""
    return task.mean_loss(task.apply_head(head, features), batch)


def adapt_head(task: Task, rate: float, head: Params, features: Tensor, batch: Batch) -> Params:
    """phi = h - eta grad L(h)."""
    return trees.add(head, autodiff.grad(partial(head_loss, task))(head, features, batch), -rate)


def encoder_loss(
    task: Task, head: Params, features: Tensor, log_variance: Tensor, batch: Batch
) -> Tensor:
    """L_ENC: the loss of a head on the noisy latent."""
    latent = features + (log_variance / 2).exp() * draw_noise(
        prng.fold(batch.key, Stream.LATENT), features
    )
    return head_loss(task, head, latent, batch)


def constraint_loss(features: Tensor, log_variance: Tensor, batch: Batch) -> Tensor:
    """L_CONS: how far the latent is from N(0, I)."""
    each = gaussian_kl(features, log_variance).sum(-1).reshape(len(features), -1).mean(1)
    return (each * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)


def compute_objective(
    task: Task, hparams: HParams, params: Params, fixed_head: Params, support: Batch, query: Batch
) -> Tensor:
    """L_q + alpha (L_ENC + L_CONS); L_ENC is of the head `still`, which it does not move."""
    model = {name: params[name] for name in task.params}
    seen, asked = task.compute_features(model, support), task.compute_features(model, query)
    loss = head_loss(
        task, adapt_head(task, hparams.eta, select_head(task, params), seen, support), asked, query
    )
    if trees.is_zero(hparams.alpha):
        return loss
    log_variance = nnf.linear(asked, *(params[name] for name in LATENT))
    return loss + hparams.alpha * (
        encoder_loss(task, fixed_head, asked, log_variance, query)
        + constraint_loss(asked, log_variance, query)
    )


def init_client(optimizer: Optimizer, broadcast: Broadcast, client_state: Tree) -> Carry:
    """Starts from the sample and the head."""
    return local_training.init_from_broadcast(optimizer, broadcast.sample, client_state)


def client_step(
    task: Task,
    hparams: HParams,
    optimizer: Optimizer,
    broadcast: Broadcast,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """One step: the encoder at rate eta_2, the head at rate eta_1."""
    params, head = carry[0], select_head(task, carry[0])
    gradient = autodiff.grad(partial(compute_objective, task, hparams))(params, head, *batches)
    moved, opt_state = optimizer.update(gradient, carry[1], params)
    ratio = (hparams.eta_1 or hparams.lr) / hparams.lr
    return {
        **moved,
        **{name: value + ratio * (moved[name] - value) for name, value in head.items()},
    }, opt_state


def finalize_client(broadcast: Broadcast, carry: Carry) -> ClientResult:
    """Uploads how far encoder and head have come."""
    return local_training.upload_update(broadcast.sample, carry)


def init_server_aux(task: Task, hparams: HParams, width: int, params: Params) -> ServerAux:
    """A latent of one variance for all examples, and one sigma for all of the encoder's weights."""
    like = next(iter(params.values()))
    bias = like.new_full((width,), 2 * math.log(hparams.latent_sigma))
    latent = dict(zip(LATENT, (like.new_zeros(width, width), bias), strict=True))
    return ServerAux(
        latent, trees.full_like(select_encoder(task, {**params, **latent}), math.log(hparams.sigma))
    )


def draw_weight_noise(state: ServerState) -> Params:
    """This round's eps, the same whenever it is asked for."""
    key, names = (
        prng.fold(prng.fold(state.key, state.round), Stream.WEIGHTS),
        sorted(state.aux.log_sigma),
    )
    like = [state.aux.log_sigma[name] for name in names]
    flat = draw_noise(key, torch.cat([value.flatten() for value in like]))
    parts = torch.split(flat, [value.numel() for value in like])
    return {
        name: part.reshape(value.shape)
        for name, part, value in zip(names, parts, like, strict=True)
    }


def broadcast_sample(task: Task, state: ServerState) -> Broadcast:
    """theta = mean + sigma eps, with the head; and the mean."""
    means, eps = {**state.params, **state.aux.latent}, draw_weight_noise(state)
    theta = {
        name: means[name] + value.exp() * eps[name] for name, value in state.aux.log_sigma.items()
    }
    return Broadcast({**means, **theta}, select_encoder(task, state.params))


def complexity_loss(mean: Params, log_sigma: Params) -> Tensor:
    """L_CMPX = KL(N(mean, sigma) | N(0, I))."""
    return torch.stack(
        [gaussian_kl(mean[name], 2 * value).sum() for name, value in log_sigma.items()]
    ).sum()


def server_step(rate: float, state: ServerState, mean_update: Params) -> ServerState:
    """The chain rule from theta to mean and log sigma, and a step of rate eta_2 beta down L_CMPX."""
    means, log_sigma, eps = (
        {**state.params, **state.aux.latent},
        state.aux.log_sigma,
        draw_weight_noise(state),
    )
    by_mean, by_log_sigma = torch.func.grad(complexity_loss, (0, 1))(
        means, log_sigma
    )  # by the head: 0
    moved = trees.add(trees.add(means, mean_update), by_mean, -rate)
    wider = {
        name: value + mean_update[name] * eps[name] * value.exp()
        for name, value in log_sigma.items()
    }
    latent = {name: moved.pop(name) for name in LATENT}
    return state._replace(
        params=moved, aux=ServerAux(latent, trees.add(wider, by_log_sigma, -rate))
    )


def get_mean_params(broadcast: Broadcast, client_state: Tree) -> Params:
    """The model with the mean weights."""
    return {
        name: value
        for name, value in {**broadcast.sample, **broadcast.mean}.items()
        if name not in LATENT
    }


def finetune_step(
    task: Task, rate: float, broadcast: Broadcast, params: Params, batches: tuple[Batch, ...]
) -> Params:
    """A step of the inner loop: the head adapts."""
    features = task.compute_features(params, batches[0])
    return {**params, **adapt_head(task, rate, select_head(task, params), features, batches[0])}


def build(task: Task, hparams: HParams) -> Method:
    """AFML on a task."""
    taken = [name for name in LATENT if name in task.params]
    require(
        not taken,
        f"afml: the model's parameters must have other names than {', '.join(taken)}; rename the layer.",
    )
    optimizer = make_local_optimizer(hparams)
    training = (Phase(partial(client_step, task, hparams, optimizer), hparams.batch_plan()),)
    finetune_phases = hparams.finetune_phases(
        partial(finetune_step, task, hparams.finetune_lr or hparams.eta)
    )
    return Method(
        name="afml",
        init=partial(init_server_aux, task, hparams, task.cut.feature_dim),
        broadcast=partial(broadcast_sample, task),
        init_client_state=local_training.no_state,
        client=Routine(partial(init_client, optimizer), training, finalize_client),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(server_step, hparams.lr * hparams.beta),
        ),
        personalize=Routine(get_mean_params, finetune_phases, local_training.pass_through),
    )
