"""Commands as a user would type them: to resume a run, and to repeat it."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtailor.errors import make_printable
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import parse_value

_FIRST_KEYS = ("method", "data", "rounds", "seed")
"""Keys that a command always has, in this order."""


def format_resume_command(out: Path) -> str:
    """Return the command that resumes a run."""
    return f"{format_program()} resume {quote_path(out)}"


def quote_path(path: Path) -> str:
    """Return a path as an argument of a command, which is no option if it begins with a dash."""
    text = str(path)
    return quote(f"./{text}" if text.startswith("-") else text)


def join_args(args: Iterable[str]) -> str:
    """Return arguments as they are typed in a shell."""
    return " ".join(quote(arg) for arg in args)


def quote(arg: str) -> str:
    r"""Return an argument as it is typed in a shell.

    Characters that cannot be printed need the quotes $'...' of bash and zsh, which know escapes.
    """
    if arg.isprintable():
        return shlex.quote(arg)
    escaped = arg.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{make_printable(escaped)}'"


def format_program() -> str:
    """Return the beginning of a command: fedtailor or, in a process of torchrun, torchrun."""
    num_processes = int(os.environ.get("WORLD_SIZE") or 1)
    num_machines = int(os.environ.get("GROUP_WORLD_SIZE") or 1)
    if num_processes == 1:
        return "fedtailor"
    options = "..." if num_machines > 1 else f"--nproc-per-node {num_processes}"
    return f"torchrun {options} -m fedtailor"


def format_run_command(config: RunConfig, out: Path) -> str:
    """Return the command that makes a run again, without keys that have their default."""
    values = config.model_dump(mode="json")
    first_values = config.model_dump(include=set(_FIRST_KEYS))
    default_config = RunConfig(**first_values)  # of that seed, which the seed of the data follows
    defaults = default_config.resolve().model_dump(mode="json")
    args = [f"{key}={values[key]}" for key in _FIRST_KEYS]
    for key, value in values.items():
        if key in _FIRST_KEYS or value == defaults[key]:
            continue
        if isinstance(value, dict):
            prefix = "data." if key == "data_options" else ""
            for inner_key, inner_value in value.items():
                if inner_value != defaults[key].get(inner_key):
                    args.append(f"{prefix}{inner_key}={format_value(inner_value)}")
        else:
            args.append(f"{key}={format_value(value)}")
    args.append(f"out={out}")
    return f"{format_program()} run {join_args(args)}"


def format_value(value: Any) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, list):
        return ",".join(map(format_value, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    # Text that would be read as a number or a truth value is quoted.
    return text if parse_value(text) == value else f'"{text}"'
