"""Commands that train: run, compare, resume."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedtailor.cli.progress import (
    EXIT_DIVERGED,
    EXIT_STOPPED,
    CommandClock,
    ProgressReporter,
    TrustCodeFlag,
    TrustRunsFlag,
    describe_added_methods,
    parse_command_args,
    reserve_out,
    run_on_all_ranks,
    trust_runs,
)
from fedtailor.cli.terminal import TerminalConsole, format_path, print_text
from fedtailor.errors import FedtailorError, require

if TYPE_CHECKING:
    from fedtailor.training.record.schema import RunRecord

Args = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)
]
ShowFlag = Annotated[
    bool,
    typer.Option("--show", help="Print the whole specification, defaults included, and exit."),
]


@run_on_all_ranks
def run(
    args: Args = None,
    show: ShowFlag = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Begin with the weights of the run in DIR, and with its "
            "specification where KEY=VALUE do not say otherwise.",
        ),
    ] = None,
    trust_code: TrustCodeFlag = False,
) -> None:
    """Train one method and record everything.

    Keys: method, data, model, hidden, activation, pretrain, pretrain_lr, pretrain_batch, rounds,
    budget, finetune, cohort, seed, engine, device, precision, chunk, compile, threads,
    client_state, evaluate_every, eval_clients, final_eval_clients, eval_groups, target,
    patience, tuned, checkpoint_every, log, label, start_from, out; `data.KEY` is an option of the
    data set; any other key is a hyper-parameter of the method. `--show` prints all of them with
    their values.
    The data are divided by `seed` too; `data.seed=0` keeps one split whatever the seed.

    Methods are those that `fedtailor methods` lists, and wrappers around them: fsl+fedsim. Data
    sets are those that `fedtailor data` lists. Models: mlp, linear, lenet, conv4, fsl-emnist,
    fsl-cifar, fedsim-femnist, resnet18, shakespeare, stackoverflow, lstm, FILE.py:NAME.

    Examples:

        fedtailor run method=fedsim data=digits rounds=30 seed=1 out=DIR

        fedtailor run my.toml lr=0.05 data.clients=50

        fedtailor run method=fedavg data=my.npz model=my_model.py:Net data.server=0.05

        fedtailor run method=fsl+fedsim pretrain=5 gamma=0.5

        fedtailor run --from DIR lr=0.03 out=NEW
    """
    from fedtailor.training.from_config import trust_folder
    from fedtailor.training.overrides import format_toml, read_run_config
    from fedtailor.training.runner import start_run
    from fedtailor.training.shell_commands import format_resume_command
    from fedtailor.training.start_weights import make_branch_values

    command_args = parse_command_args("run", args, ("out",))
    base = None
    if source is not None:
        if trust_code:
            trust_folder(source)
        base = make_branch_values(source, command_args.rest)
    config = read_run_config(command_args.rest, base)
    if trust_code and config.start_from:
        trust_folder(Path(config.start_from))
    if show:
        print_text(format_toml(config).removesuffix("\n"))
        return
    console = TerminalConsole()
    clock = CommandClock()
    with (
        reserve_out(command_args.out, config.data) as out,
        ProgressReporter(console) as reporter,
        clock.time("checks and run"),
    ):
        outcome = start_run(config, out, (reporter,), reporter.should_stop)
    with clock.time("report"):
        _write_results(out, [outcome.record])
    if not outcome.is_finished:
        _exit_stopped(console, format_resume_command(out))
    _print_results(console, out, [outcome.record], clock)


@run_on_all_ranks
def compare(
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False),
    ] = None,
    show: ShowFlag = False,
    trust_code: TrustRunsFlag = False,
) -> None:
    """Compare methods on the same clients, cohorts and first weights, in one table and one report.

    Keys are those of `fedtailor run`, with `seeds=0,1,2,3,4`, the default, for `seed`. Each seed
    divides the data anew, for all methods alike; `data.seed=0` fixes one split for all seeds. A
    hyper-parameter by itself is for every method that has it; `METHOD.KEY` is for one method. A
    method may be listed several times, with a label after an @. `jobs=N` uses N processes, one
    thread each. To resume what was stopped, repeat the command with the same `out`.

    local and fedavg are added if they are not listed, unless `baselines=false`.
    `budget=gradients` or `budget=bytes` gives every method as many rounds as it can afford with
    what fedavg spends in `rounds`. Personalizing takes `finetune=5` epochs for every method, or
    with `finetune=paper` what its paper takes.

    Examples:

        fedtailor compare

        fedtailor compare local fedavg fedsim data=digits rounds=30 seeds=1,2,3

        fedtailor compare fedavg fedsim data=synthetic lr=0.2 fedsim.lam=0.5 data.clients=50 out=DIR

        fedtailor compare per-fedavg per-fedavg@fo per-fedavg@fo.variant=fo budget=gradients
    """
    from fedtailor.experiments.compare import compare as run_comparison
    from fedtailor.training.overrides import format_toml, read_comparison

    command_args = parse_command_args("compare", args, ("jobs", "out"))
    requested = read_comparison(command_args.rest)
    comparison = requested.add_baselines()
    if show:
        print_text(format_toml(comparison.resolve()).removesuffix("\n"))
        return
    jobs = command_args.jobs
    if trust_code:
        trust_runs(command_args.out)
    console = TerminalConsole()
    clock = CommandClock()
    with (
        reserve_out(command_args.out, comparison.data) as out,
        ProgressReporter(console) as reporter,
        clock.time("checks and runs"),
    ):
        reporter.set_first_message(describe_added_methods(requested, comparison))
        try:
            outcomes = run_comparison(
                comparison,
                out,
                jobs,
                reporter.on_event,
                reporter.should_stop,
                reporter.print_message,
            )
        except FedtailorError:
            if reporter.has_started:
                _show_ended_runs(console, out)
            raise
    records = [outcome.record for outcome in outcomes]
    with clock.time("report"):
        _write_results(out, records)
    # Runs that have not begun have no outcome.
    has_all_outcomes = len(outcomes) == len(comparison.make_run_configs())
    if not has_all_outcomes or not all(outcome.is_finished for outcome in outcomes):
        _exit_stopped(console, command_args.format_command(out))
    _print_results(console, out, records, clock)
    diverged = [record for record in records if record.status == "diverged"]
    if diverged:
        console.print_line(_describe_diverged(diverged, len(records)))
        raise typer.Exit(EXIT_DIVERGED)


def _describe_diverged(diverged: "Sequence[RunRecord]", num_runs: int) -> str:
    names = ", ".join(f"{record.name} (seed {record.config.seed})" for record in diverged)
    return f"{len(diverged)} of {num_runs} runs diverged: {names}. {diverged[0].problem}"


def _show_ended_runs(console: TerminalConsole, out: Path) -> None:
    """Show the runs that have ended although others have failed."""
    from fedtailor.experiments.executor import ENDED_STATUSES
    from fedtailor.training.run_dir import find_runs

    all_records = [run_dir.read_record() for run_dir in find_runs(out) if run_dir.has_record()]
    records = [record for record in all_records if record.status in ENDED_STATUSES]
    if records:
        _write_results(out, all_records)
        _print_results(console, out, records, CommandClock())


@run_on_all_ranks
def resume(
    out: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", show_default=False)
    ] = None,
    trust_code: TrustCodeFlag = False,
) -> None:
    """Resume a run that was stopped or killed, from its last checkpoint, or go on for longer.

    `rounds` may change, also of a run that has finished: the figures are those of a run of that
    many rounds from the start, and where a hyper-parameter follows from their number the change is
    refused. Of other keys checkpoint_every, client_state and log may change.

    Examples:

        fedtailor resume DIR

        fedtailor resume DIR rounds=500
    """
    from fedtailor.training.from_config import trust_folder
    from fedtailor.training.overrides import parse_value
    from fedtailor.training.run_dir import RunDir
    from fedtailor.training.runner import resume_run
    from fedtailor.training.shell_commands import format_resume_command

    console = TerminalConsole()
    run_dir = RunDir(out)
    run_dir.read_config()  # refuses a folder that holds no run
    if not args and run_dir.read_status() == "finished":
        console.print_line(f"The run in {format_path(out)} has finished already.")
        return
    changes = {}
    for arg in args or []:
        key, equals, text = arg.partition("=")
        require(bool(equals), f"resume: '{arg}' is not KEY=VALUE.")
        changes[key] = parse_value(text)
    if trust_code:
        trust_folder(out)
    clock = CommandClock()
    with ProgressReporter(console) as reporter, clock.time("checks and run"):
        outcome = resume_run(out, (reporter,), reporter.should_stop, changes=changes)
    with clock.time("report"):
        _write_results(out, [outcome.record])
    if not outcome.is_finished:
        _exit_stopped(console, format_resume_command(out))
    _print_results(console, out, [outcome.record], clock)


COMMANDS = (run, compare, resume)
NEED_ARGS = (resume,)


def _write_results(out: Path, records: "Sequence[RunRecord]") -> None:
    """Write the report of the runs that have begun, finished or not."""
    from fedtailor.reporting.html import write_report
    from fedtailor.storage.atomic import explain_disk_errors
    from fedtailor.training.shell_commands import quote_path

    if not records:
        return
    path = _get_report_path(out)
    command = f"fedtailor report {quote_path(out)}"
    with explain_disk_errors(path, f"the runs are saved, so fix that and run: {command}"):
        write_report(records, path)


def _exit_stopped(console: TerminalConsole, resume_command: str) -> NoReturn:
    console.print_line(f"Stopped and saved. Resume with: {resume_command}")
    raise typer.Exit(EXIT_STOPPED)


def _print_results(
    console: TerminalConsole, out: Path, records: "Sequence[RunRecord]", clock: CommandClock
) -> None:
    """Print the tables of runs that have ended, what they took, and where their report is.

    Args:
        console: Where to print.
        out: The folder of the runs.
        records: Their records.
        clock: What the command has taken so far.
    """
    from fedtailor.reporting.comparison_table import TABLE_WIDTH, build_tables
    from fedtailor.reporting.times import describe_times

    table_console = console
    if not console.is_terminal:
        # A file or a pipe has room for the whole table.
        table_console = TerminalConsole(width=max(TABLE_WIDTH, console.width))
    tables = build_tables(records, _make_title(records), table_console.width)
    table_console.print(tables, highlight=False)
    for line in describe_times(records):
        console.print_line(line)
    console.print_line(clock.describe())
    console.print_line(f"Report: {format_path(_get_report_path(out))}")


def _get_report_path(out: Path) -> Path:
    return out / "report.html"


def _make_title(records: "Sequence[RunRecord]") -> str:
    from fedtailor.training.record.summary import describe_early_stops

    config = records[0].config
    round_counts = sorted({record.num_rounds for record in records})
    rounds = f"{round_counts[0]} rounds"
    if len(round_counts) > 1:
        rounds = f"{round_counts[0]} to {round_counts[-1]} rounds"
    if len({record.config.rounds for record in records}) > 1:
        rounds += f" (equal {config.budget} for all)"
    rounds += describe_early_stops(records)
    return f"{config.data}: {rounds} of {config.cohort} clients"
