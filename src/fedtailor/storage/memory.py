"""The size of this machine's memory, and a check of what would not fit into it."""

import os

import torch

from fedtailor.errors import require


def get_ram_bytes() -> int:
    """Return the size of this machine's RAM in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def require_memory(subject: str, num_bytes: int, advice: str, device: str = "cpu") -> None:
    """Raise `InputError` for what is larger than a device's memory, before it is allocated.

    Args:
        subject: What would be allocated, with which the message begins.
        num_bytes: Its size, or the least that it can be.
        advice: End of the message, which says what to do.
        device: Where it would be allocated.
    """
    total_bytes = get_ram_bytes()
    if device.startswith("cuda"):
        total_bytes = torch.cuda.mem_get_info(device)[1]
    require(
        num_bytes <= total_bytes,
        f"{subject} needs at least {num_bytes / 1e9:,.1f} GB of memory, but {device} has "
        f"{total_bytes / 1e9:,.1f} GB; {advice}.",
    )
