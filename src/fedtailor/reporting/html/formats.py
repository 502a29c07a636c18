"""Numbers as they are written: digits, thousands, and units that fit."""

import math
from collections.abc import Sequence

_UNITS = {
    "mb": ((1e6, "TB"), (1e3, "GB"), (1.0, "MB")),
    "flops": ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")),
    "steps": ((1.0, "steps"),),
    "seconds": ((3600.0, "h"), (60.0, "min"), (1.0, "s")),
}
"""(size, name) of units by quantity, the largest first; `common.js` has the same."""
_MIN_COUNT = {"seconds": 5.0}
"""The least number of a unit from which on it is used: minutes from five on. Elsewhere it is 1."""
_MAX_DECIMALS = 6


def format_number(value: float, decimals: int) -> str:
    """Return a number with thousands separators and a true minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def choose_unit(quantity: str, values: Sequence[float]) -> tuple[float, str]:
    """Return (size, name) of the largest unit that fits the largest of the values.

    The smallest unit stands in where none fits. `quantity` is "mb", "flops", "steps" or "seconds".
    """
    largest = max(map(abs, values), default=0.0)
    min_count = _MIN_COUNT.get(quantity, 1.0)
    for size, name in _UNITS[quantity]:
        if largest >= size * min_count:
            return size, name
    return _UNITS[quantity][-1]


def choose_decimals(largest: float, num_digits: int) -> int:
    """Return the decimals, from 0 to 6, with which `largest` has `num_digits` digits."""
    if largest <= 0:
        return 0
    digits_before_point = math.floor(math.log10(largest)) + 1
    return min(max(num_digits - digits_before_point, 0), _MAX_DECIMALS)
