"""Commands that train: run, compare, resume."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedtailor.cli.telling import Told, added, next_folder, on_all_ranks, words_of

Words = Annotated[list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)]
Show = Annotated[bool, typer.Option("--show", help="Print the whole specification, defaults included, and stop.")]


@on_all_ranks
def run(words: Words = None, show: Show = False) -> None:
    """Trains one method and records everything.

    Keys: method, data, model, hidden, activation, pretrain, pretrain_lr, pretrain_batch, rounds, budget, cohort, seed,
    engine, device, precision, chunk, compile, threads, memory, evaluate_every, watch, score, scored, target, chosen,
    checkpoint_every, log, label, out;
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
    from fedtailor.run.commands import resume_command
    from fedtailor.run.session import start
    from fedtailor.run.spec import read_spec, shown

    asked = words_of("run", words, ("out",))
    spec = read_spec(asked.rest)
    if show:
        print(shown(spec), end="")
        return
    out = asked.out or next_folder(spec.data)
    console = Console()
    with Told(console) as told:
        outcome = start(spec, out, (told,), told.asked_to_stop)
    _end(console, out, [outcome.record], outcome.finished, resume_command(out))


@on_all_ranks
def compare(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False)
    ] = None,
    show: Show = False,
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
    from fedtailor.run.compare import compare as run_all
    from fedtailor.run.spec import read_comparison, shown

    given = words_of("compare", words, ("jobs", "out"))
    asked = read_comparison(given.rest)
    comparison = asked.with_baselines()
    if show:
        print(shown(comparison.resolved()), end="")
        return
    out = given.out or next_folder(comparison.data)
    jobs = given.jobs
    console = Console()
    with Told(console) as told:
        told.tell_first(added(asked, comparison))
        outcomes = run_all(comparison, out, jobs, told.heard, told.asked_to_stop, told.tell)
    finished = len(outcomes) == len(comparison.specs()) and all(each.finished for each in outcomes)
    _end(console, out, [each.record for each in outcomes], finished, given.again(out))


@on_all_ranks
def resume(out: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]) -> None:
    """Goes on with a run that was stopped or killed, from its last checkpoint.

    Example:

        fedtailor resume DIR
    """
    from fedtailor.run.commands import resume_command
    from fedtailor.run.record import Folder
    from fedtailor.run.session import resume as go_on

    console = Console()
    folder = Folder(out)
    if folder.spec() and folder.begun() and folder.record()["status"] == "finished":
        console.print(f"The run in {out} has finished already.", highlight=False)
        return
    with Told(console) as told:
        outcome = go_on(out, (told,), told.asked_to_stop)
    _end(console, out, [outcome.record], outcome.finished, resume_command(out))


COMMANDS = (run, compare, resume)
NEED_WORDS = (resume,)


def _end(console: Console, out: Path, records: Sequence[Mapping[str, Any]], finished: bool, again: str) -> None:
    """The table and the report, or how to go on."""
    from fedtailor.disk import disk_trouble
    from fedtailor.run.printed import WIDTH, table
    from fedtailor.run.report import write

    place = out / "report.html"
    with disk_trouble(place, f"the runs are saved, so mend that and run: fedtailor report {shlex.quote(str(out))}"):
        if records:
            write(records, place)
    if not finished:
        console.print(f"Stopped and saved. Go on with: {again}", highlight=False, soft_wrap=True)
        raise typer.Exit(130)
    wide = console if console.is_terminal else Console(width=max(WIDTH, console.width))
    wide.print(table(records, _title(records), wide.width), highlight=False)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)


def _title(records: Sequence[Mapping[str, Any]]) -> str:
    spec, rounds = records[0]["spec"], sorted({record["spec"]["rounds"] for record in records})
    equal = f"{rounds[0]} to {rounds[-1]} rounds (as many {spec['budget']} for all)"
    return f"{spec['data']}: {equal if len(rounds) > 1 else f'{rounds[0]} rounds'} of {spec['cohort']} clients"
