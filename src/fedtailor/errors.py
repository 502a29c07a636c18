"""Errors of fedtailor, by whose doing they are, and helpers that check input and word messages.

Every message is one sentence: who, what was expected, what came, what to do.

FedtailorError
+-- InputError       the caller's data, model or options cannot be used (also a ValueError)
+-- RoutineError     a routine of a method failed at a stage, in a round (also a RuntimeError)
+-- DivergedError    training produced numbers that are not finite (also an ArithmeticError)
+-- LostRankError    a process of a distributed run is gone (also a RuntimeError)
"""

import math
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Integral, Real
from typing import Any

MAX_SUMMARY = 200
"""Number of characters to which the text of an error is cut."""

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**63 - 1
"""The whole numbers that fit into 64 bits."""


class FedtailorError(Exception):
    """Base of every error that fedtailor raises on purpose.

    What its message quotes is printable: a name with a line break leaves it one line.
    """

    def __init__(self, message: object = "") -> None:
        """Take the message."""
        super().__init__(make_printable(str(message)))


class InputError(FedtailorError, ValueError):
    """Data, a model or options that the caller passed and that cannot be used."""


class RoutineError(FedtailorError, RuntimeError):
    """Failure of a method's routine while an engine was running it."""


class DivergedError(FedtailorError, ArithmeticError):
    """Training whose parameters are no longer finite numbers."""


class LostRankError(FedtailorError, RuntimeError):
    """Loss of one of the processes that work on a distributed run."""


def require(condition: bool, message: str) -> None:
    """Raise `InputError(message)` unless the condition holds."""
    if not condition:
        raise InputError(message)


def require_distinct(subject: str, values: Iterable[Any], remedy: str = "leave one out") -> None:
    """Raise an InputError if a value is listed twice; 1 and 1.0 are one value, 1 and true are two.

    Args:
        subject: What lists the values; the message begins with it.
        values: The values, which need not be hashable.
        remedy: What to do, as the end of the message.
    """
    earlier: list[Any] = []
    for value in values:
        is_repeated = any(
            other == value and isinstance(other, bool) == isinstance(value, bool)
            for other in earlier
        )
        require(not is_repeated, f"{subject}: {value} is named twice; {remedy}.")
        earlier.append(value)


def import_extra(module: str, extra: str, feature: str) -> Any:
    """Import a module of an optional dependency, or raise an InputError that says how to get it.

    Args:
        module: Full name of the module; its first part is also the name of the package to install.
        extra: Extra of fedtailor that installs the package, as in `fedtailor[extra]`.
        feature: What needs the package; the message begins with it.
    """
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(
            f"{feature} needs the package {package}: pip install 'fedtailor[{extra}]'."
        ) from None


def join_items(items: Iterable[Any], conjunction: str = "and") -> str:
    """Return items as a list in a sentence, as in "one, two and three"."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {conjunction} {texts[-1]}"


def suggest_name(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: its closest match, or all choices."""
    names = list(choices)
    matches = get_close_matches(str(word), names, n=1)
    if matches:
        return f"did you mean {matches[0]}?"
    return f"choose from {', '.join(names)}."


def make_printable(text: str) -> str:
    r"""Return text from outside as a terminal can show it in one line, without obeying it.

    Control characters, line breaks, characters that are invisible or turn the direction of text,
    and bytes that could not be decoded are escaped, as in `\x1b`, `\n`, `\u202e` and `\xff`.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if letter in names:
        return names[letter]
    code = ord(letter)
    is_undecoded_byte = 0xDC80 <= code <= 0xDCFF
    if is_undecoded_byte or code < 0x80:
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def summarize_error(error: BaseException, has_type: bool = True) -> str:
    """Return the type and the first line of an error, as a part of another sentence.

    Without a text of its own it is the type alone.

    Args:
        error: The error.
        has_type: Whether to name the type if there is a text.
    """
    name = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return name
    text = lines[0].rstrip(".: ").replace(". ", "; ")
    if len(text) > MAX_SUMMARY:
        text = text[:MAX_SUMMARY] + " ..."
    return f"{name}: {text}" if has_type else text


def is_number(value: Any, integer: bool = False) -> bool:
    """Return whether `value` is a finite real number or, with `integer`, a whole one.

    Scalars of NumPy count; booleans do not, although Python takes them for integers. Whole numbers
    must fit into 64 bits, as tensors hold no others.
    """
    if type(value) is bool:
        return False
    if isinstance(value, Integral):
        return MIN_INTEGER <= int(value) <= MAX_INTEGER
    return not integer and isinstance(value, Real) and math.isfinite(value)
