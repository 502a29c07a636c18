"""Pieces that methods are made of: local training, fine-tuning, and the server's plain update."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Literal, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

from fedtailor import calculus, optim, trees
from fedtailor.errors import is_number, require
from fedtailor.optim import Optimiser
from fedtailor.types import Batch, Draw, Gathered, Loss, Params, Phase, Plan, Result, State, Tree, Work

T = TypeVar("T")

Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
"""A step of a phase: (given, carry, batches) -> carry."""

Gradient = Callable[[Params, Params, Batch], Params]
"""What a client's steps go down: (the model it was sent, its own model, batch) -> gradient."""


class Facts(NamedTuple):
    """What is known of a run before it begins: hyper-parameters left open may follow from it."""

    rounds: int
    cohort: int  # clients a round
    clients: int  # who may be drawn
    examples: float  # train examples of such a client, on average
    server: int  # examples of the server


def option(default: T, meaning: str, least: str = "") -> T:
    """Describe a hyper-parameter: its default, and what `fedtailor methods` says of it."""
    return field(default=default, metadata={"meaning": meaning, "least": least})


def positive(default: T, meaning: str) -> T:
    """Describe a hyper-parameter that must be above zero."""
    return option(default, meaning, "positive")


def not_negative(default: T, meaning: str) -> T:
    """Describe a hyper-parameter that must be zero or above."""
    return option(default, meaning, "not negative")


@dataclass(frozen=True, kw_only=True)
class Local:
    """Hyper-parameters of training at a client, the same for every method that trains there."""

    lr: float = positive(0.1, "step size")
    epochs: int = positive(1, "passes over the client's train examples in a round")
    steps: int | None = positive(None, "a number of steps instead of epochs")
    batch: int = positive(20, "examples a step")
    optimiser: Literal["sgd", "adam", "adamw"] = option("sgd", "begins anew each round")
    momentum: float = option(0.0, "of SGD")
    weight_decay: float | None = not_negative(
        None, "how fast weights shrink; None: the optimiser's own, 0.01 for adamw, else 0"
    )
    tune_lr: float | None = positive(None, "step size of personalising by SGD; None: lr")
    tune_epochs: int = not_negative(5, "passes over the client's examples when personalising")
    tune_steps: int | None = not_negative(None, "a number of steps instead of these passes")
    tune_batch: int | None = positive(None, "examples a step when personalising; None: as in training")

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        check(self)
        require(not self.momentum or self.optimiser == "sgd", f"{self.optimiser} takes no momentum; it is for sgd.")
        local_optimiser(self)

    def plan(self) -> Plan:
        """What a client's training consumes in a round."""
        draws = (Draw("train", self.batch),)
        return Plan(draws, epochs=self.epochs) if self.steps is None else Plan(draws, steps=self.steps)

    def tuning(self, step: Step) -> tuple[Phase, ...]:
        """The phases of personalising: such steps on the client's own examples, or none."""
        draws = (Draw("adapt", self.tune_batch or self.batch),)
        by_epoch = self.tune_steps is None
        plan = Plan(draws, epochs=self.tune_epochs) if by_epoch else Plan(draws, steps=self.tune_steps)
        return (Phase(step, plan),) if (plan.epochs or plan.steps) else ()

    def for_run(self, facts: Facts) -> Self:
        """The same with what was left open filled in for a run."""
        return self


def check(hyper: Local) -> None:
    """Refuse what is no number, not one of the choices or out of range; None passes where it is allowed."""
    name = type(hyper).__module__.rpartition(".")[2].replace("_", "-")
    hints = get_type_hints(type(hyper))
    for each in fields(hyper):
        hint = hints[each.name]
        value, kinds, said = getattr(hyper, each.name), get_args(hint) or (hint,), f"{name}: {each.name} must"
        if get_origin(hint) is Literal:
            require(value in kinds, f"{said} be {' or '.join(kinds)}, got {value!r}.")
        elif str in kinds:
            require(isinstance(value, kinds), f"{said} be text, got {value!r}.")
        elif hint is bool:
            require(isinstance(value, bool), f"{said} be true or false, got {value!r}.")
        elif not (value is None and type(None) in kinds):
            whole, least = float not in kinds, each.metadata.get("least")
            require(is_number(value, whole), f"{said} be a {'whole number' if whole else 'number'}, got {value!r}.")
            require(least != "positive" or value > 0, f"{said} be positive, got {value}.")
            require(least != "not negative" or value >= 0, f"{said} not be negative, got {value}.")


def local_optimiser(hyper: Local) -> Optimiser:
    """The clients' optimiser."""
    decay = hyper.weight_decay or 0.0
    if hyper.optimiser == "sgd":
        return optim.sgd(hyper.lr, hyper.momentum, weight_decay=decay)
    if hyper.optimiser == "adam":
        return optim.adam(hyper.lr, weight_decay=decay)
    return optim.adamw(hyper.lr, weight_decay=0.01 if hyper.weight_decay is None else decay)


def plain(loss: Loss, sent: Params, own: Params, batch: Batch) -> Params:
    """Return the gradient of the loss alone."""
    return calculus.gradient(loss, own, batch)


def proximal(loss: Loss, lam: float, sent: Params, own: Params, batch: Batch) -> Params:
    """Return the gradient of f(phi) + lam/2 |phi - theta|^2, which holds phi near the model that was sent."""
    return calculus.proximal_gradient(loss, lam, sent, own, batch)


def training(hyper: Local, gradient: Gradient) -> Work:
    """A client's training: from the model it was sent down a gradient. The change travels, nothing stays."""
    optimiser = local_optimiser(hyper)
    return Work(partial(begin, optimiser), (Phase(partial(descend, optimiser, gradient), hyper.plan()),), change)


def fine_tuning(hyper: Local, loss: Loss) -> Work:
    """Personalising by SGD on the plain loss, from the model that was sent."""
    optimiser = optim.sgd(hyper.tune_lr or hyper.lr)
    return Work(partial(begin, optimiser), hyper.tuning(partial(descend, optimiser, partial(plain, loss))), model)


def begin(optimiser: Optimiser, sent: Params, memory: Tree) -> tuple[Params, Tree]:
    """Starts from the model that was sent."""
    return sent, optimiser.init(sent)


def descend(
    optimiser: Optimiser, gradient: Gradient, sent: Params, carry: tuple[Params, Tree], batches: tuple[Batch, ...]
) -> tuple[Params, Tree]:
    """One step of the optimiser down a gradient."""
    own, memory = carry
    return optimiser.update(gradient(sent, own, batches[0]), memory, own)


def change(sent: Params, carry: tuple[Params, Tree]) -> Result:
    """Uploads how far the client's model has come."""
    return Result(change=trees.sub(carry[0], sent), memory=())


def model(sent: Params, carry: tuple[Params, Tree]) -> Params:
    """The client's own model."""
    return carry[0]


def nothing(_: Tree) -> tuple[()]:
    """No state, or no memory."""
    return ()


def params(state: State) -> Params:
    """Sends the model."""
    return state.params


def mean_change(state: State, gathered: Gathered) -> Params:
    """The server takes up what the cohort's changes came to."""
    found: Params = gathered.change
    return found


def taken_up(given: Tree, own: T) -> T:
    """Work that starts or ends with what it was handed."""
    return own


def add(rate: float, state: State, found: Params) -> State:
    """theta + rate * change."""
    return state._replace(params=trees.add(state.params, found, rate))
