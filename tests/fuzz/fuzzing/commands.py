"""Commands of fedtailor in this process, and the verdict on what they print.

A command either works, or refuses with exit code 2 and one sentence on one line of stderr. Whatever
it prints may end up on a terminal, so control characters and bytes that are not UTF-8 are findings.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.cli import app, main
from fuzzing.children import (
    LOG_FOLDER,
    FindingError,
    RefusedError,
    get_last_refusal,
    judge_sentence,
    normalize,
    redirect_output,
)

EXIT_REFUSED = 2
EXIT_STOPPED = 130

_PREFIX = "fedtailor: "
_USAGE = "Usage: "
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, color, or turn text around on a terminal."""


class CommandResult(NamedTuple):
    """What a command has printed and exited with."""

    code: int
    out: str
    err: str


def run_command(words: Sequence[str]) -> CommandResult:
    """Run a command of fedtailor and judge what it prints; its exceptions come through.

    Raises:
        FindingError: The exit code or the output is not what a command may have.
        RefusedError: The command has refused, as it should.
    """
    log_folder = Path.cwd().parent / LOG_FOLDER
    log_folder.mkdir(exist_ok=True)
    number = len(list(log_folder.glob("command-*.out")))
    out_path = log_folder / f"command-{number}.out"
    err_path = log_folder / f"command-{number}.err"
    old_streams = (sys.stdout, sys.stderr)
    old_descriptors = [os.dup(1), os.dup(2)]
    redirect_output(out_path, err_path)
    sys.argv = ["fedtailor", *words]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = old_streams
        for descriptor, number in zip(old_descriptors, (1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
    is_refused = code == EXIT_REFUSED
    out = _decode("stdout", out_path.read_bytes())
    err = _decode("stderr, of a refusal" if is_refused else "stderr", err_path.read_bytes())
    result = CommandResult(code, out, err)
    _judge(result)
    return result


def is_verified_whole(name: str) -> bool:
    """Return whether `fedtailor verify` says that a folder or store is whole, if there is one."""
    callbacks = [command.callback for command in app.registered_commands]
    if "verify" not in [getattr(callback, "__name__", "") for callback in callbacks]:
        return False
    try:
        run_command(["verify", name])
    except RefusedError:
        return False
    return True


def _decode(stream: str, content: bytes) -> str:
    """Return what was printed; raise a FindingError for what no terminal should get."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        place = f"{stream}: bytes that are not UTF-8"
        raise FindingError("raw", place, repr(content[-500:])) from None
    raw = _RAW.search(text)
    if raw:
        line = text[: raw.start()].rpartition("\n")[2]
        is_refusal = text.startswith(_PREFIX)
        place = f"{stream}: control character{'' if is_refusal else f' after {normalize(line)!r}'}"
        raise FindingError("raw", place, ascii(text[max(0, raw.start() - 200) : raw.end() + 50]))
    return text


def _judge(result: CommandResult) -> None:
    if result.code == 0 or result.code == EXIT_STOPPED:
        return
    details = f"{result.out[-1000:]}\n{result.err[-1000:]}"
    if result.code != EXIT_REFUSED:
        last_line = next(iter(details.strip().splitlines()[-1:]), "")
        raise FindingError("exit", f"exit code {result.code}: {normalize(last_line)}", details)
    if result.err.startswith(_USAGE):  # wrong options, which typer refuses
        raise RefusedError(result.err)
    place = get_last_refusal()
    if not result.err.startswith(_PREFIX):
        raise FindingError("sentence", f"{place}: no sentence of fedtailor", details)
    message = result.err.removeprefix(_PREFIX).removesuffix("\n")
    verdict = judge_sentence(message, place)
    if verdict.kind != "refused":
        raise FindingError(*verdict)
    raise RefusedError(message)
