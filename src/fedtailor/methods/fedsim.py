"""FedSIM: meta-gradients computed at the server, from its own data (Song, Oh and Kim, 2022, arXiv 2205.11044).

    client   phi_i  = E epochs on f_i(phi) + lam/2 |phi - theta|^2 from theta                            (5), (7)
    server, with one batch B of its data for the whole cohort:
             v_i    = theta - phi_i                                  the first-order meta-gradient       (9)
             d_i    = [g_B(phi_i + h v_i) - g_B(phi_i - h v_i)] / 2h, or H_B(phi_i) v_i exactly          (10)
             theta' = mean_i( phi_i - beta (v_i - c d_i) )                                    algorithm 2

The paper writes one delta for both h and c. The ablations of its table 3: var1 is lam=0, var2 is first="server" (v_i is
the gradient of a second server batch at phi_i), var3 is c=0. `at` says where the Hessian is taken: at each phi_i (the
paper), at theta, or at the mean phi along the mean v; the last two need only the mean upload, and one product.

Personalising is fine-tuning on the plain loss. Identities: with beta = 0 it is FedProx; with c = 0 it is FedProx with
server rate 1 + beta; at="server" with the exact product is the same for each upload and for their mean.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self

from fedtailor import calculus, optim, trees
from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, option, positive
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Loss, Method, Params, Phase, Plan, State, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of FedSIM."""

    lam: float = not_negative(1.0, "how strongly a client is held near the global model")
    beta: float = not_negative(0.25, "step size along the meta-gradient")
    decay: Literal["constant", "linear", "cosine"] = option("linear", "of beta, over `decay_rounds`")
    decay_rounds: int | None = positive(None, "where the decay ends; None: where the run does (in Python: no decay)")
    c: float = not_negative(0.25, "weight of the curvature term; 0: none, and no server data is needed")
    h: float = positive(0.25, "step of the finite difference")
    product: Literal["difference", "exact"] = option("difference", "how the Hessian meets its vector")
    at: Literal["client", "server", "mean"] = option("client", "where the Hessian is taken")
    first: Literal["weights", "scaled", "server"] = option(
        "weights", "v: theta - phi, lam (theta - phi), or a server gradient"
    )
    server_lr: float = positive(1.0, "rate at which the mean of the corrected changes is added; 1 in the paper")
    server_batch: int = positive(64, 'server examples a round (twice as many for first="server")')

    def for_run(self, facts: pieces.Facts) -> Self:
        """The decay ends where the run does, unless said otherwise."""
        return replace(self, decay_rounds=self.decay_rounds or max(1, facts.rounds))


def meta_step(hyper: Hyper, loss: Loss, state: State, change: Params, batches: tuple[Batch, ...]) -> Params:
    """The corrected change of one upload, or of the mean: Delta - beta_t (v - c d)."""
    theta, phi = state.params, trees.add(state.params, change)
    if trees.is_zero(hyper.beta):
        return change
    if hyper.first == "server":
        v = calculus.gradient(loss, phi, batches[1])
    else:
        v = trees.scaled(change, -hyper.lam if hyper.first == "scaled" else -1.0)
    meta_gradient = v
    if not trees.is_zero(hyper.c):
        point = theta if hyper.at == "server" else phi
        meta_gradient = trees.add(v, hessian_times(hyper, loss, point, batches[0], v), -hyper.c)
    decay = optim.schedule(hyper.decay, hyper.decay_rounds) if hyper.decay_rounds else optim.constant()
    return trees.add(change, meta_gradient, -hyper.beta * decay(state.round))


def hessian_times(hyper: Hyper, loss: Loss, point: Params, batch: Batch, v: Params) -> Params:
    """d = H_B(point) v."""
    if hyper.product == "exact":
        return calculus.hessian_product(loss, point, batch, v)
    return calculus.difference_product(loss, point, batch, v, hyper.h)


def build(task: Task, hyper: Hyper) -> Method:
    """FedSIM on a task."""
    draws = 0 if not hyper.beta else 2 if hyper.first == "server" else 1 if hyper.c else 0
    phase = Phase(partial(meta_step, hyper, task.loss), Plan((Draw("train", hyper.server_batch),) * draws, steps=1))
    return Method(
        name="fedsim",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.nothing,
        client=pieces.training(hyper, partial(pieces.proximal, task.loss, hyper.lam)),
        correct=Work(pieces.taken_up, (phase,), pieces.taken_up) if hyper.at == "client" else None,
        server=Work(pieces.mean_change, () if hyper.at == "client" else (phase,), partial(pieces.add, hyper.server_lr)),
        personalise=pieces.fine_tuning(hyper, task.loss),
    )
