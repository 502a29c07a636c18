"""A case in a forked child, and the verdict on it, whatever the case does to its process.

Children are forked from a process that has loaded everything and has one thread. A child writes its
verdict into a pipe; one that dies, hangs or exits is judged by its parent.
"""

import faulthandler
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple
from unittest import mock

import fedtailor
from fedtailor.errors import FedtailorError
from fuzzing.cases import Case

FINE = ("ok", "refused", "working")
"""Kinds of verdicts that are no findings."""

LOG_FOLDER = "log"
"""Folder beside a case's own with everything that it prints."""

_LIBRARY = Path(fedtailor.__file__).parent
_POLL_SECONDS = 0.5
"""Time between two looks at what a child has used of a processor."""
_DUMP_SECONDS = 1.0
"""Time that a hanging child has to write down where it is."""
_SENTENCE_END = re.compile(r"[.!?]\s+[A-Z]")
_MISTAKE = re.compile("MemoryError|allocate memory|IndexError")
"""What no check of input says, but an error that was met later and put into a sentence."""
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\([^()]*\)")


class Verdict(NamedTuple):
    """How a case ended: one of `FINE`, or a kind of finding with its place."""

    kind: str
    place: str = ""  # equal for equal findings
    text: str = ""  # details, of any number of lines


class Limits(NamedTuple):
    """What a child may use."""

    seconds: float = 60.0  # of processors, which a busy machine does not use up
    waiting_seconds: float = 600.0  # of the clock, for a child that waits for what never comes
    memory_bytes: int = 3 << 30  # of address space, besides what its parent has
    file_bytes: int = 1 << 28  # of each file


class FindingError(Exception):
    """A case has done what it must not."""

    def __init__(self, kind: str, place: str, text: str = "") -> None:
        super().__init__(f"{kind}: {place}: {text}")
        self.verdict = Verdict(kind, place, text)


class WorkingError(BaseException):
    """A case is at work as it was asked to, and was stopped."""


class RefusedError(Exception):
    """A command has refused what it was given, as it should."""


def count_threads() -> int:
    """Return the number of threads of this process."""
    return len(list(Path("/proc/self/task").iterdir()))


def run_case(case: Case, folder: Path, limits: Limits) -> Verdict:
    """Run a case in a forked child, in a new folder, and return the verdict on it."""
    folder.mkdir(parents=True)
    log_folder = folder / LOG_FOLDER
    log_folder.mkdir()
    work_folder = folder / "work"
    work_folder.mkdir()
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_in_child(case, work_folder, log_folder, limits, writer)
    os.close(writer)
    message, is_late = _read_until_late(reader, child, limits)
    os.close(reader)
    place = _end_child(child, log_folder) if is_late else ""
    _, status = os.waitpid(child, 0)
    _kill_group(child)
    if is_late:
        return Verdict(
            "hang",
            place,
            f"more than {limits.seconds:.0f} s of a processor, or {limits.waiting_seconds:.0f} s",
        )
    if message:
        return Verdict(*json.loads(message))
    return _judge_death(status, log_folder)


def _read_until_late(reader: int, child: int, limits: Limits) -> tuple[bytes, bool]:
    """Return what is written until the pipe is closed, and whether a limit was met before."""
    parts: list[bytes] = []
    deadline = time.monotonic() + limits.waiting_seconds
    while True:
        ready, _, _ = select.select([reader], [], [], min(_POLL_SECONDS, limits.seconds))
        if ready:
            part = os.read(reader, 1 << 16)
            if not part:
                return b"".join(parts), False
            parts.append(part)
        elif time.monotonic() > deadline or _get_cpu_seconds(child) > limits.seconds:
            return b"", True


def _get_cpu_seconds(child: int) -> float:
    """Return what a child, and the processes that it has waited for, have used of processors."""
    try:
        stat = Path(f"/proc/{child}/stat").read_text()
    except OSError:  # it has ended
        return 0.0
    times = stat.rpartition(")")[2].split()[11:15]  # utime, stime, cutime, cstime
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _end_child(child: int, log_folder: Path) -> str:
    """Kill a child that hangs, and return the place where it did."""
    os.kill(child, signal.SIGUSR1)
    time.sleep(_DUMP_SECONDS)
    place = _read_stack(log_folder)
    os.kill(child, signal.SIGKILL)
    return place


