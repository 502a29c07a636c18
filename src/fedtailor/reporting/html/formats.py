"""Numbers as they are written: digits, thousands, and units that fit."""

import math
from collections.abc import Sequence

_UNITS = {
    "mb": ((1e6, "TB"), (1e3, "GB"), (1.0, "MB")),
    "flops": ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")),
    "steps": ((1.0, "steps"),),
    "seconds": ((3600.0, "h"), (60.0, "min"), (1.0, "s")),
}
_MIN_COUNT = {"seconds": 5.0}  # so many of a larger unit before it is used


def format_number(value: float, decimals: int) -> str:
    """With a thousands separator and a true minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def choose_unit(kind: str, values: Sequence[float]) -> tuple[float, str]:
    """(how many make one, its name) of the largest unit that the largest of the values fills."""
    largest = max(map(abs, values), default=0.0)
    candidates = (unit for unit in _UNITS[kind] if largest >= unit[0] * _MIN_COUNT.get(kind, 1.0))
    return next(candidates, _UNITS[kind][-1])


def choose_decimals(largest: float, num_digits: int) -> int:
    """As many decimals as so many digits of the largest figure need, from none to six."""
    return min(max(num_digits - 1 - math.floor(math.log10(largest)), 0), 6) if largest > 0 else 0
