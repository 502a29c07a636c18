"""The size of this machine's memory, and a check of what would not fit into it."""

import os

from fedtailor.errors import require


def get_ram_bytes() -> int:
    """Return the size of this machine's RAM in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(subject: str, num_bytes: int, advice: str) -> None:
    """Raise `InputError` for what is larger than this machine's RAM, before it is allocated.

    Args:
        subject: What would be allocated, with which the message begins.
        num_bytes: Its size, or the least that it can be.
        advice: End of the message, which says what to do.
    """
    ram_bytes = get_ram_bytes()
    require(
        num_bytes <= ram_bytes,
        f"{subject} would take {num_bytes / 1e9:,.1f} GB of memory, but this machine has "
        f"{ram_bytes / 1e9:,.1f} GB; {advice}.",
    )
