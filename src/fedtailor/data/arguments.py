"""Check what users hand over: whole numbers, amounts of examples, columns of numbers."""

from typing import Any

import numpy as np

from fedtailor.data.examples import Array
from fedtailor.errors import InputError, require


def require_int(name: str, option: str, value: object, minimum: int) -> None:
    """Refuses what is not a whole number of at least `least`."""
    whole = isinstance(value, int | np.integer) and int(value) >= minimum
    require(whole, f"{name}: {option} must be a whole number of at least {minimum}, got {value!r}.")


def resolve_count(name: str, amount: float, available: int) -> int:
    """How many examples the server gets of those available: a share (float, at least one unless 0) or a count (int)."""
    if isinstance(amount, int | np.integer) and not isinstance(amount, bool):
        require(amount >= 0, f"{name}: server must be at least 0 examples, got {amount}.")
        return int(amount)
    real = isinstance(amount, float | np.floating) and 0 <= amount < 1
    require(
        real,
        f"{name}: server must be (x, y), a count, or a share from 0 to less than 1, got {amount!r}.",
    )
    return max(round(amount * available), int(amount > 0))


def to_array(name: str, column_name: str, values: Any) -> Array:
    """Convert tensors, lists and arrays to an array, without a copy where it is one."""
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: {column_name} must be readable as an array, but is not ({error})."
        ) from error


def to_numeric_array(name: str, column_name: str, values: Any) -> Array:
    """Values as an array of numbers, or a sentence; truth values become 0 and 1."""
    array = to_array(name, column_name, values)
    require(
        array.dtype.kind in "fiub",
        f"{name}: {column_name} must be floating or integer numbers, got {array.dtype}.",
    )
    return array.view(np.uint8) if array.dtype.kind == "b" else array
