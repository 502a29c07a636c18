"""Hyper-parameters: how methods declare them, and those of local training, which methods share.

A method's `HParams` is a frozen dataclass that inherits from `LocalHParams`. Its fields are
declared with `option`, `positive` or `non_negative`, and `validate_hparams` checks all of them.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from fedtailor.core import optimizers
from fedtailor.core.optimizers import Optimizer
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Phase, Tree
from fedtailor.errors import is_number, require

T = TypeVar("T")

Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
"""A step of a phase: (shared input, carry, batches) -> carry."""


# Declaring hyper-parameters


class RunFacts(NamedTuple):
    """What is known about a run before it begins, for hyper-parameters that follow from it."""

    rounds: int
    cohort_size: int  # clients a round
    num_clients: int  # clients that cohorts are drawn from
    examples_per_client: float  # mean number of train examples of these clients
    num_server_examples: int


@dataclass(frozen=True)
class HParamInfo:
    """What a dataclass field says about a hyper-parameter besides its type and default."""

    description: str  # shown by `fedtailor methods NAME`
    sign: Literal["any", "positive", "non-negative"] = "any"  # which numbers are allowed


_INFO_KEY = "hparam"
"""Key of the `HParamInfo` in a field's metadata."""


def option(default: T, description: str) -> T:
    """Declare a hyper-parameter that may be any value of its type."""
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description)})


def positive(default: T, description: str) -> T:
    """Declare a hyper-parameter that must be above zero."""
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description, "positive")})


def non_negative(default: T, description: str) -> T:
    """Declare a hyper-parameter that must be zero or above."""
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description, "non-negative")})


def get_hparam_info(hparam: Field[Any]) -> HParamInfo:
    """Return what a field declares, or an empty description if it declares nothing."""
    info: HParamInfo = hparam.metadata.get(_INFO_KEY, HParamInfo(""))
    return info


def validate_hparams(hparams: "LocalHParams") -> None:
    """Raise an `InputError` for a value of the wrong type, sign or choice.

    A field whose type includes None may be None.
    """
    type_hints = get_type_hints(type(hparams))
    for hparam in fields(hparams):
        _validate_value(
            getattr(hparams, hparam.name),
            type_hints[hparam.name],
            get_hparam_info(hparam),
            f"{hparams.method_name}: {hparam.name} must",
        )


def _validate_value(value: Any, type_hint: Any, info: HParamInfo, subject: str) -> None:
    """Check one value. `subject` begins the error message: "fedavg: lr must"."""
    types = get_args(type_hint) or (type_hint,)  # of a Literal: its choices
    if get_origin(type_hint) is Literal:
        require(value in types, f"{subject} be {' or '.join(types)}, got {value!r}.")
        return
    if str in types:
        require(isinstance(value, types), f"{subject} be text, got {value!r}.")
        return
    if type_hint is bool:
        require(isinstance(value, bool), f"{subject} be true or false, got {value!r}.")
        return
    if value is None and type(None) in types:
        return
    is_integer = float not in types
    kind = "whole number" if is_integer else "number"
    require(is_number(value, is_integer), f"{subject} be a {kind}, got {value!r}.")
    if info.sign == "positive":
        require(value > 0, f"{subject} be positive, got {value}.")
    if info.sign == "non-negative":
        require(value >= 0, f"{subject} not be negative, got {value}.")


# Local training


@dataclass(frozen=True, kw_only=True)
class LocalHParams:
    """Hyper-parameters of training at a client, the same for every method that trains there.

    A method has a subclass with its own: `class HParams(LocalHParams, method="fedprox")`.
    """

    method_name: ClassVar[str] = "local training"
    """Name of the method, with which error messages begin."""

    lr: float = positive(0.1, "step size")
    epochs: int = positive(1, "passes over the client's train examples in a round")
    steps: int | None = positive(None, "a number of steps instead of epochs")
    batch: int = positive(20, "examples a step")
    optimizer: Literal["sgd", "adam", "adamw"] = option(
        "sgd", "the clients' optimizer; its state starts anew each round"
    )
    momentum: float = option(0.0, "momentum of SGD")
    weight_decay: float | None = non_negative(
        None, "weight decay; None: the optimizer's own, 0.01 for adamw, else 0"
    )
    finetune_lr: float | None = positive(None, "step size of personalizing by SGD; None: lr")
    finetune_epochs: int = non_negative(5, "passes over the client's examples when personalizing")
    finetune_steps: int | None = non_negative(None, "a number of steps instead of these passes")
    finetune_batch: int | None = positive(
        None, "examples a step when personalizing; None: as in training"
    )

    def __init_subclass__(cls, method: str | None = None) -> None:
        """Set the name of the method; without one, it is that of the parent class."""
        super().__init_subclass__()
        if method is not None:
            cls.method_name = method

    def __post_init__(self) -> None:
        """Raise an `InputError` for values out of range."""
        validate_hparams(self)
        require(
            not self.momentum or self.optimizer == "sgd",
            f"{self.method_name}: {self.optimizer} takes no momentum; it is for sgd.",
        )

    def make_optimizer(self) -> Optimizer:
        """Return the clients' optimizer."""
        if self.optimizer == "adamw":
            decay = 0.01 if self.weight_decay is None else self.weight_decay
            return optimizers.adamw(self.lr, weight_decay=decay)
        decay = self.weight_decay or 0.0
        if self.optimizer == "adam":
            return optimizers.adam(self.lr, weight_decay=decay)
        return optimizers.sgd(self.lr, self.momentum, weight_decay=decay)

    def batch_plan(self) -> BatchPlan:
        """Return the batches of a client's training in a round."""
        specs = (BatchSpec("train", self.batch),)
        return make_batch_plan(specs, epochs=self.epochs, steps=self.steps)

    def train_phases(self, step: Step) -> tuple[Phase, ...]:
        """Return the phases of training with a step on the batches of `batch_plan`."""
        return (Phase(step, self.batch_plan()),)

    def finetune_phases(self, step: Step) -> tuple[Phase, ...]:
        """Return the phases of personalizing with a step on the client's `adapt` split.

        There are none if the hyper-parameters ask for no epochs or steps.
        """
        specs = (BatchSpec("adapt", self.finetune_batch or self.batch),)
        plan = make_batch_plan(specs, epochs=self.finetune_epochs, steps=self.finetune_steps)
        if not plan.epochs and not plan.steps:
            return ()
        return (Phase(step, plan),)

    def resolve(self, facts: RunFacts) -> Self:
        """Return the hyper-parameters with None replaced by what follows from the run."""
        return self


def make_batch_plan(
    specs: tuple[BatchSpec, ...], *, epochs: int, steps: int | None = None
) -> BatchPlan:
    """Return a plan of `steps` steps, or of `epochs` passes over the last spec if that is None.

    Args:
        specs: The streams of batches, of which a step gets one batch each.
        epochs: Number of passes.
        steps: Number of steps, which takes precedence.
    """
    if steps is None:
        return BatchPlan(specs, epochs=epochs)
    return BatchPlan(specs, steps=steps)
