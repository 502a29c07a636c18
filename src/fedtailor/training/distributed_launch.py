"""A run of several processes: rank 0 has the run, its folder and its listeners; the others only work for it.

So there is one way to run, resume and compare, which knows nothing of ranks but where it makes its engine.
"""

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.distributed.process_group import Ranks, get_ranks, join
from fedtailor.engines.factory import DistributedEngine
from fedtailor.errors import FedtailorError, InputError, LostRankError, require
from fedtailor.training import build
from fedtailor.training.command_lines import format_resume_command
from fedtailor.training.config import RunConfig
from fedtailor.training.dataset_summary import compute_fingerprint


class StartRun(NamedTuple):
    """Announces a run to the ranks that are to work for it."""

    config: dict[str, Any]
    run_path: str  # the run's folder
    chunk: int | None
    compile: factory.CompileMode
    threads: int
    remedy: str


class Shutdown(NamedTuple):
    """Announces that there is nothing more to do."""


def lead_or_follow(command: Callable[[], None]) -> None:
    """Runs a command on rank 0 with the others at its service, until it has ended one way or another."""
    ranks = join()
    if ranks.rank:
        _work_for_leader(ranks)
        return
    try:
        command()
    finally:
        ranks.shutdown(Shutdown())


def start_workers(
    config: RunConfig, run_path: Path, choices: tuple[str, int | None, bool], data: FederatedDataset
) -> None:
    """Tells the other ranks, if there are any, what to get ready for; raises if one of them cannot."""
    ranks, (engine, chunk, compile) = get_ranks(), choices
    if ranks.world_size == 1:
        return
    require(
        engine == "distributed",
        f"engine={engine} runs in one process, but torchrun has started {ranks.world_size}; "
        "take engine=distributed for a new run, or leave torchrun out.",
    )
    ranks.remedy = (
        f"what was saved before is whole, so go on with: {format_resume_command(run_path)}"
    )
    content, threads = config.model_dump(mode="json"), torch.get_num_threads()
    ranks.announce(
        StartRun(content, str(run_path.resolve()), chunk, compile, threads, ranks.remedy)
    )
    answers = ranks.all_gather_object(compute_fingerprint(data))
    ranks.finish_command()
    for rank, answer in enumerate(answers):
        if isinstance(answer, FedtailorError):
            raise InputError(f"Rank {rank} cannot take part: {answer}") from answer
        is_same = answer == answers[0]
        require(
            is_same,
            f"Rank {rank} cannot take part: its data set '{config.data}' is not the same as rank 0's.",
        )


def _work_for_leader(ranks: Ranks) -> None:
    """Works for rank 0, which alone decides when to stop, says what is to be said, and writes."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    try:
        command = ranks.receive_command()
        while isinstance(command, StartRun):
            command = _take_part(ranks, command)
        ranks.leave()
    except LostRankError as problem:
        ranks.leave()
        if str(problem):
            raise
        sys.exit(2)


def _take_part(ranks: Ranks, command: StartRun) -> Any:
    """Takes part in one run; returns what is announced after it."""
    ranks.remedy, ranks.round_idx = command.remedy, 0
    scratch = Path(command.run_path) / "scratch" / f"rank-{ranks.rank}"
    torch.set_num_threads(command.threads)
    try:
        engine, answer = _prepare_engine(command, scratch)
        ranks.all_gather_object(answer)
        return engine.follow_commands() if engine else ranks.receive_command()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _prepare_engine(command: StartRun, scratch: Path) -> tuple[DistributedEngine | None, Any]:
    """This rank's engine and the checksum of its data, or why it cannot take part."""
    try:
        config = RunConfig.model_validate(command.config)
        data = build.load_dataset(config)
        context = build.build_context(
            config,
            data,
            Path(command.run_path),
            scratch if config.client_state == "files" else None,
        )
        return factory.make_distributed_engine(
            context, command.chunk, command.compile
        ), compute_fingerprint(context.data)
    except FedtailorError as problem:
        return None, problem
    except Exception as problem:
        return None, InputError(
            f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"
        )
