"""Limits of this machine: threads and processes are checked before they are started.

Too many threads end the process or hang the machine, and more than a small model has work for make
it slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedtailor.engines.compile_policy import TrainingCounts
from fedtailor.errors import require
from fedtailor.ops import cpu

MAX_RESUMED_THREADS = 1024
"""Threads that a resumed run may keep on a machine with fewer processors than it began on."""
MAX_JOBS_PER_PROCESSOR = 4
"""Processes that may share a processor, which pays if they wait for a GPU."""
FLOPS_PER_THREAD = 2e7
"""Floating-point operations of a step that keep a thread busy; with less it mostly waits."""


def check_threads(threads: int | None) -> None:
    """Raise an InputError if a new run asks for more threads than there are processors."""
    processors = cpu.count_processors()
    require(
        threads is None or threads <= processors,
        f"threads must be at most {processors}, the number of processors, got {threads}.",
    )


def get_max_threads() -> int:
    """Return the threads that may be chosen: no more than processors, nor than torch has now.

    What torch has now is what the user has set by OMP_NUM_THREADS or `torch.set_num_threads`.
    """
    return max(1, min(torch.get_num_threads(), cpu.count_processors()))


def choose_threads(counts: TrainingCounts, has_stacks: bool) -> tuple[int, str]:
    """Return the number of threads for a run on a CPU, and the reason.

    Args:
        counts: The counts of its training.
        has_stacks: Whether the clients of a cohort take their steps together.
    """
    max_threads = get_max_threads()
    flops = counts.step_flops
    if has_stacks:
        flops *= max(1, counts.cohort_size)
    threads = max(1, min(max_threads, int(flops / FLOPS_PER_THREAD)))
    return threads, f"{threads} of {max_threads} for a step of {flops / 1e6:,.0f} MFLOP"


def set_threads(threads: int) -> None:
    """Set the number of torch's threads to that of a record, if it can be had."""
    limit = max(MAX_RESUMED_THREADS, cpu.count_processors())
    require(
        1 <= threads <= limit,
        f"The run began with {threads} threads, but from 1 to {limit} are possible; resume it on "
        "a machine like the first one.",
    )
    torch.set_num_threads(threads)


@contextmanager
def restore_threads() -> Iterator[None]:
    """Give torch back its number of threads at the end of the block."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
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
