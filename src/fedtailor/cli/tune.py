"""The command that chooses hyper-parameters."""

import shlex
from typing import Annotated

import typer
from rich.console import Console

from fedtailor.cli.progress import (
    ProgressReporter,
    choose_run_path,
    describe_added_methods,
    parse_command_args,
    run_on_all_ranks,
)


@run_on_all_ranks
def tune(
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False),
    ] = None,
) -> None:
    """Chooses hyper-parameters on validation clients alone, with as many trials for every method.

    Keys are those of `fedtailor compare`; `tune.KEY=0.01,0.03,0.1` names values of a hyper-parameter to try for every
    method that has it, `tune.METHOD.KEY` for one, `tune.KEY=0.01..0.3` a range to draw from; `trials=4` says how many
    for each method. In a file these are tables: [tune], [tune.METHOD]. `jobs=N` works in N processes, one thread each.
    The same command goes on where it was stopped.
    `out/tuned.toml` is a comparison with what was chosen. As there, local and fedavg are added if they are not named.

    Examples:

        fedtailor tune fedavg fedsim data=digits tune.lr=0.03,0.1,0.3,1 out=tuned

        fedtailor tune fedavg fedsim tune.lr=0.01..1 tune.fedsim.lam=0.1..10 trials=8 out=tuned

        fedtailor compare tuned/tuned.toml seeds=0,1,2
    """
    from fedtailor.experiments.tune import build_trial_table
    from fedtailor.experiments.tune import tune as run_all
    from fedtailor.training.command_lines import format_program
    from fedtailor.training.overrides import read_comparison

    command_args = parse_command_args("tune", args, ("jobs", "out"))
    requested = read_comparison(command_args.rest)
    comparison = requested.add_baselines()
    jobs = command_args.jobs
    out = command_args.out or choose_run_path(f"tune-{comparison.data}")
    console = Console()
    with ProgressReporter(console) as reporter:
        reporter.set_first_message(describe_added_methods(requested, comparison))
        trials = run_all(
            comparison, out, jobs, reporter.on_event, reporter.should_stop, reporter.print_message
        )
    console.print(build_trial_table(trials))
    if any(trial.score is None for trial in trials):
        console.print(
            f"Stopped. Go on with: {command_args.format_command(out)}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
        raise typer.Exit(130)
    run_it = f"{format_program()} compare {shlex.quote(str(out / 'tuned.toml'))}"
    console.print(
        f"Chosen: {out / 'tuned.toml'}\nRun it with: {run_it}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


COMMANDS = (tune,)
NEED_ARGS = (tune,)
