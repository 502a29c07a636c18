"""pFedMe: personal models around one that descends Moreau envelopes (Dinh et al., NeurIPS 2020).

    F_i(w)  = min_theta f_i(theta) + lam/2 |theta - w|^2
    grad F_i(w) = lam (w - theta_i(w)), theta_i the minimizer
    client  w_i = w, theta = w; then in each local round, with one batch B:
              theta <- theta - inner_lr (g_B(theta) + lam (theta - w_i)),   inner_steps (K) times
              w_i   <- w_i - lr lam (w_i - theta)                 theta is kept, w_i - w travels
    server  w' = (1 - beta) w + beta mean_i w_i

`lr` is the paper's eta: it moves w_i, which travels, down the gradient of the envelope; another
optimizer gets that same gradient. w_i begins each round at the broadcast (algorithm 1). For theta
the paper asks a certain accuracy and does not say where it starts: here it starts a round at w and
resumes from the last theta within it, as in the authors' code. In the paper all clients train and a
sample uploads; here only the sample trains, which does not change w'. For convex f, inner steps
converge if inner_lr (lam + curvature of f) < 2, and those of w_i if lr lam < 2, for no envelope
curves more than lam.

Personalizing continues with such local rounds, w_i from the broadcast and theta from the client
state (w for an unseen client), and returns theta; `finetune_lr` moves w_i there.

Identities: one local round with K = 1 is a step of FedAvg at rate lr lam inner_lr; one local round
with lr = 1 / lam is K steps of FedProx on that batch; with an exact theta, w differs from FedAvg's
by O(1 / lam).
"""

from dataclasses import dataclass
from functools import partial

from fedtailor.core import autodiff, optimizers, trees
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, ClientResult, Loss, Method, Params, Routine, Tree
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import AveragingHParams, positive

Carry = tuple[tuple[Params, Tree], Params]
"""w_i with its optimizer's state, and theta."""


@dataclass(frozen=True, kw_only=True)
class HParams(AveragingHParams, method="pfedme"):
    """Hyper-parameters of pFedMe."""

    lr: float = positive(
        0.1, "step size of w_i down its envelope (eta in the paper); safe below 2 / lam"
    )
    lam: float = positive(15.0, "how strongly the personal model is held near w_i")
    inner_lr: float = positive(
        0.05, "step size of the personal model; best near 1 / (lam + curvature)"
    )
    inner_steps: int = positive(5, "steps of the personal model on each batch (K in the paper)")
    beta: float = positive(1.0, "how far the server goes from w to the mean w_i; 1: all the way")
    finetune_lr: float | None = positive(None, "step size of w_i when personalizing; None: lr")

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        super().__post_init__()
        step = self.inner_lr * self.lam
        require(
            step < 2,
            f"{self.method_name}: inner_lr * lam must be below 2, or inner steps run away, "
            f"got {step:g}.",
        )


def init_client(optimizer: Optimizer, broadcast: Params, personal: Params) -> Carry:
    """Start both models at the broadcast.

    Args:
        optimizer: The client's optimizer, of w_i.
        broadcast: w.
        personal: The client's state, which training does not use.
    """
    return (broadcast, optimizer.init(broadcast)), broadcast


def init_finetune(optimizer: Optimizer, broadcast: Params, personal: Params) -> Carry:
    """Start w_i at the broadcast and theta at the client's state.

    Args:
        optimizer: SGD, of w_i.
        broadcast: w.
        personal: theta.
    """
    return (broadcast, optimizer.init(broadcast)), personal


def local_round(
    hparams: HParams,
    loss: Loss,
    optimizer: Optimizer,
    broadcast: Params,
    carry: Carry,
    batches: tuple[Batch, ...],
) -> Carry:
    """Solve for theta approximately on a batch, then step w_i down the gradient of the envelope.

    Args:
        hparams: The inner steps: their number and rate, and lam.
        loss: f_i on a batch.
        optimizer: The client's optimizer, of w_i.
        broadcast: Unused.
        carry: w_i and theta.
        batches: One batch of train examples.
    """
    (w, opt_state), theta = carry
    for _ in range(hparams.inner_steps):
        theta_grad = autodiff.proximal_gradient(loss, hparams.lam, w, theta, batches[0])
        theta = trees.add(theta, theta_grad, -hparams.inner_lr)
    envelope_grad = trees.scale(trees.sub(w, theta), hparams.lam)
    return optimizer.update(envelope_grad, opt_state, w), theta


def finalize_client(broadcast: Params, carry: Carry) -> ClientResult:
    """Upload w_i - w and keep theta."""
    (w, _), theta = carry
    return ClientResult(update=trees.sub(w, broadcast), state=theta)


def get_personal_params(broadcast: Params, carry: Carry) -> Params:
    """Return theta."""
    _, theta = carry
    return theta


def build(task: Task, hparams: HParams) -> Method:
    """Return pFedMe on a task."""
    optimizer = hparams.make_optimizer()
    finetune_optimizer = optimizers.sgd(hparams.finetune_lr or hparams.lr)
    step = partial(local_round, hparams, task.loss, optimizer)
    finetune_step = partial(local_round, hparams, task.loss, finetune_optimizer)
    return Method(
        name="pfedme",
        init=local_training.no_state,
        broadcast=local_training.broadcast_params,
        init_client_state=local_training.broadcast_params,
        client=Routine(
            partial(init_client, optimizer), hparams.build_train_phases(step), finalize_client
        ),
        server=local_training.build_mean_update_routine(hparams.beta),
        personalize=Routine(
            partial(init_finetune, finetune_optimizer),
            hparams.build_finetune_phases(finetune_step),
            get_personal_params,
        ),
        weight_by=hparams.choose_weight_split(),
    )
