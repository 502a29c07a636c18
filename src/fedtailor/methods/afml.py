"""AFML: a meta-learned head on an encoder with Gaussian weights (anonymous, under review).

The paper is "Towards generalizable personalized federated learning with adaptive local adaptation".
The model is cut at its last layer, the head h. The encoder f before it has weights
theta ~ N(mean, sigma). A linear layer on top of it, Gaussian too, gives log s^2(x): the latent of
an example x is z ~ N(f(x), s^2(x)). Information bounds regularize the weights and the latent.

    server   theta = mean + sigma eps, one draw a round, sent with h                          line 4
    client   phi   = h - eta grad_h L(h; support)                    the inner step, no noise     15
             L_q   = L(phi; query),   L_ENC = L(h on f + s eps'; query),
             L_CONS = mean KL(z | N(0, I))                                                   16, (4)
             h     moves by  -eta_1 d L_q / dh,  through the inner step                        17, 9
             theta moves by  -eta_2 d [L_q + alpha (L_ENC + L_CONS)] / dtheta;  on average by D   18
    server   mean += D - eta_2 beta dKL/dmean,
             log sigma += D eps sigma - eta_2 beta dKL/dlog sigma                                 10
             where KL = L_CMPX = KL(N(mean, sigma) | N(0, I))

Clients upload the change of theta; the server applies the chain rule. Algorithm 1 is one step a
round on all of a client's examples: sets="whole". Further steps (ours) descend from theta and h,
and upload the sum of their changes. In sequences, L_CONS is the mean over places. Prediction uses
the mean weights, which are sent beside the sample. Personalizing is the inner loop on them: it
moves the head alone.

Identities: with sigma -> 0 and alpha = beta = 0 it is FedMeta (MAML) whose inner step moves the
head alone; with eta = 0 besides, it is FedAvg on the query examples.
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
from fedtailor.prng.streams import Stream

LATENT = ("log-variance.weight", "log-variance.bias")
"""Parameters of the encoder's last layer, which gives log s^2(x)."""

Carry = tuple[Params, Tree]
"""The client's weights and its optimizer's state."""


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="afml"):
    """Hyper-parameters of AFML."""

    lr: float = positive(0.3, "eta_2: rate of the encoder's mean and log sigma")
    eta_1: float | None = positive(None, "rate of the head; None: lr")
    eta: float = non_negative(0.5, "rate of the inner step, which adapts the head")
    alpha: float = non_negative(0.01, "weight of L_ENC and L_CONS")
    beta: float = non_negative(1e-5, "weight of L_CMPX, which the server descends once a round")
    sigma: float = positive(0.01, "initial standard deviation of the encoder's weights")
    latent_sigma: float = positive(
        0.1, "initial standard deviation of the latent, the same for every example"
    )
    sets: Literal["batches", "whole"] = option(
        "batches", "what a step sees: batches, or all support and query examples"
    )
    weigh: Literal["clients", "examples"] = option(
        "clients", "how clients count in averages: all alike, or by their number of query examples"
    )
    epochs: int = positive(1, "passes over the client's query examples in a round")
    batch: int = positive(
        20, 'examples of each kind a step, if sets="batches"; and when personalizing'
    )
    finetune_lr: float | None = positive(
        None, "step size of personalizing, which adapts the head; None: eta"
    )

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        super().__post_init__()
        require(
            self.optimizer == "sgd",
            f"{self.method_name}: the server's chain rule needs gradients; "
            f"optimizer must be sgd, got {self.optimizer}.",
        )

    def build_batch_plan(self) -> BatchPlan:
        """Return the batches of a client's training in a round: support and query."""
        size = None if self.sets == "whole" else self.batch
        specs = (BatchSpec("support", size), BatchSpec("query", size))
        return make_batch_plan(specs, epochs=self.epochs, steps=self.steps)


class Broadcast(NamedTuple):
    """The message to clients, who upload an update of its first part."""

    sample: Params  # this round's draw of the encoder, its last layer included, and the head
    mean: Params  # mean weights of the model's encoder, for predictions


class ServerAux(NamedTuple):
    """The server's state besides the model, whose encoder has the mean weights."""

    latent: Params  # mean weights of the encoder's last layer
    log_sigma: Params  # of all of the encoder's weights


# Parts of the model


def select_head(task: Task, params: Params) -> Params:
    """Return the head's parameters."""
    return {name: params[name] for name in task.head_param_names}


def select_encoder(task: Task, params: Params) -> Params:
    """Return all parameters but the head's."""
    return {name: value for name, value in params.items() if name not in task.head_param_names}


