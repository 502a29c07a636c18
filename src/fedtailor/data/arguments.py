"""Checks and conversions of arguments: integers, amounts of examples, columns of numbers."""

from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import MAX_INTEGER, InputError, is_number, require, summarize_error
from fedtailor.storage.memory import require_memory

_CLASS_BYTES = 16
"""Least memory that a class takes: a weight and a bias of 4 bytes, and their gradients."""


def require_int(name: str, option: str, value: object, minimum: int) -> None:
    """Raise `InputError` unless `value` is an integer of at least `minimum`.

    Args:
        name: Data set or partitioner that the error names.
        option: Option that the error names.
        value: Value of the option.
        minimum: Smallest value allowed.
    """
    is_valid = is_number(value, integer=True) and int(value) >= minimum  # type: ignore[call-overload]
    limit = f"of at least {minimum}"
    if isinstance(value, int) and value > MAX_INTEGER:
        limit = f"from {minimum} to 2**63 - 1"
    require(is_valid, f"{name}: {option} must be a whole number {limit}, got {value!r}.")


def require_bool(name: str, option: str, value: object) -> None:
    """Raise `InputError` unless `value` is true or false.

    Args:
        name: Data set that the error names.
        option: Option that the error names.
        value: Value of the option.
    """
    is_valid = isinstance(value, bool | np.bool_)
    require(is_valid, f"{name}: {option} must be true or false, got {value!r}.")


def require_classes(name: str, classes: object) -> None:
    """Raise `InputError`, with the name of the data set, unless this can be a number of classes.

    None stands for real-valued targets, and "auto" for a number that follows from the targets.
    """
    is_count = is_number(classes, integer=True) and int(classes) >= 1  # type: ignore[call-overload]
    is_valid = classes is None or classes == "auto" or is_count
    require(is_valid, f"{name}: classes must be a whole number, None or 'auto', got {classes!r}.")
    if is_count:
        require_memory_for_classes(name, int(classes))  # type: ignore[call-overload]


def require_memory_for_classes(name: str, classes: int) -> None:
    """Raise `InputError`, with the name of the data set, for classes that no model could have."""
    subject = f"{name}: a model of {classes:,} classes"
    require_memory(subject, classes * _CLASS_BYTES, "number the classes from 0 on")


def require_scale(name: str, scale: object) -> None:
    """Raise `InputError`, with the name of the data set, unless the factor of x is positive."""
    is_positive = is_number(scale) and float(scale) > 0  # type: ignore[arg-type]
    require(is_positive, f"{name}: scale must be a positive number, got {scale!r}.")


def resolve_count(name: str, amount: float, available: int) -> int:
    """Return the number of examples (or of clients) that the server gets.

    Args:
        name: Data set that the error names.
        amount: A number (int), or a share of `available` from 0 to less than 1 (float); a share
            above 0 gives at least 1.
        available: Number that there are; an `amount` that is a number may exceed it.
    """
    if isinstance(amount, int | np.integer) and not isinstance(amount, bool):
        require(amount >= 0, f"{name}: server must be at least 0 examples, got {amount}.")
        return int(amount)
    is_share = isinstance(amount, float | np.floating) and 0 <= amount < 1
    require(
        is_share,
        f"{name}: server must be (x, y), a count, or a share from 0 to less than 1, got "
        f"{amount!r}.",
    )
    minimum = int(amount > 0)
    return max(round(amount * available), minimum)


def to_array(name: str, column_name: str, values: Any) -> Array:
    """Return a tensor, list or array as an array in this machine's byte order.

    Nothing is copied where that is possible.

    Args:
        name: Data set that the error names.
        column_name: Column that the error names.
        values: Values of the column.
    """
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: {column_name} must be readable as an array, but is not "
            f"({summarize_error(error)})."
        ) from error
    if array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))


def to_numeric_array(name: str, column_name: str, values: Any) -> Array:
    """Return values as an array of numbers like `to_array`; booleans become 0 and 1.

    Args:
        name: Data set that the error names.
        column_name: Column that the error names.
        values: Values of the column; others than numbers and booleans raise `InputError`.
    """
    array = to_array(name, column_name, values)
    require(
        array.dtype.kind in "fiub",
        f"{name}: {column_name} must be floating or integer numbers, got {array.dtype}.",
    )
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    return array
