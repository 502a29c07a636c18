"""The command line: one module for each group of commands, and what they share.

Modules of commands import torch, and whatever imports it, inside their functions, so that `--help`
answers at once.
"""

import gc
import sys

import typer

from fedtailor.cli import data, inspect, personalize, show, study, train, tune, verify
from fedtailor.errors import FedtailorError

GC_THRESHOLD = 50_000
"""Allocations between two garbage collections.

With Python's default, half a second goes to scanning the objects that importing torch creates.
"""

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
    try:
        app()
    except FedtailorError as problem:
        print(f"fedtailor: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        print(f"fedtailor: '{problem.filename}': {problem.strerror}.", file=sys.stderr)
        sys.exit(2)
