"""The command line. torch is imported late, by the commands that need it, so that help answers at once."""

import gc
import sys

import typer

from fedtailor.cli import data, inspect, personalize, show, study, train, tune
from fedtailor.errors import FedtailorError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")


@app.callback()
def fedtailor() -> None:
    """Personalized federated learning with server-side data.

    Start with `fedtailor compare`; look at `fedtailor methods` and `fedtailor data`.
    """


for module in (train, tune, study, inspect, show, personalize):
    for command in module.COMMANDS:
        app.command(no_args_is_help=command in module.NEED_ARGS)(command)
app.add_typer(data.app, name="data")


def main() -> None:
    """Runs the command line; what the user got wrong ends in one sentence and exit code 2."""
    gc.set_threshold(
        50_000
    )  # else half a second goes to looking through all that importing torch makes
    try:
        app()
    except FedtailorError as problem:
        print(f"fedtailor: {problem}", file=sys.stderr)
        sys.exit(2)
    except OSError as problem:
        print(f"fedtailor: '{problem.filename}': {problem.strerror}.", file=sys.stderr)
        sys.exit(2)
