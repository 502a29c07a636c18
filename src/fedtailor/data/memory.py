"""Estimates of memory that are compared with this machine's before anything is allocated."""

import os

from fedtailor.errors import require

_CLASS_BYTES = 16
"""Least memory that a class takes: a weight and a bias of 4 bytes, and their gradients."""


def get_ram_bytes() -> int:
    """Return the size of this machine's RAM in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory_for_classes(name: str, classes: int) -> None:
    """Raise `InputError`, with the name of the data set, for classes that no model could have."""
    needed_bytes = classes * _CLASS_BYTES
    ram_bytes = get_ram_bytes()
    require(
        needed_bytes <= ram_bytes,
        f"{name}: a model of {classes:,} classes needs at least {needed_bytes / 1e9:,.1f} GB, but "
        f"this machine has {ram_bytes / 1e9:,.1f} GB; number the classes from 0 on.",
    )
