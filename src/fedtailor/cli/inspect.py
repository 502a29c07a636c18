"""The command that predicts, before any long run, whether the server's data will help."""

from typing import Annotated

import typer

from fedtailor.cli.listing import JsonFlag
from fedtailor.cli.progress import check_keys
from fedtailor.cli.terminal import TerminalConsole, print_as_json


def inspect(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict whether the server's data will help, from short trials scored on validation clients.

    Keys are those of `fedtailor run`: data, its options, model, cohort, and hyper-parameters of
    local training (lr, batch, epochs, ...). The mlp and the linear model get centered inputs here.
    No file is written.

    Examples:

        fedtailor inspect data=digits

        fedtailor inspect data=mnist data.server_from=rendered data.server=150

        fedtailor inspect data=digits data.server=0.02 --json
    """
    from fedtailor.inspection.inspect import inspect as run_inspection
    from fedtailor.inspection.text import (
        describe_reasons,
        describe_verdict,
        draw_bars,
        format_inspection,
    )
    from fedtailor.training.overrides import read_run_config

    inspect_args = list(args or [])
    check_keys("inspect", inspect_args)
    has_method = any(arg.startswith("method=") or arg.endswith(".toml") for arg in inspect_args)
    if not has_method:
        # FedAvg has the hyper-parameters of local training and no others.
        inspect_args.append("method=fedavg")
    config = read_run_config(inspect_args)
    with TerminalConsole(stderr=True).status("") as status:
        inspection = run_inspection(config, status.update)
    if as_json:
        print_as_json(format_inspection(inspection))
        return
    lines = [
        f"{inspection.name}: {inspection.examples:,} examples at the server",
        *describe_reasons(inspection),
        "",
        *draw_bars(inspection),
        "",
        describe_verdict(inspection),
    ]
    console = TerminalConsole()
    for line in lines:
        console.print(line, highlight=False)


COMMANDS = (inspect,)
NEED_ARGS = ()
