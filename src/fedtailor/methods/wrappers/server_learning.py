"""Server learning: the server also trains, on data of its own (Mai, La and Zhang, 2022).

    x_bar = what the method's update makes of x_t
    x'    = K0 steps of SGD at rate gamma eta_0 on the server's data, from x_bar   incremental: FSL
    x'    = x_bar + (K0 such steps from x_t) - x_t                        beside the clients: FSL-p

By the paper's rules E_s = ceil(n_i / n_0 E_c) passes, K0 = E_s ceil(n_0 / B_0) steps and
eta_0 = sqrt(S) eta_l K / K0, where a client takes K steps at rate eta_l in E_c epochs and S clients
take part in a round.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from typing import Any, Self

from fedtailor.core import autodiff, trees
from fedtailor.core.task import Task
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    CohortUpdate,
    Loss,
    Method,
    Params,
    Phase,
    Routine,
    ServerState,
    Tree,
)
from fedtailor.errors import require
from fedtailor.methods import local_training
from fedtailor.methods.hparams import LocalHParams, RunFacts, non_negative, positive


@dataclass(frozen=True, kw_only=True)
class HParams(LocalHParams, method="server learning"):
    """Hyper-parameters of the server's learning."""

    gamma: float = non_negative(1.0, "weight of the server's learning; 0: none")
    learn_lr: float | None = positive(
        None, "its step size before gamma (eta_0); None: sqrt(S) lr K / K0, in Python: lr"
    )
    learn_epochs: int | None = positive(
        None,
        "its passes over the server's data a round (E_s); "
        "None: as many as make its work a client's, in Python: 1",
    )
    learn_batch: int | None = positive(
        None, "server examples a step (B_0); None: as at the clients"
    )

    def resolve(self, facts: RunFacts) -> Self:
        """Replace None by what the paper's rules give for the run."""
        num_server_examples = max(1, facts.num_server_examples)
        steps_per_epoch = ceil(facts.examples_per_client / self.batch)
        client_steps = self.steps or self.epochs * steps_per_epoch
        learn_batch = self.learn_batch or self.batch
        learn_epochs = self.learn_epochs
        if learn_epochs is None:
            client_examples = facts.examples_per_client * client_steps
            # One division, as 10/3 rounded before it is multiplied by 3 may exceed 10.
            learn_epochs = ceil(client_examples / (num_server_examples * steps_per_epoch))
        learn_lr = self.learn_lr
        if learn_lr is None:
            server_steps = learn_epochs * ceil(num_server_examples / learn_batch)
            learn_lr = sqrt(facts.cohort_size) * self.lr * client_steps / server_steps
        return replace(
            super().resolve(facts),
            learn_lr=learn_lr,
            learn_epochs=learn_epochs,
            learn_batch=learn_batch,
        )


def sgd_step(loss: Loss, rate: float, params: Params, batches: tuple[Batch, ...]) -> Params:
    """Return the parameters after one step of SGD.

    Args:
        loss: Mean loss over the examples of a batch.
        rate: Step size.
        params: The model.
        batches: One batch.
    """
    return trees.add(params, autodiff.gradient(loss, params, batches[0]), -rate)


# Learning after the update


def finalize_update(
    finalize: Any, old_state: ServerState, carry: Tree, batches: tuple[Batch, ...]
) -> ServerState:
    """Finish the method's own update as a step, whose carry is the new server state from then on.

    Args:
        finalize: The end of the method's server routine.
        old_state: The server state before the round.
        carry: The carry of the method's server routine.
        batches: None: the step draws no data.
    """
    state: ServerState = finalize(old_state, carry)
    return state


def learn_after(
    loss: Loss, rate: float, old_state: ServerState, state: ServerState, batches: tuple[Batch, ...]
) -> ServerState:
    """Take one step from the model that the method's update has given.

    Args:
        loss: Mean loss over the examples of a batch.
        rate: gamma eta_0.
        old_state: The server state before the round, which is unused.
        state: The server state so far, with x.
        batches: One batch of server data.
    """
    return state._replace(params=sgd_step(loss, rate, state.params, batches))


