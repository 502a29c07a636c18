"""Cases with known faults, by which verdicts are checked: `python -m fuzzing.known_faults FOLDER`
runs all of them and prints the verdict on each as a line of JSON.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from fedtailor.errors import InputError
from fuzzing import commands
from fuzzing.cases import Case
from fuzzing.children import Limits, RefusedError, WorkingError, run_case

LIMITS = Limits(seconds=3.0, memory_bytes=1 << 28)
SHORT_LIMITS = LIMITS._replace(waiting_seconds=3.0)


def print_and_exit(out: str, err: str, code: int) -> None:
    """Do what a command does: print, and exit unless the code is 0."""
    print(out, end="")
    print(err, end="", file=sys.stderr)
    if code:
        sys.exit(code)


def run_faulty_command(out: str, err: str, code: int, work: Path) -> str:
    """Judge a command that prints and exits as told."""
    with mock.patch.object(commands, "main", partial(print_and_exit, out, err, code)):
        try:
            commands.run_command(["command"])
        except RefusedError:
            return "refused"
    return "ok"


def raise_error(error: BaseException, work: Path) -> str:
    """Raise an error."""
    raise error


def fail_with_index(work: Path) -> str:
    """Fail as a mistake does."""
    return ["ok"][len(str(work))]


def use_memory(work: Path) -> str:
    """Ask for more memory than there is."""
    return "ok" if bytearray(1 << 40) else "refused"


def kill_self(work: Path) -> str:
    """Die of a signal."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return "ok"


def leave(work: Path) -> str:
    """Exit without a word."""
    os._exit(3)


def wait(work: Path) -> str:
    """Do nothing, and do not end."""
    while True:
        time.sleep(60)


def loop(work: Path) -> str:
    """Work, and do not end."""
    while True:
        pass


def keep(work: Path) -> str:
    """End as a case without a fault does."""
    return "ok"


CASES: tuple[tuple[str, Callable[[Path], str]], ...] = (
    ("ok", keep),
    ("refused", partial(raise_error, InputError("fit: rounds must be a number, got 'x. Y'."))),
    ("refused", partial(raise_error, InputError("There is no 'x.\nY'."))),
    ("sentence", partial(raise_error, InputError("One sentence. Another one."))),
    ("sentence", partial(raise_error, InputError(""))),
    ("traceback", fail_with_index),
    ("traceback", use_memory),
    ("traceback", partial(raise_error, KeyboardInterrupt())),
    ("working", partial(raise_error, WorkingError())),
    ("signal", kill_self),
    ("exit", leave),
    ("hang", wait),
    ("hang", loop),
    ("ok", partial(run_faulty_command, "Done: é\n", "", 0)),
    ("refused", partial(run_faulty_command, "", "fedtailor: data: no.\n", 2)),
    ("sentence", partial(run_faulty_command, "", "fedtailor: data: no.\nNo.\n", 2)),
    ("sentence", partial(run_faulty_command, "", "Traceback\n", 2)),
    ("raw", partial(run_faulty_command, "", "fedtailor: '\x1b[31m' is no key.\n", 2)),
    ("raw", partial(run_faulty_command, "label \x9b1m\n", "", 0)),
    ("raw", partial(run_faulty_command, "label \u202e\n", "", 0)),
    ("exit", partial(run_faulty_command, "", "Aborted.\n", 1)),
)
"""The kind of verdict that is expected, and the case."""


def main() -> None:
    """Run all cases below a folder, and print the verdicts."""
    for number, (_, act) in enumerate(CASES):
        limits = SHORT_LIMITS if act is wait else LIMITS
        verdict: Any = run_case(Case("", act), Path(sys.argv[1], str(number)), limits)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
