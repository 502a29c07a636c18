"""pFedMe: personal models around a shared one that descends their Moreau envelopes (Dinh et al., NeurIPS 2020).

    F_i(w)  = min_theta f_i(theta) + lam/2 |theta - w|^2,   grad F_i(w) = lam (w - theta_i(w)), theta_i the minimiser
    client  w_i = w, theta = w; then in each local round, with one batch B:
              theta <- theta - inner_lr (g_B(theta) + lam (theta - w_i)),   inner_steps (K) times
              w_i   <- w_i - lr lam (w_i - theta)                           theta is kept, w_i - w travels
    server  w' = (1 - beta) w + beta mean_i w_i

`lr` is the paper's eta: it moves w_i, which travels, down the gradient of the envelope; another optimiser is given that
same gradient. w_i begins each round at the broadcast (algorithm 1). Of theta the paper asks a certain accuracy and says
not from where: here it begins a round at w and goes on from the last theta, as in the authors' code. In the paper
everybody trains and a sample uploads; here the sample alone trains, which leaves w' as it is. For convex f, inner steps
settle if inner_lr (lam + curvature of f) < 2, and those of w_i if lr lam < 2, for no envelope curves more than lam.

Personalising goes on with such local rounds, w_i from the broadcast and theta from the one that was kept (a newcomer's
is w), and gives theta; `tune_lr` moves w_i there. Identities: one local round with K = 1 is a step of FedAvg at rate
lr lam inner_lr; one local round with lr = 1 / lam is K steps of FedProx on that batch; with theta solved for, w differs
from FedAvg's by O(1 / lam).
"""

from dataclasses import dataclass
from functools import partial

from fedtailor import calculus, optim, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Batch, Loss, Method, Params, Phase, Result, Tree, Work

Carry = tuple[tuple[Params, Tree], Params]
"""w_i with its optimiser's state, and theta."""


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of pFedMe."""

    lr: float = positive(0.1, "step size of w_i down its envelope (eta in the paper); safe below 2 / lam")
    lam: float = positive(15.0, "how strongly the personal model is held near w_i")
    inner_lr: float = positive(0.05, "step size of the personal model; best near 1 / (lam + curvature)")
    inner_steps: int = positive(5, "steps of the personal model on each batch (K in the paper)")
    beta: float = positive(1.0, "how far the server goes from w to the mean w_i; 1: all the way")
    tune_lr: float | None = positive(None, "step size of w_i when personalising; None: lr")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        super().__post_init__()
        step = self.inner_lr * self.lam
        require(step < 2, f"pfedme: inner_lr * lam must be below 2, or inner steps run away, got {step:g}.")


def start_round(optimiser: Optimiser, sent: Params, kept: Params) -> Carry:
    """Both models begin at the one that was sent."""
    return (sent, optimiser.init(sent)), sent


def start_tuning(optimiser: Optimiser, sent: Params, kept: Params) -> Carry:
    """w_i begins at the model that was sent, theta goes on from the one that was kept."""
    return (sent, optimiser.init(sent)), kept


def local_round(
    hyper: Hyper, loss: Loss, optimiser: Optimiser, sent: Params, carry: Carry, batches: tuple[Batch, ...]
) -> Carry:
    """theta nearly solves its problem on a batch, then w_i goes down the gradient of the envelope."""
    (w, memory), theta = carry
    for _ in range(hyper.inner_steps):
        slope = calculus.proximal_gradient(loss, hyper.lam, w, theta, batches[0])
        theta = trees.add(theta, slope, -hyper.inner_lr)
    return optimiser.update(trees.scaled(trees.sub(w, theta), hyper.lam), memory, w), theta


def finish_round(sent: Params, carry: Carry) -> Result:
    """How far w_i has come travels; theta stays."""
    (w, _), theta = carry
    return Result(change=trees.sub(w, sent), memory=theta)


def personal(sent: Params, carry: Carry) -> Params:
    """theta."""
    return carry[1]


def build(task: Task, hyper: Hyper) -> Method:
    """pFedMe on a task."""
    optimiser, tuner = pieces.local_optimiser(hyper), optim.sgd(hyper.tune_lr or hyper.lr)
    training = Phase(partial(local_round, hyper, task.loss, optimiser), hyper.plan())
    tuning = hyper.tuning(partial(local_round, hyper, task.loss, tuner))
    return Method(
        name="pfedme",
        init=pieces.nothing,
        broadcast=pieces.params,
        new_memory=pieces.params,
        client=Work(partial(start_round, optimiser), (training,), finish_round),
        server=Work(pieces.mean_change, (), partial(pieces.add, hyper.beta)),
        personalise=Work(partial(start_tuning, tuner), tuning, personal),
    )
