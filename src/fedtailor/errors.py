"""What can go wrong, by whose doing. Every message is one sentence: who, what was expected, what came, what to do.

FedtailorError
+-- InputError       the caller's data, model or options cannot be used (also a ValueError)
+-- WorkError        a function of a method failed at a stage, in a round, for a client (also a RuntimeError)
+-- DivergedError    training produced numbers that are not finite (also an ArithmeticError)
+-- LostRankError    one of the processes of a run is gone (also a RuntimeError)
"""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import Any


class FedtailorError(Exception):
    """Base of every error that fedtailor raises on purpose."""


class InputError(FedtailorError, ValueError):
    """Something that the caller handed over cannot be used."""


class RoutineError(FedtailorError, RuntimeError):
    """A step of a method failed while an engine was running it."""


class DivergedError(FedtailorError, ArithmeticError):
    """The model's parameters are no longer finite numbers."""


class LostRankError(FedtailorError, RuntimeError):
    """One of the processes that work on a run together is gone."""


def require(condition: bool, message: str) -> None:
    """Raises `InputError(sentence)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def import_extra(module: str, extra: str, feature: str) -> Any:
    """Import a module that comes with an optional extra, or say in a sentence how to get it."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(
            f"{feature} needs the package {package}: pip install 'fedtailor[{extra}]'."
        ) from None


def suggest_name(word: str, choices: Iterable[str]) -> str:
    """What to say to somebody who wrote a word that is not known."""
    names = list(choices)
    close = get_close_matches(word, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}."


def is_number(value: Any, integer: bool = False) -> bool:
    """Whether a value is a finite number, or a whole one, NumPy's included; truth values are not."""
    return (
        type(value) is not bool
        and isinstance(value, Integral if integer else Real)
        and math.isfinite(value)
    )
