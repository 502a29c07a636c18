"""The command that chooses hyper-parameters."""

import shlex
from typing import Annotated

import typer
from rich.console import Console

from fedtailor.cli.telling import Told, added, next_folder, on_all_ranks, words_of


@on_all_ranks
def tune(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False)
    ] = None,
) -> None:
    """Chooses hyper-parameters on validation clients alone, with as many trials for every method.

    Keys are those of `fedtailor compare`; `tune.KEY=0.01,0.03,0.1` names values of a hyper-parameter to try for every
    method that has it, `tune.METHOD.KEY` for one, `tune.KEY=0.01..0.3` a range to draw from; `trials=4` says how many
    for each method. In a file these are tables: [tune], [tune.METHOD]. `jobs=N` works in N processes, one thread each.
    The same command goes on where it was stopped.
    `out/chosen.toml` is a comparison with what was chosen. As there, local and fedavg are added if they are not named.

    Examples:

        fedtailor tune fedavg fedsim data=digits tune.lr=0.03,0.1,0.3,1 out=tuned

        fedtailor tune fedavg fedsim tune.lr=0.01..1 tune.fedsim.lam=0.1..10 trials=8 out=tuned

        fedtailor compare tuned/chosen.toml seeds=0,1,2
    """
    from fedtailor.run.commands import program
    from fedtailor.run.spec import read_comparison
    from fedtailor.run.tuning import table
    from fedtailor.run.tuning import tune as run_all

    given = words_of("tune", words, ("jobs", "out"))
    asked = read_comparison(given.rest)
    comparison = asked.with_baselines()
    jobs = given.jobs
    out = given.out or next_folder(f"tune-{comparison.data}")
    console = Console()
    with Told(console) as told:
        told.tell_first(added(asked, comparison))
        trials = run_all(comparison, out, jobs, told.heard, told.asked_to_stop, told.tell)
    console.print(table(trials))
    if any(trial.figure is None for trial in trials):
        console.print(f"Stopped. Go on with: {given.again(out)}", soft_wrap=True, markup=False, highlight=False)
        raise typer.Exit(130)
    run_it = f"{program()} compare {shlex.quote(str(out / 'chosen.toml'))}"
    console.print(
        f"Chosen: {out / 'chosen.toml'}\nRun it with: {run_it}", soft_wrap=True, markup=False, highlight=False
    )


COMMANDS = (tune,)
NEED_WORDS = (tune,)
