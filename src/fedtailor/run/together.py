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

from fedtailor import engines
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import Distributed
from fedtailor.engines.ranks import Ranks, join, joined
from fedtailor.errors import FedtailorError, InputError, LostRankError, require
from fedtailor.run import build
from fedtailor.run.commands import resume_command
from fedtailor.run.described import fingerprint
from fedtailor.run.spec import Spec


class Begin(NamedTuple):
    """Announces a run to the ranks that are to work for it."""

    spec: dict[str, Any]
    home: str  # the run's folder
    chunk: int | None
    compile: engines.Compile
    threads: int
    remedy: str


class End(NamedTuple):
    """Announces that there is nothing more to do."""


def lead_or_follow(command: Callable[[], None]) -> None:
    """Runs a command on rank 0 with the others at its service, until it has ended one way or another."""
    ranks = join()
    if ranks.rank:
        _follow(ranks)
        return
    try:
        command()
    finally:
        ranks.dismiss(End())


def begin(spec: Spec, home: Path, choices: tuple[str, int | None, bool], data: FederatedDataset) -> None:
    """Tells the other ranks, if there are any, what to get ready for; raises if one of them cannot."""
    ranks, (engine, chunk, compile) = joined(), choices
    if ranks.world == 1:
        return
    require(
        engine == "distributed",
        f"engine={engine} runs in one process, but torchrun has started {ranks.world}; "
        "take engine=distributed for a new run, or leave torchrun out.",
    )
    ranks.remedy = f"what was saved before is whole, so go on with: {resume_command(home)}"
    plain, threads = spec.model_dump(mode="json"), torch.get_num_threads()
    ranks.announce(Begin(plain, str(home.resolve()), chunk, compile, threads, ranks.remedy))
    answers = ranks.exchanged(fingerprint(data))
    ranks.done()
    for rank, answer in enumerate(answers):
        if isinstance(answer, FedtailorError):
            raise InputError(f"Rank {rank} cannot take part: {answer}") from answer
        same = answer == answers[0]
        require(same, f"Rank {rank} cannot take part: its data set '{spec.data}' is not the same as rank 0's.")


def _follow(ranks: Ranks) -> None:
    """Works for rank 0, which alone decides when to stop, says what is to be said, and writes."""
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)
    try:
        command = ranks.heard()
        while isinstance(command, Begin):
            command = _work(ranks, command)
        ranks.leave()
    except LostRankError as problem:
        ranks.leave()
        if str(problem):
            raise
        sys.exit(2)


def _work(ranks: Ranks, command: Begin) -> Any:
    """Takes part in one run; returns what is announced after it."""
    ranks.remedy, ranks.round = command.remedy, 0
    scratch = Path(command.home) / "scratch" / f"rank-{ranks.rank}"
    torch.set_num_threads(command.threads)
    try:
        engine, answer = _ready(command, scratch)
        ranks.exchanged(answer)
        return engine.follow() if engine else ranks.heard()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _ready(command: Begin, scratch: Path) -> tuple[Distributed | None, Any]:
    """This rank's engine and the checksum of its data, or why it cannot take part."""
    try:
        spec = Spec.model_validate(command.spec)
        data = build.dataset(spec)
        setting = build.setting(spec, data, Path(command.home), scratch if spec.memory == "files" else None)
        return engines.distributed(setting, command.chunk, command.compile), fingerprint(setting.data)
    except FedtailorError as problem:
        return None, problem
    except Exception as problem:
        return None, InputError(f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}")