def _kill_group(child: int) -> None:
    """Kill the processes that a child has left."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _judge_death(status: int, log_folder: Path) -> Verdict:
    """Return the verdict on a child that has ended without one."""
    stderr = "\n".join(
        path.read_text(errors="replace") for path in sorted(log_folder.glob("*.err"))
    )
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return Verdict("signal", f"{name} in {_read_stack(log_folder)}", stderr)
    last_line = next(iter(stderr.strip().splitlines()[-1:]), "")
    place = f"exit code {os.WEXITSTATUS(status)}: {normalize(last_line)}"
    return Verdict("exit", place, stderr)


def _read_stack(log_folder: Path) -> str:
    """Return the innermost function of the library in what faulthandler has written."""
    path = log_folder / "stack"
    frames = re.findall(r'File "(.*)", line (\d+) in (.*)', path.read_text(errors="replace"))
    for file, line, function in frames:
        if Path(file).is_relative_to(_LIBRARY):
            return f"{Path(file).relative_to(_LIBRARY)}:{line} {function}"
    return "an unknown place"


# In the child


def _run_in_child(
    case: Case, work_folder: Path, log_folder: Path, limits: Limits, writer: int
) -> None:
    """Run a case and write the verdict; does not return."""
    os.setsid()
    stack_file = (log_folder / "stack").open("w")
    faulthandler.enable(stack_file)
    faulthandler.register(signal.SIGUSR1, stack_file, all_threads=False)
    _set_limits(limits)
    redirect_output(log_folder / "case.out", log_folder / "case.err")
    os.chdir(work_folder)
    verdict = judge(case, work_folder)
    os.write(writer, json.dumps(verdict).encode())
    os._exit(0)


def _set_limits(limits: Limits) -> None:
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    address_space = used_pages * resource.getpagesize() + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # For a child that has lost the parent which would end it.
    cpu_seconds = math.ceil(2 * limits.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))


def redirect_output(out_path: Path, err_path: Path) -> None:
    """Send all output to files, encoded as for a terminal in UTF-8."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number, path in ((1, out_path), (2, err_path)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout = _open_stream(1, "strict")
    sys.stderr = _open_stream(2, "backslashreplace")


def _open_stream(number: int, errors: str) -> IO[str]:
    return open(number, "w", encoding="utf-8", errors=errors, closefd=False)


def judge(case: Case, work_folder: Path) -> Verdict:
    """Run a case in this process and return the verdict on it."""
    try:
        with remember_refusals():
            return Verdict(case.act(work_folder))
    except FindingError as finding:
        return finding.verdict
    except WorkingError:
        return Verdict("working")
    except FedtailorError as problem:
        return judge_sentence(str(problem), locate(problem.__traceback__))
    except BaseException as problem:
        kind = type(problem).__name__
        details = "".join(traceback.format_exception(problem)[-12:])
        summary = f"{kind}: {next(iter(str(problem).splitlines()), '')}"
        place = f"{locate(problem.__traceback__)}: {kind}"
        return Verdict("traceback", place, f"{details}\n{summary}")


def judge_sentence(message: str, place: str) -> Verdict:
    """Return the verdict on the message of an error: fine if it is one sentence on one line.

    Args:
        message: The message.
        place: Where the error was raised.
    """
    num_lines = len(re.split("[\r\n]", message))
    if num_lines != 1 or not message.strip():
        return Verdict("sentence", f"{place}: several lines, or none", message)
    if _SENTENCE_END.search(_drop_quoted(message)):
        return Verdict("sentence", f"{place}: more than one sentence", message)
    mistake = _MISTAKE.search(message)
    if mistake:
        return Verdict("sentence", f"{place}: quotes {mistake.group()!r}", message)
    if message.startswith("'None': "):
        return Verdict("sentence", f"{place}: names no file", message)
    return Verdict("refused", place, message)


def _drop_quoted(message: str) -> str:
    """Return a message without what is quoted or in parentheses, from the inside out."""
    shorter = _QUOTED.sub("", message)
    return shorter if shorter == message else _drop_quoted(shorter)


def locate(trace: TracebackType | None) -> str:
    """Return the innermost function of the library that an error came through."""
    place = "outside of the library"
    for frame in traceback.extract_tb(trace):
        path = Path(frame.filename)
        if path.is_relative_to(_LIBRARY):
            place = f"{path.relative_to(_LIBRARY)}:{frame.lineno} {frame.name}"
    return place


_last_refusal = ["an unknown place"]


def get_last_refusal() -> str:
    """Return where the last error of fedtailor was made."""
    return _last_refusal[0]


def remember_refusals() -> Any:
    """Return a context in which every error of fedtailor notes where it was made."""

    initialize = FedtailorError.__init__

    def note_place(error: FedtailorError, *args: Any) -> None:
        initialize(error, *args)
        for frame in reversed(traceback.extract_stack()):
            path = Path(frame.filename)
            if path.is_relative_to(_LIBRARY) and path.name != "errors.py":
                _last_refusal[0] = f"{path.relative_to(_LIBRARY)}:{frame.lineno} {frame.name}"
                return

    return mock.patch.object(FedtailorError, "__init__", note_place)


def normalize(text: str) -> str:
    """Return a message without what differs between cases: quoted text and numbers."""
    return re.sub(r"\d+", "N", _QUOTED.sub("...", text))[:120]
