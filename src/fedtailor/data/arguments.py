"""Checks and conversions of what users pass: integers, amounts of examples, columns of numbers."""

from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import InputError, require


def require_int(name: str, option: str, value: object, minimum: int) -> None:
    """Refuse a value that is no integer, or one below a minimum.

    Args:
        name: Data set or partitioner that the error speaks of.
        option: Name of the option in the error.
        value: What the user passed for it.
        minimum: Smallest value allowed.
    """
    is_valid = isinstance(value, int | np.integer) and int(value) >= minimum
    require(
        is_valid, f"{name}: {option} must be a whole number of at least {minimum}, got {value!r}."
    )


def resolve_count(name: str, amount: float, available: int) -> int:
    """Return the number of examples that the server gets.

    Args:
        name: Data set that the error speaks of.
        amount: Number of examples (int), or share of the available ones (float) from 0 to less
            than 1, which is at least one example unless it is 0.
        available: Number of examples that a share is taken of; a number may exceed it.
    """
    if isinstance(amount, int | np.integer) and not isinstance(amount, bool):
        require(amount >= 0, f"{name}: server must be at least 0 examples, got {amount}.")
        return int(amount)
    is_share = isinstance(amount, float | np.floating) and 0 <= amount < 1
    require(
        is_share,
        f"{name}: server must be (x, y), a count, or a share from 0 to less than 1, got {amount!r}.",
    )
    minimum = int(amount > 0)
    return max(round(amount * available), minimum)


def to_array(name: str, column_name: str, values: Any) -> Array:
    """Convert tensors, lists and arrays to an array, without a copy where possible.

    Args:
        name: Data set that the error speaks of.
        column_name: Name of the values in the error.
        values: What to convert.
    """
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: {column_name} must be readable as an array, but is not ({error})."
        ) from error


def to_numeric_array(name: str, column_name: str, values: Any) -> Array:
    """Convert like `to_array` and refuse what is not numbers; booleans become 0 and 1.

    Args:
        name: Data set that the error speaks of.
        column_name: Name of the values in the error.
        values: What to convert.
    """
    array = to_array(name, column_name, values)
    require(
        array.dtype.kind in "fiub",
        f"{name}: {column_name} must be floating or integer numbers, got {array.dtype}.",
    )
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    return array
