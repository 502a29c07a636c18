"""Local: each client alone, nothing travels. The baseline that every personalized method has to beat.

    when="end"       a client trains from the initial model for `budget` epochs when it is personalized
    when="sampled"   a client goes on training its own model, kept in its memory, in each round in which it is sampled;
                     personalizing adds `finetune_epochs`

A newcomer begins with the initial model, so new clients are served fairly by when="end" only.
Identities: with when="sampled" and one client, a round is an epoch of SGD on that client's data.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedtailor.core import optimizers
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.task import Task
from fedtailor.core.types import (
    BatchPlan,
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
from fedtailor.methods.hparams import LocalHParams, make_local_optimizer, option, positive


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams):
    """Hyper-parameters of training alone."""

    when: Literal["end", "sampled"] = option("end", "when clients train")
    budget: int = positive(50, 'epochs for when="end"')


def init_client(optimizer: Optimizer, broadcast: tuple[()], params: Params) -> tuple[Params, Tree]:
    """Goes on from the client's own model."""
    return params, optimizer.init(params)


def finalize_client(broadcast: tuple[()], carry: tuple[Params, Tree]) -> ClientResult:
    """Everything stays with the client."""
    return ClientResult(update=(), state=carry[0])


def discard_update(state: ServerState, cohort_update: CohortUpdate) -> tuple[()]:
    """Nothing has arrived."""
    return ()


def keep_state(state: ServerState, nothing: tuple[()]) -> ServerState:
    """Nothing is learned at the server."""
    return state


def build(task: Task, hparams: HParams) -> Method:
    """Training alone on a task."""
    optimizer = make_local_optimizer(hparams)
    training = partial(
        local_training.optimizer_step, optimizer, partial(local_training.plain_gradient, task.loss)
    )
    if hparams.when == "end":
        in_rounds: tuple[Phase, ...] = ()
        personalize = Routine(
            partial(init_client, optimizer),
            (
                Phase(
                    training, BatchPlan((BatchSpec("train", hparams.batch),), epochs=hparams.budget)
                ),
            ),
            local_training.get_local_params,
        )
    else:
        in_rounds = (Phase(training, hparams.batch_plan()),)
        personalize = local_training.finetune_routine(hparams, task.loss)._replace(
            init=partial(init_client, optimizers.sgd(hparams.lr))
        )
    return Method(
        name="local",
        init=local_training.no_state,
        broadcast=local_training.no_state,
        init_client_state=local_training.broadcast_params,
        client=Routine(partial(init_client, optimizer), in_rounds, finalize_client),
        server=Routine(discard_update, (), keep_state),
        personalize=personalize,
    )
