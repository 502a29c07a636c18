"""Commands that train: run, compare, resume."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtailor.cli.progress import (
    ProgressReporter,
    choose_run_path,
    describe_added_methods,
    parse_command_args,
    run_on_all_ranks,
)

Args = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)
]
ShowFlag = Annotated[
    bool, typer.Option("--show", help="Print the whole specification, defaults included, and stop.")
]


@run_on_all_ranks
def run(args: Args = None, show: ShowFlag = False) -> None:
    """Trains one method and records everything.

    Keys: method, data, model, hidden, activation, pretrain, pretrain_lr, pretrain_batch, rounds, budget, cohort, seed,
    engine, device, precision, chunk, compile, threads, client_state, evaluate_every, eval_clients,
    final_eval_clients, eval_groups, target, tuned, checkpoint_every, log, label, out;
    `data.KEY` is for the data set; any other key is a hyper-parameter of the method. `--show` lists them all with their
    values.

    Methods are those that `fedtailor methods` lists, with words before them: fsl+fedsim. Data sets are those that
    `fedtailor data` lists. Models: mlp, linear, lenet, conv4, fsl-emnist, fsl-cifar, fedsim-femnist, resnet18,
    shakespeare, stackoverflow, lstm, FILE.py:NAME.

    Examples:

        fedtailor run method=fedsim data=digits rounds=30 seed=1 out=DIR

        fedtailor run my.toml lr=0.05 data.clients=50

        fedtailor run method=fedavg data=my.npz model=my_model.py:Net data.server=0.05

        fedtailor run method=fsl+fedsim pretrain=5 gamma=0.5
    """
    from fedtailor.training.command_lines import format_resume_command
    from fedtailor.training.overrides import read_run_config, to_toml
    from fedtailor.training.runner import start_run

    command_args = parse_command_args("run", args, ("out",))
    config = read_run_config(command_args.rest)
    if show:
        print(to_toml(config), end="")
        return
    out = command_args.out or choose_run_path(config.data)
    console = Console()
    with ProgressReporter(console) as reporter:
        outcome = start_run(config, out, (reporter,), reporter.should_stop)
    _print_results(console, out, [outcome.record], outcome.is_finished, format_resume_command(out))


@run_on_all_ranks
def compare(
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False),
    ] = None,
    show: ShowFlag = False,
) -> None:
    """Trains several methods on the same clients, cohorts and first weights: one table, one report.

    Keys are those of `fedtailor run`, with `seeds=0,1,2`, the default, for `seed`. A hyper-parameter alone is for every
    method that has it; `METHOD.KEY` is for one method. A method may come several times, told apart by a word behind an
    @. `jobs=N` works in N processes, one thread each. The same command with the same `out` goes on where it was
    stopped.

    local and fedavg are added if they are not named, unless `baselines=false`. `budget=gradients` or `budget=bytes`
    gives each method as many rounds as it can have for what `rounds` of fedavg cost.

    Examples:

        fedtailor compare

        fedtailor compare local fedavg fedsim data=digits rounds=30 seeds=1,2,3

        fedtailor compare fedavg fedsim data=synthetic lr=0.05 fedsim.lam=0.5 data.clients=50 out=DIR

        fedtailor compare per-fedavg per-fedavg@fo per-fedavg@fo.variant=fo budget=gradients
    """
    from fedtailor.experiments.compare import compare as run_all
    from fedtailor.training.overrides import read_comparison, to_toml

    command_args = parse_command_args("compare", args, ("jobs", "out"))
    requested = read_comparison(command_args.rest)
    comparison = requested.add_baselines()
    if show:
        print(to_toml(comparison.resolve()), end="")
        return
    out = command_args.out or choose_run_path(comparison.data)
    jobs = command_args.jobs
    console = Console()
    with ProgressReporter(console) as reporter:
        reporter.set_first_message(describe_added_methods(requested, comparison))
        outcomes = run_all(
            comparison, out, jobs, reporter.on_event, reporter.should_stop, reporter.print_message
        )
    finished = len(outcomes) == len(comparison.make_run_configs()) and all(
        each.is_finished for each in outcomes
    )
    _print_results(
        console, out, [each.record for each in outcomes], finished, command_args.format_command(out)
    )


@run_on_all_ranks
def resume(
    out: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
) -> None:
    """Goes on with a run that was stopped or killed, from its last checkpoint.

    Example:

        fedtailor resume DIR
    """
    from fedtailor.training.command_lines import format_resume_command
    from fedtailor.training.run_dir import RunDir
    from fedtailor.training.runner import resume_run

    console = Console()
    run_dir = RunDir(out)
    if (
        run_dir.read_config()
        and run_dir.has_record()
        and run_dir.read_record()["status"] == "finished"
    ):
        console.print(f"The run in {out} has finished already.", highlight=False)
        return
    with ProgressReporter(console) as reporter:
        outcome = resume_run(out, (reporter,), reporter.should_stop)
    _print_results(console, out, [outcome.record], outcome.is_finished, format_resume_command(out))


COMMANDS = (run, compare, resume)
NEED_ARGS = (resume,)


def _print_results(
    console: Console,
    out: Path,
    records: Sequence[Mapping[str, Any]],
    is_finished: bool,
    resume_hint: str,
) -> None:
    """The table and the report, or how to go on."""
    from fedtailor.reporting.comparison_table import TABLE_WIDTH, build_table
    from fedtailor.reporting.html import write_report
    from fedtailor.storage.atomic import explain_disk_errors

    path = out / "report.html"
    with explain_disk_errors(
        path, f"the runs are saved, so mend that and run: fedtailor report {shlex.quote(str(out))}"
    ):
        if records:
            write_report(records, path)
    if not is_finished:
        console.print(
            f"Stopped and saved. Go on with: {resume_hint}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(130)
    wide = console if console.is_terminal else Console(width=max(TABLE_WIDTH, console.width))
    wide.print(build_table(records, _make_title(records), wide.width), highlight=False)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)


def _make_title(records: Sequence[Mapping[str, Any]]) -> str:
    config, rounds = (
        records[0]["config"],
        sorted({record["config"]["rounds"] for record in records}),
    )
    equal = f"{rounds[0]} to {rounds[-1]} rounds (as many {config['budget']} for all)"
    return f"{config['data']}: {equal if len(rounds) > 1 else f'{rounds[0]} rounds'} of {config['cohort']} clients"
