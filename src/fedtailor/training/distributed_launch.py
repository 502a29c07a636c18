"""A run in several processes: rank 0 has the run and its folder, the others compute for it.

So there is one way to run, resume and compare; only where it makes its engine does it know of
ranks.
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
from fedtailor.engines.compile_policy import CompileMode
from fedtailor.engines.distributed.engine import DistributedEngine
from fedtailor.engines.distributed.process_group import Ranks, get_ranks, join
from fedtailor.engines.factory import EngineOptions
from fedtailor.errors import FedtailorError, InputError, LostRankError, require
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.record.dataset_summary import compute_fingerprint
from fedtailor.training.resources import set_threads
from fedtailor.training.shell_commands import format_resume_command


class StartRun(NamedTuple):
    """A message to the other ranks to prepare for a run."""

    config: dict[str, Any]
    run_path: str  # the run's folder
    chunk: int | None
    compile: CompileMode
    threads: int
    remedy: str


class Shutdown(NamedTuple):
    """A message to the other ranks to exit."""


def lead_or_follow(command: Callable[[], None]) -> None:
    """Run a command on rank 0, which the other ranks compute for until it has ended."""
    ranks = join()
    if ranks.rank:
        _work_for_leader(ranks)
        return
    try:
        command()
    finally:
        ranks.shutdown(Shutdown())


def start_workers(
    config: RunConfig, run_path: Path, options: EngineOptions, data: FederatedDataset
) -> None:
    """Have the other ranks prepare for a run; raise an error if one of them cannot.

    Args:
        config: The specification of the run.
        run_path: Its folder, which all ranks can read.
        options: What the engine runs with; with several ranks it must be distributed.
        data: The data of rank 0, which the others must have too.
    """
    ranks = get_ranks()
    if ranks.world_size == 1:
        return
    require(
        options.engine == "distributed",
        f"engine={options.engine} runs in one process, but torchrun has started "
        f"{ranks.world_size}; "
        "use engine=distributed for a new run, or leave torchrun out.",
    )
    command = format_resume_command(run_path)
    ranks.remedy = f"the last checkpoint is intact, so resume with: {command}"
    ranks.announce(
        StartRun(
            config=config.model_dump(mode="json"),
            run_path=str(run_path.resolve()),
            chunk=options.chunk,
            compile=options.compile,
            threads=torch.get_num_threads(),
            remedy=ranks.remedy,
        )
    )
    answers = ranks.all_gather_object(compute_fingerprint(data))
    ranks.finish_command()
    for rank, answer in enumerate(answers):
        if isinstance(answer, FedtailorError):
            raise InputError(f"Rank {rank} cannot take part: {answer}") from answer
        require(
            answer == answers[0],
            f"Rank {rank} cannot take part: its data set '{config.data}' is not the same as rank "
            "0's.",
        )


def _work_for_leader(ranks: Ranks) -> None:
    """Compute for rank 0, which alone decides when to stop, prints and writes."""
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
    """Take part in one run, and return the command that comes after it."""
    ranks.remedy = command.remedy
    ranks.round_idx = 0
    scratch = Path(command.run_path) / "scratch" / f"rank-{ranks.rank}"
    set_threads(command.threads)
    try:
        engine, answer = _prepare_engine(command, scratch)
        ranks.all_gather_object(answer)
        return engine.follow_commands() if engine else ranks.receive_command()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _prepare_engine(command: StartRun, scratch: Path) -> tuple[DistributedEngine | None, Any]:
    """Return this rank's engine and the checksum of its data, or no engine and the error."""
    try:
        config = RunConfig.model_validate(command.config)
        data = from_config.load_dataset(config)
        client_state_dir = scratch if config.client_state == "files" else None
        # Rank 0 has run the same code, wherever what it trusts is kept.
        context = from_config.build_context(
            config, data, Path(command.run_path), client_state_dir, is_trusted=True
        )
        engine = factory.make_distributed_engine(context, command.chunk, command.compile)
        return engine, compute_fingerprint(context.data)
    except FedtailorError as problem:
        return None, problem
    except Exception as problem:
        first_line = next(iter(str(problem).splitlines()), "")
        return None, InputError(f"{type(problem).__name__}: {first_line}")
