"""Local: each client trains alone; the baseline that personalized methods have to beat.

    when="end"       a client trains from the initial model for `local_epochs` epochs when
                     it is personalized: as many as a client trains in all rounds on average,
                     rounds * cohort / clients * epochs, and as fine-tuning adds, rounded up
    when="sampled"   a client resumes training its own model, kept as client state, in each round
                     in which it is sampled; personalizing adds `finetune_epochs`

An unseen client begins with the initial model, so the comparison is fair to unseen clients with
when="end" only. Identities: with when="sampled" and one client, a round is an epoch of SGD on that
client's data.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal, Self

from fedtailor.core import optimizers
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    BatchSpec,
    ClientResult,
    CohortUpdate,
    Method,
    Params,
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.methods import local_training
from fedtailor.methods.hparams import (
    LocalHParams,
    RunFacts,
    make_batch_plan,
    option,
    positive,
)


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams, method="local"):
    """Hyper-parameters of training alone."""

    when: Literal["end", "sampled"] = option("end", "when clients train")
    local_epochs: int | None = positive(
        None,
        'epochs for when="end"; None: those of a client in all rounds and of fine-tuning, '
        "in Python: in one round",
    )
    local_steps: int | None = positive(
        None, "a number of steps instead of these epochs; None with `steps`: as many as they make"
    )

    def resolve(self, facts: RunFacts) -> Self:
        """Set the budget of training alone to that of a client of FedAvg, fine-tuning included."""
        if self.when != "end" or self.local_epochs or self.local_steps:
            return self
        steps_per_epoch = ceil(facts.examples_per_client / self.batch)
        participations = facts.rounds * facts.cohort_size
        if self.steps is None:
            finetune_epochs: float = self.finetune_epochs
            if self.finetune_steps is not None:
                finetune_epochs = self.finetune_steps / steps_per_epoch
            round_epochs = participations * self.epochs / facts.num_clients
            return replace(self, local_epochs=max(1, ceil(round_epochs + finetune_epochs)))
        finetune_steps = self.finetune_epochs * steps_per_epoch
        if self.finetune_steps is not None:
            finetune_steps = self.finetune_steps
        round_steps = participations * self.steps / facts.num_clients
        return replace(self, local_steps=max(1, ceil(round_steps + finetune_steps)))


ONE_ROUND = RunFacts(
    rounds=1, cohort_size=1, num_clients=1, examples_per_client=1.0, num_server_examples=0
)
"""The run that the budget follows from where a method is built without one."""


def init_client(optimizer: Optimizer, broadcast: tuple[()], params: Params) -> tuple[Params, Tree]:
    """Start from the client's own model.

    Args:
        optimizer: The client's optimizer.
        broadcast: Nothing.
        params: The client's state.
    """
    return params, optimizer.init(params)


def finalize_client(broadcast: tuple[()], carry: tuple[Params, Tree]) -> ClientResult:
    """Upload nothing and keep the model."""
    params, _ = carry
    return ClientResult(update=(), state=params)


def discard_update(state: ServerState, cohort_update: CohortUpdate) -> tuple[()]:
    """Return an empty carry for the server: the cohort's update is empty."""
    return ()


def keep_state(state: ServerState, carry: tuple[()]) -> ServerState:
    """Return the server state as it is."""
    return state


def build(task: Task, hparams: HParams) -> Method:
    """Return training alone on a task."""
    optimizer = hparams.make_optimizer()
    init = partial(init_client, optimizer)
    gradient = partial(local_training.plain_gradient, task.loss)
    step = partial(local_training.optimizer_step, optimizer, gradient)
    if hparams.when == "end":
        client_phases: tuple[Phase, ...] = ()
        hparams = hparams.resolve(ONE_ROUND)
        specs = (BatchSpec("train", hparams.batch),)
        plan = make_batch_plan(specs, epochs=hparams.local_epochs or 0, steps=hparams.local_steps)
        personalize = Routine(init, (Phase(step, plan),), local_training.get_local_params)
    else:
        client_phases = hparams.build_train_phases(step)
        finetune = local_training.build_finetune_routine(hparams, task.loss)
        personalize = finetune._replace(init=partial(init_client, optimizers.sgd(hparams.lr)))
    return Method(
        name="local",
        init=local_training.no_state,
        broadcast=local_training.no_state,
        init_client_state=local_training.broadcast_params,
        client=Routine(init, client_phases, finalize_client),
        server=Routine(discard_update, (), keep_state),
        personalize=personalize,
        tags=frozenset({"no-broadcast"}),
    )
