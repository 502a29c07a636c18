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

from fedtailor import calculus, trees
from fedtailor.errors import require
from fedtailor.methods import pieces
from fedtailor.methods.pieces import not_negative, positive
from fedtailor.task import Task
from fedtailor.types import Batch, Draw, Gathered, Loss, Method, Params, Phase, Plan, State, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of the server's learning."""

    gamma: float = not_negative(1.0, "weight of the server's learning; 0: none")
    learn_lr: float | None = positive(
        None, "its step size before gamma (eta_0); None: sqrt(S) lr K / K0, in Python: lr"
    )
    learn_epochs: int | None = positive(
        None, "its passes over the server's data a round (E_s); None: as many as make its work a client's, in Python: 1"
    )
    learn_batch: int | None = positive(None, "server examples a step (B_0); None: as at the clients")

    def for_run(self, facts: pieces.Facts) -> Self:
        """The server's rate and passes by the paper's rules, unless they are given."""
        filled, own = super().for_run(facts), max(1, facts.server)
        size = self.learn_batch or self.batch
        a_epoch = ceil(facts.examples / self.batch)
        steps = self.steps or self.epochs * a_epoch
        passes = self.learn_epochs or ceil(facts.examples * steps / (own * a_epoch))  # one rounding: 10/3*3 is 10
        rate = self.learn_lr or sqrt(facts.cohort) * self.lr * steps / (passes * ceil(own / size))
        return replace(filled, learn_lr=rate, learn_epochs=passes, learn_batch=size)


def learn(loss: Loss, rate: float, model: Params, batches: tuple[Batch, ...]) -> Params:
    """One step of SGD."""
    return trees.add(model, calculus.gradient(loss, model, batches[0]), -rate)


def settle(finish: Any, old: State, carry: Tree, batches: tuple[Batch, ...]) -> State:
    """Ends the method's own update; from here on the new state is what is carried."""
    state: State = finish(old, carry)
    return state


def learn_after(loss: Loss, rate: float, old: State, state: State, batches: tuple[Batch, ...]) -> State:
    """One step on from what the update gave."""
    return state._replace(params=learn(loss, rate, state.params, batches))


def start_beside(start: Any, state: State, gathered: Gathered) -> tuple[Tree, Params]:
    """The method's update, and beside it the model that was broadcast."""
    return start(state, gathered), state.params


def update_beside(step: Any, state: State, carry: tuple[Tree, Params], batches: tuple[Batch, ...]) -> Tree:
    """A step of the method's own update."""
    return step(state, carry[0], batches), carry[1]


def learn_beside(loss: Loss, rate: float, state: State, carry: tuple[Tree, Params], batches: tuple[Batch, ...]) -> Tree:
    """A step of learning that does not see the update."""
    return carry[0], learn(loss, rate, carry[1], batches)


def finish_beside(finish: Any, state: State, carry: tuple[Tree, Params]) -> State:
    """Both changes together."""
    updated: State = finish(state, carry[0])
    return updated._replace(params=trees.add(updated.params, trees.sub(carry[1], state.params)))


def build(task: Task, hyper: Hyper, method: Method, beside: bool = False) -> Method:
    """A method whose server also learns: after its update, or beside it."""
    _refuse(method)
    if not hyper.gamma:
        return method
    rate, update = hyper.gamma * (hyper.learn_lr or hyper.lr), method.server
    plan = Plan((Draw("train", hyper.learn_batch or hyper.batch),), epochs=hyper.learn_epochs or 1)
    if beside:
        own = tuple(Phase(partial(update_beside, phase.step), phase.plan) for phase in update.phases)
        learning = Phase(partial(learn_beside, task.loss, rate), plan)
        begin, end = partial(start_beside, update.start), partial(finish_beside, update.finish)
        return method._replace(server=Work(begin, (*own, learning), end))
    ending = Phase(partial(settle, update.finish), Plan((), steps=1))
    learning = Phase(partial(learn_after, task.loss, rate), plan)
    return method._replace(server=Work(update.start, (*update.phases, ending, learning), pieces.taken_up))


def learns(method: Method) -> bool:
    """Whether the server of a method learns already."""
    steps = [getattr(phase.step, "func", None) for phase in method.server.phases]
    return learn_after in steps or learn_beside in steps


def _refuse(method: Method) -> None:
    """Refuses compositions that make no sense."""
    require(not learns(method), f"server learning: the server of {method.name} learns already.")
    require(
        bool(method.client.phases) and method.broadcast is not pieces.nothing,
        f"server learning: the clients of {method.name} never see the server's model, so learning there helps nobody.",
    )
