"""FedSIM: meta-gradients computed on server data (Song, Oh and Kim, 2022, arXiv 2205.11044).

    client   phi_i  = E epochs on f_i(phi) + lam/2 |phi - theta|^2 from theta               (5), (7)
    server, with one batch B of its data for the whole cohort:
             v_i    = theta - phi_i                         the first-order meta-gradient        (9)
             d_i    = [g_B(phi_i + h v_i) - g_B(phi_i - h v_i)] / 2h,
                      or H_B(phi_i) v_i exactly                                                 (10)
             theta' = mean_i( phi_i - beta (v_i - c d_i) )                               algorithm 2

The paper writes one delta for both h and c. The ablations of its table 3: var1 is lam=0, var2 is
first="server" (v_i is the gradient of a second server batch at phi_i), var3 is c=0. `at` chooses
where the Hessian is taken: at each phi_i (the paper), at theta, or at the mean phi along the mean
v; the last two need only the mean upload, and one Hessian product.

Personalizing is fine-tuning on the plain loss. Identities: with beta = 0 it is FedProx; with c = 0
it is FedProx with server rate 1 + beta; at="server" with the exact product is the same for each
upload and for their mean.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

from fedtailor.core import autodiff, trees
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
from fedtailor.methods.hparams import AveragingHParams, RunFacts, non_negative, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="fedsim"):
    """Hyper-parameters of FedSIM."""

    lam: float = non_negative(1.0, "strength of the clients' proximal term")
    beta: float = non_negative(0.25, "step size along the meta-gradient")
    decay: Literal["constant", "linear", "cosine"] = option(
        "linear", "decay of beta over `decay_rounds`"
    )
    decay_rounds: int | None = positive(
        None, "where the decay ends; None: where the run does (in Python: no decay)"
    )
    c: float = non_negative(
        0.25, "weight of the curvature term; 0: none, and no server data is needed"
    )
    h: float = positive(0.25, "step of the finite difference")
    product: Literal["difference", "exact"] = option(
        "difference", "how the Hessian product is computed"
    )
    at: Literal["client", "server", "mean"] = option("client", "where the Hessian is taken")
    first: Literal["weights", "scaled", "server"] = option(
        "weights", "v: theta - phi, lam (theta - phi), or a server gradient"
    )
    server_lr: float = positive(
        1.0, "step size along the mean of the corrected updates; 1 in the paper"
    )
    server_batch: int = positive(64, 'server examples a round (twice as many for first="server")')

    def resolve(self, facts: RunFacts) -> Self:
        """End the decay, if there is one, with the run, unless `decay_rounds` is given."""
        if self.decay == "constant":
            return self
        return replace(self, decay_rounds=self.decay_rounds or max(1, facts.rounds))


def meta_step(
    hparams: HParams, loss: Loss, state: ServerState, update: Params, batches: tuple[Batch, ...]
) -> Params:
    """Return the corrected update Delta - beta_t (v - c d), of one upload or of their mean.

    Args:
        hparams: beta, its decay, c, and how v and d are computed.
        loss: f on a batch.
        state: The server's state, with theta.
        update: Delta = phi - theta.
        batches: B, if v or d needs it, and with first="server" a second batch for v.
    """
    if trees.is_zero(hparams.beta):
        return update
    phi = trees.add(state.params, update)
    if hparams.first == "server":
        v = autodiff.gradient(loss, phi, batches[1])
    else:
        v = trees.scale(update, -hparams.lam if hparams.first == "scaled" else -1.0)
    meta_gradient = v
    if not trees.is_zero(hparams.c):
        point = state.params if hparams.at == "server" else phi
        d = compute_hvp(hparams, loss, point, batches[0], v)
        meta_gradient = trees.add(v, d, -hparams.c)
    decay = local_training.make_decay(hparams.decay, hparams.decay_rounds)
    return trees.add(update, meta_gradient, -hparams.beta * decay(state.round))


def compute_hvp(hparams: HParams, loss: Loss, point: Params, batch: Batch, v: Params) -> Params:
    """Return d = H_B(point) v, exactly or by the finite difference that `hparams` asks for.

    Args:
        loss: f on a batch.
        point: Where the Hessian is taken: phi or theta.
        batch: B.
        v: The first-order meta-gradient.
    """
    if hparams.product == "exact":
        return autodiff.hvp(loss, point, batch, v)
    return autodiff.finite_difference_hvp(loss, point, batch, v, hparams.h)


def count_server_batches(hparams: HParams) -> int:
    """Return how many batches of server data a round needs."""
    if not hparams.beta:
        return 0
    if hparams.first == "server":
        return 2
    return 1 if hparams.c else 0


def build(task: Task, hparams: HParams) -> Method:
    """Return FedSIM on a task."""
    gradient = partial(local_training.proximal_gradient, task.loss, hparams.lam)
    specs = (BatchSpec("train", hparams.server_batch),) * count_server_batches(hparams)
    phase = Phase(partial(meta_step, hparams, task.loss), BatchPlan(specs, steps=1))
    correct_update = None
    server_phases: tuple[Phase, ...] = (phase,)
    if hparams.at == "client":
        correct_update = Routine(local_training.pass_through, (phase,), local_training.pass_through)
        server_phases = ()
    return Method(
        name="fedsim",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.no_state,
        client=local_training.build_training_routine(hparams, gradient),
        correct_update=correct_update,
        server=local_training.build_mean_update_routine(hparams.server_lr, server_phases),
        personalize=local_training.build_finetune_routine(hparams, task.loss),
        weight_by=hparams.choose_weight_split(),
    )
