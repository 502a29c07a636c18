"""The size of this machine's memory, and a check of what would not fit into it.

What a process may have is less than the machine has where a container or the shell sets a limit,
and less than that where other programs are at work.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from fedtailor.errors import require

ROOT = Path("/")
"""Where the files are with which Linux describes itself."""


class Memory(NamedTuple):
    """Memory that this process may use, in bytes."""

    total: int
    available: int  # now, without pushing other programs out


class _ControlGroupFiles(NamedTuple):
    """Names of the files of a control group, which is how Linux limits a container."""

    limit: str
    usage: str
    caches: tuple[str, ...]  # lines of memory.stat with what can be dropped at any time


_VERSION_1 = _ControlGroupFiles(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")
)
_VERSION_2 = _ControlGroupFiles("memory.max", "memory.current", ("active_file", "inactive_file"))


def get_memory(root: Path = ROOT) -> Memory:
    """Return the memory that this process may use: the least of what anything allows it.

    Args:
        root: The folder that stands for `/`.
    """
    limits = [*_read_machine(root), *_read_control_groups(root), *_read_process_limit(root)]
    total = min(limit.total for limit in limits)
    return Memory(total, min(total, *(max(0, limit.available) for limit in limits)))


def require_memory(subject: str, num_bytes: int, advice: str, device: str = "cpu") -> None:
    """Raise `InputError` for what is larger than a device's memory, before it is allocated.

    Args:
        subject: What would be allocated, with which the message begins.
        num_bytes: Its size, or the least that it can be.
        advice: End of the message, which says what to do.
        device: Where it would be allocated.
    """
    if device.startswith("cuda"):
        available_bytes, total_bytes = torch.cuda.mem_get_info(device)
    else:
        total_bytes, available_bytes = get_memory()
    beginning = f"{subject} needs at least {num_bytes / 1e9:,.1f} GB of memory, but {device} has "
    total = f"{total_bytes / 1e9:,.1f} GB"
    require(num_bytes <= total_bytes, f"{beginning}{total}; {advice}.")
    require(
        num_bytes <= available_bytes,
        f"{beginning}{available_bytes / 1e9:,.1f} of its {total} free; {advice}, or end other "
        "programs.",
    )


def _read_machine(root: Path) -> Iterator[Memory]:
    """Yield the memory of the machine; swap counts as free, as others can be moved there."""
    kilobytes = _read_table(root / "proc/meminfo")
    total = 1024 * kilobytes.get("MemTotal:", 0)
    if not total:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = total
    if "MemAvailable:" in kilobytes:
        available = 1024 * (kilobytes["MemAvailable:"] + kilobytes.get("SwapFree:", 0))
    yield Memory(total, available)


def _read_control_groups(root: Path) -> Iterator[Memory]:
    """Yield the limits of the control groups that this process is in.

    A container may know its group by the name that it has outside, where only the outermost folder
    is there to be read.
    """
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        fields = line.split(":", maxsplit=2)  # NUMBER:CONTROLLERS:NAME
        if len(fields) < 3:
            continue
        if fields[1] == "":
            files = _VERSION_2
            outermost = root / "sys/fs/cgroup"
        elif "memory" in fields[1].split(","):
            files = _VERSION_1
            outermost = root / "sys/fs/cgroup/memory"
        else:
            continue
        innermost = outermost / fields[2].lstrip("/")
        for folder in (innermost, *innermost.parents):
            yield from _read_control_group(folder, files)
            if folder == outermost:
                break


def _read_control_group(folder: Path, files: _ControlGroupFiles) -> Iterator[Memory]:
    """Yield the limit of a control group, if it has one."""
    limit = _read_text(folder / files.limit).strip()
    if not limit.isdecimal():  # there is no file, or it says "max"
        return
    usage = _read_text(folder / files.usage).strip()
    used_bytes = int(usage) if usage.isdecimal() else 0
    statistics = _read_table(folder / "memory.stat")
    cached_bytes = sum(statistics.get(name, 0) for name in files.caches)
    yield Memory(int(limit), int(limit) - max(0, used_bytes - cached_bytes))


def _read_process_limit(root: Path) -> Iterator[Memory]:
    """Yield the limit of this process's address space, which `ulimit -v` sets, if it has one."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    pages = _read_text(root / "proc/self/statm").split()
    used_bytes = int(pages[0]) * resource.getpagesize() if pages else 0
    yield Memory(limit, limit - used_bytes)


def _read_table(path: Path) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    table = {}
    for line in _read_text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdecimal():
            table[words[0]] = int(words[1])
    return table


def _read_text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read, as it need not be there."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
