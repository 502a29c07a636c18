"""Hyper-parameters: how methods declare them, and those of local training, which methods share.

A method's `HParams` is a frozen dataclass that inherits from `LocalHParams`. Its fields are
declared with `option`, `positive`, `non_negative` or `in_range`, and `validate_hparams` checks all
of them.
"""

import math
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
from fedtailor.core.trees import MAX_FLOAT32
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Phase, Tree
from fedtailor.errors import is_number, require

T = TypeVar("T")

Step = Callable[[Tree, Tree, tuple[Batch, ...]], Tree]
"""A step of a phase: (shared input, carry, batches) -> carry."""


# Declaring hyper-parameters


class RunFacts(NamedTuple):
    """Facts about a run before it begins, for hyper-parameters that follow from them."""

    rounds: int
    cohort_size: int  # clients a round
    num_clients: int  # clients that cohorts are drawn from
    examples_per_client: float  # mean number of train examples of these clients
    num_server_examples: int


class Range(NamedTuple):
    """The numbers between two bounds, which are included unless they are said to be excluded."""

    low: float = -math.inf
    high: float = math.inf
    excludes_low: bool = False
    excludes_high: bool = False

    def has(self, value: float) -> bool:
        """Return whether a number is in the range."""
        if self.excludes_low and value == self.low:
            return False
        if self.excludes_high and value == self.high:
            return False
        return self.low <= value <= self.high

    def __str__(self) -> str:
        """Return the range in short: `> 0`, `[0, 1)`; "" if it has all numbers."""
        if self == ANY_NUMBER:
            return ""
        if self.high == math.inf:
            return f"> {self.low:g}" if self.excludes_low else f">= {self.low:g}"
        opening = "(" if self.excludes_low else "["
        closing = ")" if self.excludes_high else "]"
        return f"{opening}{self.low:g}, {self.high:g}{closing}"


ANY_NUMBER = Range()
POSITIVE = Range(low=0, excludes_low=True)
NON_NEGATIVE = Range(low=0)


@dataclass(frozen=True)
class HParamInfo:
    """The description and the range of a hyper-parameter, kept in the metadata of its field."""

    description: str  # shown by `fedtailor methods NAME`
    range: Range = ANY_NUMBER  # of its numbers, if it has any


_INFO_KEY = "hparam"
"""Key of the `HParamInfo` in a field's metadata."""


def option(default: T, description: str) -> T:
    """Declare a hyper-parameter that may be any value of its type."""
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description)})


def positive(default: T, description: str) -> T:
    """Declare a hyper-parameter that must be above zero."""
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description, POSITIVE)})


def non_negative(default: T, description: str) -> T:
    """Declare a hyper-parameter that must be zero or above."""
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description, NON_NEGATIVE)})


def in_range(
    default: T, low: float, high: float, description: str, *, excludes_high: bool = False
) -> T:
    """Declare a hyper-parameter that must be in [`low`, `high`], or below `high`.

    Args:
        default: Its default.
        low: The least number that is allowed.
        high: The greatest number that is allowed.
        description: Its meaning, which `fedtailor methods NAME` shows.
        excludes_high: Whether `high` itself is not allowed.
    """
    allowed = Range(low, high, excludes_high=excludes_high)
    return field(default=default, metadata={_INFO_KEY: HParamInfo(description, allowed)})


def get_hparam_info(hparam: Field[Any]) -> HParamInfo:
    """Return what a field declares, or an empty description if it declares nothing."""
    info: HParamInfo = hparam.metadata.get(_INFO_KEY, HParamInfo(""))
    return info


def describe_allowed_values(hparams_class: "type[LocalHParams]") -> dict[str, str]:
    """Return the values that each hyper-parameter may have: `> 0`, `sgd, adam`; "" for any.

    A hyper-parameter whose default is None may also be None.
    """
    type_hints = get_type_hints(hparams_class)
    allowed = {}
    for hparam in fields(hparams_class):
        type_hint = type_hints[hparam.name]
        allowed[hparam.name] = str(get_hparam_info(hparam).range)
        if type_hint is bool:
            allowed[hparam.name] = "true, false"
        if get_origin(type_hint) is Literal:
            allowed[hparam.name] = ", ".join(str(choice) for choice in get_args(type_hint))
    return allowed


def validate_hparams(hparams: "LocalHParams") -> None:
    """Raise an `InputError` for a value of the wrong type, range or choice.

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
    types = get_args(type_hint) or (type_hint,)
    if get_origin(type_hint) is Literal:
        is_choice = value in types and not isinstance(value, bool | float)
        choices = " or ".join(str(choice) for choice in types)
        require(is_choice, f"{subject} be {choices}, got {value!r}.")
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
    if isinstance(value, int) and not isinstance(value, bool):
        kind += " of at most 64 bits"
    require(is_number(value, is_integer), f"{subject} be a {kind}, got {value!r}.")
    require(
        abs(value) <= MAX_FLOAT32,
        f"{subject} be at most {MAX_FLOAT32:.1e}, the largest float32, got {value}.",
    )
    rules = {POSITIVE: "be positive", NON_NEGATIVE: "not be negative"}
    rule = rules.get(info.range, f"be in {info.range}")
    require(info.range.has(value), f"{subject} {rule}, got {value}.")


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
    momentum: float = in_range(0.0, 0, 1, "momentum of SGD", excludes_high=True)
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

    def build_batch_plan(self) -> BatchPlan:
        """Return the batches of a client's training in a round."""
        specs = (BatchSpec("train", self.batch),)
        return make_batch_plan(specs, epochs=self.epochs, steps=self.steps)

    def build_train_phases(self, step: Step) -> tuple[Phase, ...]:
        """Return the phases of training with a step on the batches of `build_batch_plan`."""
        return (Phase(step, self.build_batch_plan()),)

    def build_finetune_phases(self, step: Step) -> tuple[Phase, ...]:
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


@dataclass(frozen=True, kw_only=True)
class AveragingHParams(LocalHParams):
    """Hyper-parameters of a method whose server averages what clients upload, all alike."""

    weigh: Literal["clients", "examples"] = option(
        "clients", "how clients count in averages: all alike, or by their number of train examples"
    )

    def choose_weight_split(self, split: str = "train") -> str | None:
        """Return the split whose size is a client's weight in averages; None: all weigh alike."""
        return split if self.weigh == "examples" else None


@dataclass(frozen=True, kw_only=True)
class WeightedAveragingHParams(AveragingHParams):
    """Hyper-parameters of a method whose server averages by numbers of examples."""

    weigh: Literal["clients", "examples"] = option(
        "examples", "how clients count in averages: all alike, or by their number of train examples"
    )


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