# Losses


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(mean, variance) | N(0, 1)), entry by entry."""
    return (log_variance.exp() + mean**2 - 1 - log_variance) / 2


def draw_noise(key: Tensor, like: Tensor) -> Tensor:
    """Return standard normal noise of the shape and dtype of `like`."""
    dtype = torch.promote_types(like.dtype, torch.float32)  # prng draws no half precision
    return prng.normal(key, like.shape, dtype).to(like.dtype)


def head_loss(task: Task, head: Params, features: Tensor, batch: Batch) -> Tensor:
    """Return the loss L of a head on features.

    Args:
        task: The loss.
        head: The head's parameters.
        features: Its inputs.
        batch: The examples that the features belong to.
    """
    return task.mean_loss(task.apply_head(head, features), batch)


def adapt_head(task: Task, rate: float, head: Params, features: Tensor, batch: Batch) -> Params:
    """Return phi = h - eta grad L(h).

    Args:
        task: The loss.
        rate: eta.
        head: h.
        features: Inputs of the head.
        batch: The examples that the features belong to.
    """
    head_grad = autodiff.grad(partial(head_loss, task))(head, features, batch)
    return trees.add(head, head_grad, -rate)


def encoder_loss(
    task: Task, head: Params, features: Tensor, log_variance: Tensor, batch: Batch
) -> Tensor:
    """Return L_ENC, the loss of a head on the noisy latent.

    Args:
        task: The loss.
        head: h.
        features: f(x), the mean of the latent.
        log_variance: log s^2(x).
        batch: The query examples, whose key the noise is drawn from.
    """
    noise = draw_noise(prng.fold(batch.key, Stream.LATENT), features)
    return head_loss(task, head, features + (log_variance / 2).exp() * noise, batch)


def constraint_loss(features: Tensor, log_variance: Tensor, batch: Batch) -> Tensor:
    """Return L_CONS, the mean KL of the latent to N(0, I) over the real examples.

    Args:
        features: f(x), the mean of the latent.
        log_variance: log s^2(x).
        batch: The query examples.
    """
    kl = gaussian_kl(features, log_variance).sum(-1)
    kl_per_example = kl.reshape(len(features), -1).mean(1)
    return (kl_per_example * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)


def compute_objective(
    task: Task, hparams: HParams, params: Params, fixed_head: Params, support: Batch, query: Batch
) -> Tensor:
    """Return L_q + alpha (L_ENC + L_CONS), to be differentiated by all parameters at once.

    Args:
        task: The model and the loss.
        hparams: eta and alpha.
        params: theta and h.
        fixed_head: h once more, as a constant: L_ENC does not move the head.
        support: The examples of the inner step.
        query: The examples of the losses.
    """
    model = {name: params[name] for name in task.params}
    support_features = task.compute_features(model, support)
    query_features = task.compute_features(model, query)
    head = select_head(task, params)
    adapted_head = adapt_head(task, hparams.eta, head, support_features, support)
    loss = head_loss(task, adapted_head, query_features, query)
    if trees.is_zero(hparams.alpha):
        return loss
    log_variance = nnf.linear(query_features, *(params[name] for name in LATENT))
    return loss + hparams.alpha * (
        encoder_loss(task, fixed_head, query_features, log_variance, query)
        + constraint_loss(query_features, log_variance, query)
    )


def complexity_loss(mean: Params, log_sigma: Params) -> Tensor:
    """Return L_CMPX = KL(N(mean, sigma) | N(0, I))."""
    return torch.stack(
        [gaussian_kl(mean[name], 2 * value).sum() for name, value in log_sigma.items()]
    ).sum()


# Clients


def init_client(optimizer: Optimizer, broadcast: Broadcast, client_state: Tree) -> Carry:
    """Start from the sample and the head.

    Args:
        optimizer: The client's optimizer.
        broadcast: The sample and the head.
        client_state: Unused.
    """
    return local_training.init_from_broadcast(optimizer, broadcast.sample, client_state)


def client_step(
    task: Task,
    hparams: HParams,
    optimizer: Optimizer,
    broadcast: Broadcast,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """Take one step of the encoder at rate eta_2, and of the head at rate eta_1.

    Args:
        task: The model and the loss.
        hparams: The rates and weights.
        optimizer: SGD at rate eta_2.
        broadcast: Unused.
        carry: theta and h, with the optimizer's state.
        batches: A support and a query batch.
    """
    params, opt_state = carry
    head = select_head(task, params)
    gradient = autodiff.grad(partial(compute_objective, task, hparams))(params, head, *batches)
    new_params, new_opt_state = optimizer.update(gradient, opt_state, params)
    # The optimizer has moved the head at rate eta_2 as well.
    rate_ratio = (hparams.eta_1 or hparams.lr) / hparams.lr
    new_head = {
        name: value + rate_ratio * (new_params[name] - value) for name, value in head.items()
    }
    return {**new_params, **new_head}, new_opt_state


def finalize_client(broadcast: Broadcast, carry: Carry) -> ClientResult:
    """Upload the changes of the encoder and the head."""
    return local_training.upload_update(broadcast.sample, carry)


def get_mean_params(broadcast: Broadcast, client_state: Tree) -> Params:
    """Return the model with the mean weights."""
    params = {**broadcast.sample, **broadcast.mean}
    return {name: value for name, value in params.items() if name not in LATENT}


def finetune_step(
    task: Task, rate: float, broadcast: Broadcast, params: Params, batches: tuple[Batch, ...]
) -> Params:
    """Take a step of the inner loop, which adapts the head.

    Args:
        task: The model and the loss.
        rate: eta when personalizing.
        broadcast: Unused.
        params: The client's model.
        batches: One batch of the client's examples.
    """
    features = task.compute_features(params, batches[0])
    head = adapt_head(task, rate, select_head(task, params), features, batches[0])
    return {**params, **head}


# The server


def init_server_aux(task: Task, hparams: HParams, width: int, params: Params) -> ServerAux:
    """Return the initial latent layer and log sigma.

    All examples have the same variance, and all of the encoder's weights the same sigma.

    Args:
        task: Which parameters are the head.
        hparams: The standard deviations.
        width: Number of features.
        params: The initial model.
    """
    like = next(iter(params.values()))
    weight_name, bias_name = LATENT
    latent = {
        weight_name: like.new_zeros(width, width),
        bias_name: like.new_full((width,), 2 * math.log(hparams.latent_sigma)),
    }
    encoder = select_encoder(task, {**params, **latent})
    return ServerAux(latent, trees.full_like(encoder, math.log(hparams.sigma)))


def draw_weight_noise(state: ServerState) -> Params:
    """Return this round's eps, which is the same in each call."""
    key = prng.fold(prng.fold(state.key, state.round), Stream.WEIGHTS)
    names = sorted(state.aux.log_sigma)
    like = [state.aux.log_sigma[name] for name in names]
    flat_noise = draw_noise(key, torch.cat([value.flatten() for value in like]))
    parts = torch.split(flat_noise, [value.numel() for value in like])
    return {
        name: part.reshape(value.shape)
        for name, part, value in zip(names, parts, like, strict=True)
    }


