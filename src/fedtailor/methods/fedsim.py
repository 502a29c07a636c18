"""FedSIM: meta-gradients computed at the server, from its own data (Song, Oh and Kim, 2022, arXiv 2205.11044).

    client   phi_i  = E epochs on f_i(phi) + lam/2 |phi - theta|^2 from theta                            (5), (7)
    server, with one batch B of its data for the whole cohort:
             v_i    = theta - phi_i                                  the first-order meta-gradient       (9)
             d_i    = [g_B(phi_i + h v_i) - g_B(phi_i - h v_i)] / 2h, or H_B(phi_i) v_i exactly          (10)
             theta' = mean_i( phi_i - beta (v_i - c d_i) )                                    algorithm 2

The paper writes one delta for both h and c. The ablations of its table 3: var1 is lam=0, var2 is first="server" (v_i is
the gradient of a second server batch at phi_i), var3 is c=0. `at` says where the Hessian is taken: at each phi_i (the
paper), at theta, or at the mean phi along the mean v; the last two need only the mean upload, and one product.

Personalizing is fine-tuning on the plain loss. Identities: with beta = 0 it is FedProx; with c = 0 it is FedProx with
server rate 1 + beta; at="server" with the exact product is the same for each upload and for their mean.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

from fedtailor.core import autodiff, optimizers, schedules, trees
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    Loss,
    Method,
    Params,
    Phase,
    Routine,
    ServerState,
)
from fedtailor.methods import local_training
from fedtailor.methods.hparams import LocalHParams, RunFacts, non_negative, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of FedSIM."""

    lam: float = non_negative(1.0, "how strongly a client is held near the global model")
    beta: float = non_negative(0.25, "step size along the meta-gradient")
    decay: Literal["constant", "linear", "cosine"] = option(
        "linear", "of beta, over `decay_rounds`"
    )
    decay_rounds: int | None = positive(
        None, "where the decay ends; None: where the run does (in Python: no decay)"
    )
    c: float = non_negative(
        0.25, "weight of the curvature term; 0: none, and no server data is needed"
    )
    h: float = positive(0.25, "step of the finite difference")
    product: Literal["difference", "exact"] = option(
        "difference", "how the Hessian meets its vector"
    )
    at: Literal["client", "server", "mean"] = option("client", "where the Hessian is taken")
    first: Literal["weights", "scaled", "server"] = option(
        "weights", "v: theta - phi, lam (theta - phi), or a server gradient"
    )
    server_lr: float = positive(
        1.0, "rate at which the mean of the corrected changes is added; 1 in the paper"
    )
    server_batch: int = positive(64, 'server examples a round (twice as many for first="server")')

    def resolve(self, facts: RunFacts) -> Self:
        """The decay ends where the run does, unless said otherwise."""
        return replace(self, decay_rounds=self.decay_rounds or max(1, facts.rounds))


def meta_step(
    hparams: HParams, loss: Loss, state: ServerState, update: Params, batches: tuple[Batch, ...]
) -> Params:
    """The corrected change of one upload, or of the mean: Delta - beta_t (v - c d)."""
    theta, phi = state.params, trees.add(state.params, update)
    if trees.is_zero(hparams.beta):
        return update
    if hparams.first == "server":
        v = autodiff.gradient(loss, phi, batches[1])
    else:
        v = trees.scale(update, -hparams.lam if hparams.first == "scaled" else -1.0)
    meta_gradient = v
    if not trees.is_zero(hparams.c):
        point = theta if hparams.at == "server" else phi
        meta_gradient = trees.add(v, compute_hvp(hparams, loss, point, batches[0], v), -hparams.c)
    decay = (
        optimizers.schedule(hparams.decay, hparams.decay_rounds)
        if hparams.decay_rounds
        else schedules.constant()
    )
    return trees.add(update, meta_gradient, -hparams.beta * decay(state.round))


def compute_hvp(hparams: HParams, loss: Loss, point: Params, batch: Batch, v: Params) -> Params:
    """d = H_B(point) v."""
    if hparams.product == "exact":
        return autodiff.hvp(loss, point, batch, v)
    return autodiff.finite_difference_hvp(loss, point, batch, v, hparams.h)


def build(task: Task, hparams: HParams) -> Method:
    """FedSIM on a task."""
    draws = 0 if not hparams.beta else 2 if hparams.first == "server" else 1 if hparams.c else 0
    phase = Phase(
        partial(meta_step, hparams, task.loss),
        BatchPlan((BatchSpec("train", hparams.server_batch),) * draws, steps=1),
    )
    return Method(
        name="fedsim",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.training_routine(
            hparams, partial(local_training.proximal_gradient, task.loss, hparams.lam)
        ),
        correct_update=Routine(local_training.pass_through, (phase,), local_training.pass_through)
        if hparams.at == "client"
        else None,
        server=Routine(
            local_training.start_from_mean_update,
            () if hparams.at == "client" else (phase,),
            partial(local_training.apply_mean_update, hparams.server_lr),
        ),
        personalize=local_training.finetune_routine(hparams, task.loss),
    )
