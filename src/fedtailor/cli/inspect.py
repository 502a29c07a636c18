"""The command that predicts, before any long run, whether the server's data will help."""

from typing import Annotated

import typer

from fedtailor.cli.listing import JsonFlag
from fedtailor.cli.progress import parse_command_args
from fedtailor.cli.terminal import TerminalConsole, print_as_json


def inspect(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict whether the server's data will help a run, before and after personalizing.

    Keys are those of `fedtailor run`: the model, data, cohort, rounds and hyper-parameters that are
    inspected are those that would be trained. Without method= it is FedAvg's clients, with FSL and
    FedSIM. Trials are scored on validation clients. minutes= is how long they may take, by an
    estimate; without it about half a minute. No file is written.

    Examples:

        fedtailor inspect data=digits

        fedtailor inspect data=mnist data.server_from=rendered data.server=150 minutes=3

        fedtailor inspect method=fsl server_lr=1 data=digits --json
    """
    from fedtailor.inspection.inspect import inspect as run_inspection
    from fedtailor.inspection.text import (
        STAGE_NAMES,
        describe_reasons,
        describe_scope,
        describe_verdict,
        describe_workload,
        draw_stage,
        format_inspection,
    )
    from fedtailor.inspection.workload import MAX_SECONDS, Workload
    from fedtailor.training.overrides import read_run_config

    command_args = parse_command_args("inspect", list(args or []), ("minutes",))
    run_args = command_args.rest
    has_method = any(arg.startswith("method=") or arg.endswith(".toml") for arg in run_args)
    if not has_method:
        # FedAvg has the hyper-parameters of local training and few others.
        run_args = [*run_args, "method=fedavg"]
    minutes = command_args.get_number("minutes", float)
    max_seconds = MAX_SECONDS if minutes is None else 60 * minutes
    config = read_run_config(run_args)
    progress_console = TerminalConsole(stderr=True)

    def print_workload(workload: Workload, num_settings: int) -> None:
        sentence = describe_workload(workload, num_settings, config.rounds)
        progress_console.print(sentence, highlight=False)

    with progress_console.status("") as status:
        inspection = run_inspection(config, status.update, print_workload, max_seconds)
    if as_json:
        print_as_json(format_inspection(inspection))
        return
    console = TerminalConsole()
    console.print(
        f"{inspection.name}: {inspection.examples:,} examples at the server", highlight=False
    )
    console.print(describe_scope(inspection), highlight=False)
    for stage in STAGE_NAMES:
        console.print()
        for line in draw_stage(inspection, stage):
            console.print_line(line)
    console.print()
    for line in describe_reasons(inspection):
        console.print(line, highlight=False)
    for paragraph in describe_verdict(inspection):
        console.print()
        console.print(paragraph, highlight=False)


COMMANDS = (inspect,)
NEED_ARGS = ()
