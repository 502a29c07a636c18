"""The command that chooses hyper-parameters: tune."""

from typing import Annotated

import typer

from fedtailor.cli.progress import (
    EXIT_STOPPED,
    ProgressReporter,
    TrustRunsFlag,
    describe_added_methods,
    parse_command_args,
    reserve_out,
    run_on_all_ranks,
    trust_runs,
)
from fedtailor.cli.terminal import TerminalConsole, format_path


@run_on_all_ranks
def tune(
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False),
    ] = None,
    trust_code: TrustRunsFlag = False,
) -> None:
    """Tune hyper-parameters on validation clients alone, with the same number of trials per method.

    Keys are those of `fedtailor compare`; `tune.KEY=0.01,0.03,0.1` lists values to try of a
    hyper-parameter, for every method that has it, and `tune.METHOD.KEY` for one method;
    `tune.KEY=0.01..0.3` is a range to sample from; `trials=4` is the number of trials per method.
    They are run on the data of each of `seeds=0,1,2,3,4`, and each seed's own validation clients
    choose for it; with `data.seed=0` all seeds share one split, and trials are run once.
    In a file these are tables: [tune], [tune.METHOD]. `jobs=N` uses N processes, one thread each.
    To resume what was stopped, repeat the command with the same `out`.

    The result, `out/tuned.toml`, is a comparison with the chosen values. local and fedavg are added
    if they are not listed, unless `baselines=false`.

    Examples:

        fedtailor tune fedavg fedsim data=digits tune.lr=0.03,0.1,0.3,1 out=tuned

        fedtailor tune fedavg fedsim tune.lr=0.01..1 tune.fedsim.lam=0.1..10 trials=8 out=tuned

        fedtailor tune fedavg fedsim data.seed=0 tune.lr=0.03,0.1,0.3,1 out=tuned

        fedtailor compare tuned/tuned.toml
    """
    from fedtailor.experiments.tune import build_trial_table, describe_trial_table
    from fedtailor.experiments.tune import tune as run_trials
    from fedtailor.training.overrides import read_comparison
    from fedtailor.training.shell_commands import format_program, quote_path

    command_args = parse_command_args("tune", args, ("jobs", "out"))
    requested = read_comparison(command_args.rest)
    comparison = requested.add_baselines()
    jobs = command_args.jobs
    if trust_code:
        trust_runs(command_args.out)
    console = TerminalConsole()
    with (
        reserve_out(command_args.out, f"tune-{comparison.data}") as out,
        ProgressReporter(console) as reporter,
    ):
        reporter.set_first_message(describe_added_methods(requested, comparison))
        trials = run_trials(
            comparison, out, jobs, reporter.on_event, reporter.should_stop, reporter.print_message
        )
    console.print_line(describe_trial_table(trials))
    console.print(build_trial_table(trials))
    if any(trial.score is None for trial in trials):
        console.print_line(f"Stopped and saved. Resume with: {command_args.format_command(out)}")
        raise typer.Exit(EXIT_STOPPED)
    path = out / "tuned.toml"
    console.print_line(f"Tuned comparison: {format_path(path)}")
    console.print_line(f"Run it with: {format_program()} compare {quote_path(path)}")


COMMANDS = (tune,)
NEED_ARGS = (tune,)
