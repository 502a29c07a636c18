"""The command line. torch is imported late, so that help answers at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedtailor.errors import FedtailorError

if TYPE_CHECKING:
    from fedtailor.run.loop import Round

app = typer.Typer(
    no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


@app.callback()
def fedtailor() -> None:
    """Personalised federated learning with server-side data."""


@app.command(no_args_is_help=False)
def compare(
    words: Annotated[list[str] | None, typer.Argument(metavar="[METHOD]... [KEY=VALUE]...", show_default=False)] = None,
) -> None:
    """Trains methods on the same clients, cohorts and first weights, and prints one table.

    Keys: data, rounds, cohort, seed, hidden, engine, device, chunk, compile; `data.KEY` is for the data set,
    `METHOD.KEY` a hyper-parameter of one method, and a hyper-parameter alone is for every method that has it.

    Examples:

        fedtailor compare

        fedtailor compare local fedavg fedsim data=digits rounds=30 seed=1

        fedtailor compare fedavg fedsim data=synthetic lr=0.05 fedsim.lam=0.5 data.clients=50
    """
    from fedtailor.run.compare import compare as run
    from fedtailor.run.compare import table
    from fedtailor.run.spec import comparison

    spec = comparison(words or [])
    out = Console()
    out.print(str(spec.dataset().describe()), highlight=False)
    with _shown(out, spec.rounds) as heard:
        entries = run(spec, heard.began, heard.went_on)
    title = f"{spec.data}: {spec.rounds} rounds of {spec.cohort} clients, seed {spec.seed}"
    out.print(table(entries, title), highlight=False)
    for note in (note for entry in entries for note in entry.notes):
        out.print(f"Note: {note}", highlight=False)


class _Heard:
    """Progress of methods and rounds: a bar on a terminal, a line per method elsewhere."""

    def __init__(self, out: Console, rounds: int, bar: Progress) -> None:
        self.out, self.rounds, self.bar = out, rounds, bar
        self.task = bar.add_task("", total=rounds, start=False)

    def began(self, name: str) -> None:
        self.bar.reset(self.task, description=name, total=self.rounds)
        if not self.out.is_terminal:
            self.out.print(f"training {name} ...")

    def went_on(self, done: "Round") -> None:
        self.bar.update(self.task, completed=done.number)


@contextmanager
def _shown(out: Console, rounds: int) -> Iterator[_Heard]:
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        yield _Heard(out, rounds, bar)


def main() -> None:
    """Runs the command line; what the user got wrong ends in one sentence and exit code 2."""
    try:
        app(standalone_mode=True)
    except FedtailorError as problem:
        print(f"fedtailor: {problem}", file=sys.stderr)
        sys.exit(2)
