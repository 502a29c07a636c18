"""The command that looks at the server's data before any long run."""

import json
from typing import Annotated

import typer
from rich.console import Console

from fedtailor.cli.listing import JsonFlag


def inspect(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Says whether the server's data will help, from short trials that validation clients judge.

    Keys are those of `fedtailor run`: data, its options, model, cohort, and hyper-parameters of local training (lr,
    batch, epochs, ...). The mlp and the linear model see centered inputs here. Nothing is written.

    Examples:

        fedtailor inspect data=digits

        fedtailor inspect data=mnist data.server_from=rendered data.server=150

        fedtailor inspect data=digits data.server=0.02 --json
    """
    from fedtailor.inspection.inspect import inspect as look
    from fedtailor.inspection.text import (
        describe_reasons,
        describe_verdict,
        draw_bars,
        inspection_to_json,
    )
    from fedtailor.training.overrides import read_run_config

    inspect_args = args or []
    has_method = any(arg.startswith("method=") or arg.endswith(".toml") for arg in inspect_args)
    config, console = (
        read_run_config([*inspect_args, *([] if has_method else ["method=fedavg"])]),
        Console(),
    )
    with Console(stderr=True).status("") as status:
        inspection = look(config, status.update)
    if as_json:
        print(json.dumps(inspection_to_json(inspection), indent=1, allow_nan=False))
        return
    console.print(
        f"{inspection.name}: {inspection.examples:,} examples at the server",
        markup=False,
        highlight=False,
    )
    for line in (
        *describe_reasons(inspection),
        "",
        *draw_bars(inspection),
        "",
        describe_verdict(inspection),
    ):
        console.print(line, markup=False, highlight=False)


COMMANDS = (inspect,)
NEED_ARGS = ()
