"""The command line: one module for each group of commands, and what they share.

Modules of commands import torch, and whatever imports it, inside their functions, so that `--help`
answers at once.
"""

import gc
import os
import sys
from typing import Any

import typer

from fedtailor.cli import data, inspect, personalize, show, study, train, tune, verify
from fedtailor.cli.terminal import escape_what_cannot_be_encoded, print_error
from fedtailor.errors import FedtailorError

GC_THRESHOLD = 50_000
"""Allocations between two garbage collections.

With Python's default, half a second goes to scanning the objects that importing torch creates.
"""

_UsageError: Any = typer.BadParameter.__base__
"""What typer raises for options and arguments that a command does not have."""

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.callback()
def fedtailor() -> None:
    """Personalized federated learning with server-side data.

    Start with `fedtailor compare`. `fedtailor methods` and `fedtailor data` list methods and data
    sets.
    """


for module in (train, tune, study, inspect, show, personalize, verify):
    for command in module.COMMANDS:
        app.command(no_args_is_help=command in module.NEED_ARGS)(command)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; an expected error is printed as one sentence and exits with code 2."""
    gc.set_threshold(GC_THRESHOLD)
    escape_what_cannot_be_encoded()
    try:
        exit_code = app(prog_name="fedtailor", standalone_mode=False)
    except _UsageError as problem:
        _print_usage_error(problem)
        sys.exit(2)
    except FedtailorError as problem:
        print_error(str(problem))
        sys.exit(2)
    except OSError as problem:
        path = "" if problem.filename is None else f"'{os.fsdecode(problem.filename)}': "
        print_error(f"{path}{problem.strerror or problem}.")
        sys.exit(2)
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and "can't allocate memory" not in str(problem):
            raise
        print_error("the memory of this machine is full; choose smaller numbers, or fewer jobs.")
        sys.exit(2)
    if exit_code:
        sys.exit(exit_code)


def _print_usage_error(problem: Any) -> None:
    """Print what is wrong with the arguments, if they are not merely missing."""
    message = problem.format_message()
    if not message:  # the help of the command has been printed instead
        return
    command = problem.ctx.command_path if problem.ctx else "fedtailor"
    print_error(f"{message.rstrip('.')}; see: {command} --help")
