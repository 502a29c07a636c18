"""Server learning: after any method's update the server goes on learning from its own data (Mai, La and Zhang, 2022).

    x_bar = what the method's update makes of x_t
    x'    = K0 steps of SGD at rate gamma eta_0 on the server's data, from x_bar       incremental (the paper's FSL)
    x'    = x_bar + (K0 such steps from x_t) - x_t                                     beside the clients (its FSL-p)

By the paper's rules E_s = ceil(n_i / n_0 E_c) passes, K0 = E_s ceil(n_0 / B_0) steps and eta_0 = sqrt(S) eta_l K / K0,
where a client takes K steps at rate eta_l in E_c epochs and S clients take part in a round.
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
class HParams(LocalHParams):
    """Hyper-parameters of the server's learning."""

    gamma: float = non_negative(1.0, "weight of the server's learning; 0: none")
    learn_lr: float | None = positive(
        None, "its step size before gamma (eta_0); None: sqrt(S) lr K / K0, in Python: lr"
    )
    learn_epochs: int | None = positive(
        None,
        "its passes over the server's data a round (E_s); None: as many as make its work a client's, in Python: 1",
    )
    learn_batch: int | None = positive(
        None, "server examples a step (B_0); None: as at the clients"
    )

    def resolve(self, facts: RunFacts) -> Self:
        """The server's rate and passes by the paper's rules, unless they are given."""
        filled, num_server_examples = super().resolve(facts), max(1, facts.num_server_examples)
        size = self.learn_batch or self.batch
        steps_per_epoch = ceil(facts.examples_per_client / self.batch)
        steps = self.steps or self.epochs * steps_per_epoch
        passes = self.learn_epochs or ceil(
            facts.examples_per_client * steps / (num_server_examples * steps_per_epoch)
        )  # one rounding: 10/3*3 is 10
        rate = self.learn_lr or sqrt(facts.cohort_size) * self.lr * steps / (
            passes * ceil(num_server_examples / size)
        )
        return replace(filled, learn_lr=rate, learn_epochs=passes, learn_batch=size)


def sgd_step(loss: Loss, rate: float, model: Params, batches: tuple[Batch, ...]) -> Params:
    """One step of SGD."""
    return trees.add(model, autodiff.gradient(loss, model, batches[0]), -rate)


def finalize_update(
    finalize: Any, old_state: ServerState, carry: Tree, batches: tuple[Batch, ...]
) -> ServerState:
    """Ends the method's own update; from here on the new state is what is carried."""
    state: ServerState = finalize(old_state, carry)
    return state


def learn_after(
    loss: Loss, rate: float, old_state: ServerState, state: ServerState, batches: tuple[Batch, ...]
) -> ServerState:
    """One step on from what the update gave."""
    return state._replace(params=sgd_step(loss, rate, state.params, batches))


def init_parallel(
    init: Any, state: ServerState, cohort_update: CohortUpdate
) -> tuple[Tree, Params]:
    """The method's update, and beside it the model that was broadcast."""
    return init(state, cohort_update), state.params


def update_parallel(
    step: Any, state: ServerState, carry: tuple[Tree, Params], batches: tuple[Batch, ...]
) -> Tree:
    """A step of the method's own update."""
    return step(state, carry[0], batches), carry[1]


def learn_parallel(
    loss: Loss,
    rate: float,
    state: ServerState,
    carry: tuple[Tree, Params],
    batches: tuple[Batch, ...],
) -> Tree:
    """A step of learning that does not see the update."""
    return carry[0], sgd_step(loss, rate, carry[1], batches)


def finalize_parallel(finalize: Any, state: ServerState, carry: tuple[Tree, Params]) -> ServerState:
    """Both changes together."""
    updated: ServerState = finalize(state, carry[0])
    return updated._replace(params=trees.add(updated.params, trees.sub(carry[1], state.params)))


def build(task: Task, hparams: HParams, method: Method, is_parallel: bool = False) -> Method:
    """A method whose server also learns: after its update, or beside it."""
    _check_composition(method)
    if not hparams.gamma:
        return method
    rate, update = hparams.gamma * (hparams.learn_lr or hparams.lr), method.server
    plan = BatchPlan(
        (BatchSpec("train", hparams.learn_batch or hparams.batch),),
        epochs=hparams.learn_epochs or 1,
    )
    if is_parallel:
        update_phases = tuple(
            Phase(partial(update_parallel, phase.step), phase.plan) for phase in update.phases
        )
        learning = Phase(partial(learn_parallel, task.loss, rate), plan)
        begin, end = (
            partial(init_parallel, update.init),
            partial(finalize_parallel, update.finalize),
        )
        return method._replace(server=Routine(begin, (*update_phases, learning), end))
    ending = Phase(partial(finalize_update, update.finalize), BatchPlan((), steps=1))
    learning = Phase(partial(learn_after, task.loss, rate), plan)
    return method._replace(
        server=Routine(update.init, (*update.phases, ending, learning), local_training.pass_through)
    )


def has_server_learning(method: Method) -> bool:
    """Whether the server of a method learns already."""
    steps = [getattr(phase.step, "func", None) for phase in method.server.phases]
    return learn_after in steps or learn_parallel in steps


def _check_composition(method: Method) -> None:
    """Refuses compositions that make no sense."""
    require(
        not has_server_learning(method),
        f"server learning: the server of {method.name} learns already.",
    )
    require(
        bool(method.client.phases) and method.broadcast is not local_training.no_state,
        f"server learning: the clients of {method.name} never see the server's model, "
        "so learning there helps no client.",
    )
