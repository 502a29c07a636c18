"""Runs that are interrupted: a fault at the n-th touch of the disk, a kill at any moment; and what
is left of them.
"""

import errno
import json
import multiprocessing
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.cli import main
from fedtailor.engines.context import EngineContext
from fedtailor.training import from_config
from fedtailor.training.checkpoint import CheckpointManager, RestoredCheckpoint
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_run_config
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import RunOutcome, resume_run, start_run

SMALL = ["data.clients=12", "hidden=8", "cohort=4", "batch=200", "finetune_epochs=1", "threads=1"]
TIMES = {"seconds", "scoring_seconds", "times"}
TOUCHES = ("fsync", "replace", "mkdir", "unlink", "rmdir")


def small(*words: str) -> RunConfig:
    """The specification of a run that takes no time."""
    return read_run_config([*SMALL, *words])


class Fault:
    """Does something at the n-th time that the disk is touched; before that only counts."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at, self.act, self.count, self.met = at, act, 0, ""

    def touch(self, what: str) -> None:
        """Counts, and acts when it is time."""
        self.count += 1
        if self.count == self.at:
            self.met = what
            self.act()


class FaultyFile:
    """A file that fails in the midst of a write."""

    def __init__(self, file: Any, fault: Fault) -> None:
        self._file, self._fault = file, fault

    def write(self, content: Any) -> Any:
        """Writes one half, meets the fault, writes the other."""
        half = len(content) // 2
        self._file.write(content[:half])
        if self._fault.count + 1 == self._fault.at:
            self._file.flush()
        self._fault.touch("write")
        return self._file.write(content[half:])

    def __enter__(self) -> "FaultyFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def faulty(fault: Fault) -> Iterator[None]:
    """Inside, everything that changes the disk meets the fault; what does several things meets it
    after each.
    """
    plain_open = Path.open

    def open_file(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
        if not set(mode) & set("wax"):
            return plain_open(path, mode, *args, **more)
        fault.touch("open")
        return FaultyFile(plain_open(path, mode, *args, **more), fault)

    def before(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def touching(*args: Any, **more: Any) -> Any:
            fault.touch(name)
            return function(*args, **more)

        return touching

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", open_file)
        for name in TOUCHES:
            patch.setattr(os, name, before(name, getattr(os, name)))
        yield


def die(note: Path) -> None:
    """Dies at once, and leaves a line that says whether a checkpoint was being written."""
    frames = traceback.extract_stack()
    writing = any(
        frame.name == "save" and frame.filename.endswith("checkpoint.py") for frame in frames
    )
    handle = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, b"in a checkpoint\n" if writing else b"elsewhere\n")
    os.kill(os.getpid(), signal.SIGKILL)


def full_disk() -> None:
    """What the system says when a disk is full."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "disk")


def begin_or_go_on(
    words: list[str], out: Path, changes: dict[str, Any] | None = None
) -> RunOutcome:
    """Starts the run, or goes on with it, perhaps changed, if it is there."""
    if (out / "config.json").exists():
        return resume_run(out, changes=changes)
    return start_run(small(*words), out)


def _dying(words: list[str], out: Path, at: int, changes: dict[str, Any] | None) -> None:
    with faulty(Fault(at, partial(die, out.parent / "deaths"))):
        begin_or_go_on(words, out, changes)


def process(
    words: list[str], out: Path, at: int = -1, changes: dict[str, Any] | None = None
) -> ForkServerProcess:
    """A process of its own, forked from a warm one, that works on a run and dies at the n-th touch
    of the disk.
    """
    return warm().Process(target=_dying, args=(words, out, at, changes))


def warm() -> ForkServerContext:
    """Makes processes without the time that imports take."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["fedtailor.training.runner", "fedtailor.reporting.html", "pytest"]
    )
    return context


def _commanded(words: list[str], said: Path, most: int | None) -> None:
    """The command line, with its output in a file and at most so many bytes in each file that it
    writes.
    """
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(handle, stream)
    if most is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    sys.argv = ["fedtailor", *words]
    main()


def command(words: list[str], said: Path, most: int | None = None) -> ForkServerProcess:
    """The command line in a process of its own, forked from a warm one, and started."""
    child = warm().Process(target=_commanded, args=(words, said, most))
    child.start()
    return child


def touches(words: list[str], out: Path) -> int:
    """How often a whole run touches the disk."""
    fault = Fault(-1, full_disk)
    with faulty(fault):
        begin_or_go_on(words, out)
    return fault.count


def without_times(content: Any) -> Any:
    """A record without what may differ between two equal runs: times, and where they are."""
    if isinstance(content, dict):
        return {
            key: without_times(value)
            for key, value in content.items()
            if key not in TIMES | {"command"}
        }
    return [without_times(each) for each in content] if isinstance(content, list) else content


def at_the_end(out: Path) -> tuple[EngineContext, RestoredCheckpoint, np.ndarray]:
    """A finished run's setting and last checkpoint, and the clients who remember something."""
    run_dir = RunDir(out)
    spec = run_dir.read_config()
    setting = from_config.build_context(spec, from_config.load_dataset(spec), out)
    first = setting.init_server_state()
    found = CheckpointManager(out, run_dir.open_round_log()).restore_latest(
        first, setting.client_states, setting.method.init_client_state(first)
    )
    assert found is not None
    assert found.rounds_done == RunDir(out).read_record().num_rounds
    return setting, found, np.flatnonzero(setting.client_states.initialized.numpy())


def left(out: Path) -> dict[str, Any]:
    """What a finished run leaves that must be equal: model, client states, server state, scores."""
    setting, found, known = at_the_end(out)
    record = without_times(json.loads((out / "record.json").read_text()))
    notes = record["choices"].pop("notes")
    assert all("was skipped" in note or "asked for at first" in note for note in notes)
    return {
        "model": (out / "model.safetensors").read_bytes(),
        "state": (
            out / "checkpoints" / f"{found.rounds_done:06}" / "state.safetensors"
        ).read_bytes(),
        "known": known.tolist(),
        "client_state": [leaf.numpy().tobytes() for leaf in setting.client_states.read_rows(known)],
        "record": record,
    }


def litter(out: Path) -> list[str]:
    """Files that no finished run should leave."""
    return sorted(
        str(path.relative_to(out))
        for path in out.rglob("*")
        if path.name.startswith(".") or "scratch" in path.parts
    )
