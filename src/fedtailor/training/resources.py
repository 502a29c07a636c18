"""Limits of this machine: threads and processes are checked before they are started.

Too many threads end the process or hang the machine.
"""

import torch

from fedtailor.errors import require
from fedtailor.ops import cpu

MAX_RESUMED_THREADS = 1024
"""Threads that a resumed run may keep on a machine with fewer processors than it began on."""
MAX_JOBS_PER_PROCESSOR = 4
"""Processes that may share a processor, which pays if they wait for a GPU."""


def check_threads(threads: int | None) -> None:
    """Raise an InputError if a new run asks for more threads than there are processors."""
    processors = cpu.count_processors()
    require(
        threads is None or threads <= processors,
        f"threads must be at most {processors}, the number of processors, got {threads}.",
    )


def set_threads(threads: int) -> None:
    """Set the number of torch's threads to that of a record, if it can be had."""
    limit = max(MAX_RESUMED_THREADS, cpu.count_processors())
    require(
        1 <= threads <= limit,
        f"The run began with {threads} threads, but from 1 to {limit} are possible; resume it on "
        "a machine like the first one.",
    )
    torch.set_num_threads(threads)


def check_jobs(jobs: int) -> None:
    """Raise an InputError for a number of processes that this machine cannot have."""
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}.")
    processors = cpu.count_processors()
    limit = MAX_JOBS_PER_PROCESSOR * processors
    require(
        jobs <= limit,
        f"jobs must be at most {limit}, {MAX_JOBS_PER_PROCESSOR} for each processor, got {jobs}.",
    )
