"""Local: each client alone, nothing travels. The baseline that every personalised method has to beat.

    when="end"       a client trains from the initial model for `budget` epochs when it is personalised
    when="sampled"   a client goes on training its own model, kept in its memory, in each round in which it is sampled;
                     personalising adds `tune_epochs`

A newcomer begins with the initial model, so new clients are served fairly by when="end" only.
Identities: with when="sampled" and one client, a round is an epoch of SGD on that client's data.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedtailor import optim
from fedtailor.methods import pieces
from fedtailor.methods.pieces import option, positive
from fedtailor.optim import Optimiser
from fedtailor.task import Task
from fedtailor.types import Draw, Gathered, Method, Params, Phase, Plan, Result, State, Tree, Work


@dataclass(frozen=True, kw_only=True)
class Hyper(pieces.Local):
    """Hyper-parameters of training alone."""

    when: Literal["end", "sampled"] = option("end", "when clients train")
    budget: int = positive(50, 'epochs for when="end"')


def begin(optimiser: Optimiser, sent: tuple[()], own: Params) -> tuple[Params, Tree]:
    """Goes on from the client's own model."""
    return own, optimiser.init(own)


def keep(sent: tuple[()], carry: tuple[Params, Tree]) -> Result:
    """Everything stays with the client."""
    return Result(change=(), memory=carry[0])


def no_change(state: State, gathered: Gathered) -> tuple[()]:
    """Nothing has arrived."""
    return ()


def same_state(state: State, nothing: tuple[()]) -> State:
    """Nothing is learned at the server."""
    return state


def build(task: Task, hyper: Hyper) -> Method:
    """Training alone on a task."""
    optimiser = pieces.local_optimiser(hyper)
    training = partial(pieces.descend, optimiser, partial(pieces.plain, task.loss))
    if hyper.when == "end":
        in_rounds: tuple[Phase, ...] = ()
        personalise = Work(
            partial(begin, optimiser),
            (Phase(training, Plan((Draw("train", hyper.batch),), epochs=hyper.budget)),),
            pieces.model,
        )
    else:
        in_rounds = (Phase(training, hyper.plan()),)
        personalise = pieces.fine_tuning(hyper, task.loss)._replace(start=partial(begin, optim.sgd(hyper.lr)))
    return Method(
        name="local",
        init=pieces.nothing,
        broadcast=pieces.nothing,
        new_memory=pieces.params,
        client=Work(partial(begin, optimiser), in_rounds, keep),
        server=Work(no_change, (), same_state),
        personalise=personalise,
    )