# Learning beside the update


def init_parallel(
    init: Any, state: ServerState, cohort_update: CohortUpdate
) -> tuple[Tree, Params]:
    """Return the carry of the method's update, and beside it the model that was broadcast.

    Args:
        init: The start of the method's server routine.
        state: The server state before the round.
        cohort_update: The cohort's update.
    """
    return init(state, cohort_update), state.params


def update_parallel(
    step: Any, state: ServerState, carry: tuple[Tree, Params], batches: tuple[Batch, ...]
) -> tuple[Tree, Params]:
    """Take a step of the method's own update.

    Args:
        step: A step of the method's server routine.
        state: The server state before the round.
        carry: The carry of the method's update, and the model that learns beside it.
        batches: The batches of the step.
    """
    update_carry, params = carry
    return step(state, update_carry, batches), params


def learn_parallel(
    loss: Loss,
    rate: float,
    state: ServerState,
    carry: tuple[Tree, Params],
    batches: tuple[Batch, ...],
) -> tuple[Tree, Params]:
    """Take a step of learning that does not see the method's update.

    Args:
        loss: Mean loss over the examples of a batch.
        rate: gamma eta_0.
        state: The server state before the round, which is unused.
        carry: The carry of the method's update, and the model that learns beside it.
        batches: One batch of server data.
    """
    update_carry, params = carry
    return update_carry, sgd_step(loss, rate, params, batches)


def finalize_parallel(finalize: Any, state: ServerState, carry: tuple[Tree, Params]) -> ServerState:
    """Return the server state with the changes of both.

    Args:
        finalize: The end of the method's server routine.
        state: The server state before the round.
        carry: The carry of the method's update, and the model that has learned beside it.
    """
    update_carry, params = carry
    updated: ServerState = finalize(state, update_carry)
    learned_change = trees.sub(params, state.params)
    return updated._replace(params=trees.add(updated.params, learned_change))


# Building


def build(task: Task, hparams: HParams, method: Method, is_parallel: bool = False) -> Method:
    """Return a method whose server also learns; with gamma = 0, the method itself.

    Args:
        task: The loss that the server descends.
        hparams: How it learns.
        method: The method to go around.
        is_parallel: Learn beside the method's update, from the same model, instead of after it.
    """
    _check_composition(method)
    if not hparams.gamma:
        return method
    rate = hparams.gamma * (hparams.learn_lr or hparams.lr)
    specs = (BatchSpec("train", hparams.learn_batch or hparams.batch),)
    plan = BatchPlan(specs, epochs=hparams.learn_epochs or 1)
    if is_parallel:
        server = _learn_beside(method.server, Phase(partial(learn_parallel, task.loss, rate), plan))
    else:
        server = _learn_behind(method.server, Phase(partial(learn_after, task.loss, rate), plan))
    return method._replace(server=server, tags=method.tags | {"server-learning"})


def _learn_behind(update: Routine, learning: Phase) -> Routine:
    """Return the server's routine with a phase of learning after the update."""
    end_of_update = Phase(partial(finalize_update, update.finalize), BatchPlan((), steps=1))
    phases = (*update.phases, end_of_update, learning)
    return Routine(update.init, phases, local_training.pass_through)


def _learn_beside(update: Routine, learning: Phase) -> Routine:
    """Return the server's routine with a phase of learning from the model before the update."""
    update_phases = [
        Phase(partial(update_parallel, phase.step), phase.plan) for phase in update.phases
    ]
    return Routine(
        partial(init_parallel, update.init),
        (*update_phases, learning),
        partial(finalize_parallel, update.finalize),
    )


def _check_composition(method: Method) -> None:
    """Raise an `InputError` if server learning makes no sense around a method."""
    require(
        "server-learning" not in method.tags,
        f"server learning: the server of {method.name} learns already.",
    )
    require(
        bool(method.client.phases) and "no-broadcast" not in method.tags,
        f"server learning: the clients of {method.name} never see the server's model, "
        "so learning there helps no client.",
    )
