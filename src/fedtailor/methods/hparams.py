"""Hyper-parameters that methods share: declared once, validated in one place."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

from fedtailor.core import optimizers
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.types import (
    Batch,
    BatchPlan,
    BatchSpec,
    Phase,
    Tree,
)
from fedtailor.errors import is_number, require

T = TypeVar("T")


Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
"""A step of a phase: (given, carry, batches) -> carry."""


class RunFacts(NamedTuple):
    """What is known of a run before it begins: hyper-parameters left open may follow from it."""

    rounds: int
    cohort_size: int  # clients a round
    num_clients: int  # who may be drawn
    examples_per_client: float  # train examples of such a client, on average
    num_server_examples: int  # examples of the server


def option(default: T, meaning: str, bound: str = "") -> T:
    """Describe a hyper-parameter: its default, and what `fedtailor methods` says of it."""
    return field(default=default, metadata={"meaning": meaning, "least": bound})


def positive(default: T, meaning: str) -> T:
    """Describe a hyper-parameter that must be above zero."""
    return option(default, meaning, "positive")


def non_negative(default: T, meaning: str) -> T:
    """Describe a hyper-parameter that must be zero or above."""
    return option(default, meaning, "not negative")


@dataclass(frozen=True, kw_only=True)
class LocalHParams:
    """Hyper-parameters of training at a client, the same for every method that trains there."""

    lr: float = positive(0.1, "step size")
    epochs: int = positive(1, "passes over the client's train examples in a round")
    steps: int | None = positive(None, "a number of steps instead of epochs")
    batch: int = positive(20, "examples a step")
    optimizer: Literal["sgd", "adam", "adamw"] = option("sgd", "begins anew each round")
    momentum: float = option(0.0, "of SGD")
    weight_decay: float | None = non_negative(
        None, "how fast weights shrink; None: the optimizer's own, 0.01 for adamw, else 0"
    )
    finetune_lr: float | None = positive(None, "step size of personalizing by SGD; None: lr")
    finetune_epochs: int = non_negative(5, "passes over the client's examples when personalizing")
    finetune_steps: int | None = non_negative(None, "a number of steps instead of these passes")
    finetune_batch: int | None = positive(
        None, "examples a step when personalizing; None: as in training"
    )

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        validate_hparams(self)
        require(
            not self.momentum or self.optimizer == "sgd",
            f"{self.optimizer} takes no momentum; it is for sgd.",
        )
        make_local_optimizer(self)

    def batch_plan(self) -> BatchPlan:
        """What a client's training consumes in a round."""
        draws = (BatchSpec("train", self.batch),)
        return (
            BatchPlan(draws, epochs=self.epochs)
            if self.steps is None
            else BatchPlan(draws, steps=self.steps)
        )

    def finetune_phases(self, step: Step) -> tuple[Phase, ...]:
        """The phases of personalizing: such steps on the client's own examples, or none."""
        draws = (BatchSpec("adapt", self.finetune_batch or self.batch),)
        by_epoch = self.finetune_steps is None
        plan = (
            BatchPlan(draws, epochs=self.finetune_epochs)
            if by_epoch
            else BatchPlan(draws, steps=self.finetune_steps)
        )
        return (Phase(step, plan),) if (plan.epochs or plan.steps) else ()

    def resolve(self, facts: RunFacts) -> Self:
        """The same with what was left open filled in for a run."""
        return self


def validate_hparams(hparams: LocalHParams) -> None:
    """Refuse what is no number, not one of the choices or out of range; None passes where it is allowed."""
    name = type(hparams).__module__.rpartition(".")[2].replace("_", "-")
    hints = get_type_hints(type(hparams))
    for each in fields(hparams):
        hint = hints[each.name]
        value, kinds, prefix = (
            getattr(hparams, each.name),
            get_args(hint) or (hint,),
            f"{name}: {each.name} must",
        )
        if get_origin(hint) is Literal:
            require(value in kinds, f"{prefix} be {' or '.join(kinds)}, got {value!r}.")
        elif str in kinds:
            require(isinstance(value, kinds), f"{prefix} be text, got {value!r}.")
        elif hint is bool:
            require(isinstance(value, bool), f"{prefix} be true or false, got {value!r}.")
        elif not (value is None and type(None) in kinds):
            is_integer, bound = float not in kinds, each.metadata.get("least")
            require(
                is_number(value, is_integer),
                f"{prefix} be a {'whole number' if is_integer else 'number'}, got {value!r}.",
            )
            require(bound != "positive" or value > 0, f"{prefix} be positive, got {value}.")
            require(
                bound != "not negative" or value >= 0, f"{prefix} not be negative, got {value}."
            )


def make_local_optimizer(hparams: LocalHParams) -> Optimizer:
    """The clients' optimizer."""
    decay = hparams.weight_decay or 0.0
    if hparams.optimizer == "sgd":
        return optimizers.sgd(hparams.lr, hparams.momentum, weight_decay=decay)
    if hparams.optimizer == "adam":
        return optimizers.adam(hparams.lr, weight_decay=decay)
    return optimizers.adamw(
        hparams.lr, weight_decay=0.01 if hparams.weight_decay is None else decay
    )
