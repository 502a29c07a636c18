"""Several processes that work together, forked from a warm one; what torchrun would set, they set
themselves.
"""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from fedtailor.engines.distributed import heartbeat
from fedtailor.engines.distributed.process_group import join

Job = Callable[..., Any]


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def warm() -> ForkServerContext:
    """Makes processes without the time that imports take."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["fedtailor.training.runner", "fedtailor.reporting.html", "pytest"]
    )
    return context


def ranks(world: int, job: Job, *args: Any) -> list[ForkServerProcess]:
    """Processes that do one job together, started; they end with their parent."""
    port = free_port()
    found = [
        warm().Process(target=_as_rank, args=(rank, world, port, job, args), daemon=True)
        for rank in range(world)
    ]
    for each in found:
        each.start()
    return found


def ended(processes: list[ForkServerProcess], within: float = 60.0) -> list[int | None]:
    """The exit codes of processes, all of which must end in time."""
    for each in processes:
        each.join(within)
    codes = [each.exitcode for each in processes]
    for each in processes:
        each.kill()
    assert None not in codes, f"not all have ended: {codes}"
    return codes


def answer(place: Path, world: int, job: Job, *args: Any) -> Any:
    """What rank 0 returns from a job that all ranks do."""
    assert ended(ranks(world, _answering, place, job, args), within=600.0) == [0] * world
    return torch.load(place, weights_only=False)


def commanded(words: list[str], said: Path, patience: float | None = None) -> None:
    """The command line as a job, with each rank's output in a file, and less patience with silent
    ranks.
    """
    from fedtailor.cli import main

    rank = os.environ["RANK"]
    handle = os.open(said.with_name(f"{said.name}-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    if patience is not None:
        heartbeat.LOST_TIMEOUT = patience
    sys.argv = ["fedtailor", *words]
    main()


def _as_rank(rank: int, world: int, port: int, job: Job, args: tuple[Any, ...]) -> None:
    places = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in places.items()})
    torch.set_num_threads(1)
    job(*args)


def _answering(place: Path, job: Job, args: tuple[Any, ...]) -> None:
    here = join()
    result = job(*args)
    here.leave()
    if here.rank == 0:
        torch.save(result, place)