def broadcast_sample(task: Task, state: ServerState) -> Broadcast:
    """Send theta = mean + sigma eps with the head, and the mean."""
    means = {**state.params, **state.aux.latent}
    eps = draw_weight_noise(state)
    theta = {
        name: means[name] + log_sigma.exp() * eps[name]
        for name, log_sigma in state.aux.log_sigma.items()
    }
    return Broadcast({**means, **theta}, select_encoder(task, state.params))


def server_step(rate: float, state: ServerState, mean_update: Params) -> ServerState:
    """Apply the chain rule from theta to mean and log sigma, then a step down L_CMPX.

    Args:
        rate: eta_2 beta.
        state: The server's state, with the mean weights and log sigma.
        mean_update: D, and the mean change of the head.
    """
    means = {**state.params, **state.aux.latent}
    log_sigma = state.aux.log_sigma
    eps = draw_weight_noise(state)
    # The gradient by the head, which is in `means` but not in `log_sigma`, is 0.
    mean_grad, log_sigma_grad = torch.func.grad(complexity_loss, (0, 1))(means, log_sigma)
    new_means = trees.add(trees.add(means, mean_update), mean_grad, -rate)
    new_log_sigma = {
        name: value + mean_update[name] * eps[name] * value.exp()
        for name, value in log_sigma.items()
    }
    new_log_sigma = trees.add(new_log_sigma, log_sigma_grad, -rate)
    latent = {name: new_means.pop(name) for name in LATENT}
    return state._replace(params=new_means, aux=ServerAux(latent, new_log_sigma))


def build(task: Task, hparams: HParams) -> Method:
    """Return AFML on a task."""
    conflicts = [name for name in LATENT if name in task.params]
    require(
        not conflicts,
        "afml: the model's parameters must have other names than "
        f"{', '.join(conflicts)}; rename the layer.",
    )
    optimizer = hparams.make_optimizer()
    step = partial(client_step, task, hparams, optimizer)
    finetune_rate = hparams.finetune_lr or hparams.eta
    return Method(
        name="afml",
        init=partial(init_server_aux, task, hparams, task.cut.feature_dim),
        broadcast=partial(broadcast_sample, task),
        init_client_state=local_training.no_state,
        client=Routine(
            partial(init_client, optimizer), hparams.build_train_phases(step), finalize_client
        ),
        server=Routine(
            local_training.start_from_mean_update,
            (),
            partial(server_step, hparams.lr * hparams.beta),
        ),
        personalize=Routine(
            get_mean_params,
            hparams.build_finetune_phases(partial(finetune_step, task, finetune_rate)),
            local_training.pass_through,
        ),
        weight_by=hparams.choose_weight_split("query"),
        tags=frozenset({"adapts-head"}),
    )
