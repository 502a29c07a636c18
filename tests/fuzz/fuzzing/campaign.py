"""Processes that run the cases of a target, and the distinct findings.

A process that has loaded everything forks a template for each target, which prepares what cases
start from in a child of its own. Its workers, forked from it, run every other case, each in a
child.
"""

import fcntl
import json
import math
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fuzzing.arguments import ArgumentTarget
from fuzzing.cases import Target, make_draws
from fuzzing.children import FINE, Limits, Verdict, count_threads, redirect_output, run_case
from fuzzing.commands import run_command
from fuzzing.data_files import DataFileTarget
from fuzzing.folders import SMALL, FolderTarget
from fuzzing.specifications import SpecificationTarget
from fuzzing.stores import StoreTarget

TARGETS: dict[str, Callable[[], Target]] = {
    "specifications": SpecificationTarget,
    "arguments": ArgumentTarget,
    "data": DataFileTarget,
    "stores": StoreTarget,
    "folders": FolderTarget,
}


class Finished(NamedTuple):
    """A case that has ended."""

    target: str
    number: int
    description: str
    verdict: Verdict
    seconds: float


class Budget(NamedTuple):
    """How many cases of a target are run: those of these numbers, until the time is up."""

    first: int = 0
    num_cases: int | None = None  # None: as many as there is time for
    seconds: float | None = None  # None: as long as it takes
    workers: int = 2


@dataclass
class Finding:
    """Cases that ended in the same way at the same place."""

    target: str
    verdict: Verdict  # of the first of them
    description: str
    numbers: list[int] = field(default_factory=list)

    def format_command(self, seed: int) -> str:
        """Return the command that runs the first case again."""
        option = f" --seed {seed}" if seed else ""
        return f"python tools/fuzz.py --target {self.target}{option} --case {self.numbers[0]}"


class FailedTargetError(Exception):
    """A target could not be prepared."""


class Campaign(NamedTuple):
    """Cases of one target that are run together."""

    target: str
    seed: int
    budget: Budget
    limits: Limits
    folder: Path  # a new one for everything that is written


def warm_up(folder: Path) -> None:
    """Run commands once, so that forked processes need not load what they use.

    Args:
        folder: A new folder for what commands write.
    """
    work = folder / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    draws = np.random.default_rng(0)
    x = draws.integers(0, 17, (8, 1, 8, 8), np.uint8)
    np.savez("own.npz", x=x, y=draws.integers(0, 10, 8), client=np.arange(8) % 4)
    words = [*SMALL, "rounds=1"]
    run_command(["run", "method=ditto", *words, "out=run"])
    run_command(["compare", "fedavg", *words, "baselines=false", "seeds=0", "out=compared"])
    run_command(["personalize", "run", "--data", "own.npz", "--to", "personal"])
    run_command(["predict", "personal", "--data", "own.npz", "--to", "out.csv"])
    run_command(["data", "show", "digits"])
    run_command(["data", "add", "own", "--from", "own.npz"])
    run_command(["methods", "fedsim"])
    os.chdir(folder)


def run_campaign(campaign: Campaign) -> Iterator[Finished]:
    """Yield the cases of a target as they end, and remove the folder at the end."""
    campaign.folder.mkdir(parents=True)
    reader, writer = os.pipe()
    template = os.fork()
    if template == 0:
        os.close(reader)
        _leave(_run_template, campaign, writer)
    os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            for line in lines:
                number, description, verdict, seconds = json.loads(line)
                yield Finished(campaign.target, number, description, Verdict(*verdict), seconds)
    except BaseException:
        os.killpg(template, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(template, 0)
        problem = (campaign.folder / "template.err").read_text(errors="replace")
        shutil.rmtree(campaign.folder, ignore_errors=True)
    if status != 0:
        raise FailedTargetError(f"{campaign.target}: {problem}")


def run_single(campaign: Campaign, number: int) -> Finished:
    """Run one case, and leave everything that it wrote in the folder."""
    campaign.folder.mkdir(parents=True)
    target = _open_target(campaign)
    return _run_case(target, campaign, number)


def collect_findings(finished: Iterable[Finished]) -> list[Finding]:
    """Return distinct findings, those of most cases first."""
    findings: dict[tuple[str, str, str], Finding] = {}
    for case in finished:
        if case.verdict.kind in FINE:
            continue
        key = (case.target, case.verdict.kind, drop_line_numbers(case.verdict.place))
        finding = findings.setdefault(key, Finding(case.target, case.verdict, case.description))
        finding.numbers.append(case.number)
    return sorted(findings.values(), key=lambda finding: -len(finding.numbers))


def drop_line_numbers(place: str) -> str:
    """Return a place without numbers of lines, several of which may stand for one mistake."""
    return re.sub(r":\d+ ", " ", place)


def _open_target(campaign: Campaign) -> Target:
    """Prepare a target in a process of its own, and open it in this one."""
    target = TARGETS[campaign.target]()
    prepared = campaign.folder / "prepared"
    prepared.mkdir()
    child = os.fork()
    if child == 0:
        _leave(_prepare, target, prepared, campaign.folder)
    _, status = os.waitpid(child, 0)
    if status != 0:
        problem = (campaign.folder / "prepare.err").read_text(errors="replace")
        raise FailedTargetError(f"{campaign.target} cannot be prepared: {problem}")
    target.open(prepared)
    if count_threads() != 1:
        raise FailedTargetError(f"{campaign.target}: a thread was started, so nothing is forked.")
    return target


def _prepare(target: Target, prepared: Path, folder: Path) -> None:
    redirect_output(folder / "prepare.out", folder / "prepare.err")
    target.prepare(prepared)


def _run_template(campaign: Campaign, writer: int) -> None:
    """Open the target and run its cases in forked workers."""
    os.setsid()
    redirect_output(campaign.folder / "template.out", campaign.folder / "template.err")
    seconds = campaign.budget.seconds
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    target = _open_target(campaign)
    workers = []
    for index in range(campaign.budget.workers):
        worker = os.fork()
        if worker == 0:
            _leave(_run_worker, target, campaign, index, deadline, writer)
        workers.append(worker)
    statuses = [os.waitpid(worker, 0)[1] for worker in workers]
    if any(statuses):
        raise FailedTargetError("a worker has failed")


def _run_worker(
    target: Target, campaign: Campaign, index: int, deadline: float, writer: int
) -> None:
    """Run the cases whose numbers leave the worker's index as the rest of a division.

    Args:
        target: The target, which has been opened.
        campaign: What is run.
        index: The worker's index.
        deadline: The time on the monotonic clock after which no case begins.
        writer: The pipe to which cases are reported.
    """
    budget = campaign.budget
    end = math.inf if budget.num_cases is None else budget.first + budget.num_cases
    number = budget.first + index
    while number < end and time.monotonic() < deadline:
        finished = _run_case(target, campaign, number)
        shutil.rmtree(campaign.folder / f"case-{number}", ignore_errors=True)
        line = json.dumps(finished[1:]).encode() + b"\n"
        with (campaign.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # long lines are not written at once
            os.write(writer, line)
        number += budget.workers


def _run_case(target: Target, campaign: Campaign, number: int) -> Finished:
    started_at = time.monotonic()
    case = target.make_case(make_draws(campaign.seed, target.name, number))
    verdict = run_case(case, campaign.folder / f"case-{number}", campaign.limits)
    seconds = time.monotonic() - started_at
    return Finished(target.name, number, case.description, verdict, seconds)


def _leave(function: Callable[..., None], *args: object) -> None:
    """Call a function in a forked process, and exit without what the parent does at its end."""
    try:
        function(*args)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
