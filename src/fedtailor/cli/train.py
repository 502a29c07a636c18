"""Commands that train: run, compare, resume."""

import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Words = Annotated[list[str] | None, typer.Argument(metavar="[FILE.toml] [KEY=VALUE]...", show_default=False)]
Show = Annotated[bool, typer.Option("--show", help="Print the whole specification, defaults included, and stop.")]


def run(words: Words = None, show: Show = False) -> None:
    """Trains one method and records everything.

    Keys: method, data, model, hidden, activation, pretrain, pretrain_lr, pretrain_batch, rounds, cohort, seed, engine,
    device, precision, chunk, compile, threads, memory, evaluate_every, watch, score, checkpoint_every, log, label, out;
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

    rest, out = _without_out(words or [])
    spec = read_spec(rest)
    if show:
        print(shown(spec), end="")
        return
    out = out or _next_folder(spec.data)
    console = Console()
    with _Told(console) as told:
        outcome = start(spec, out, (told,), told.asked_to_stop)
    _end(console, out, [outcome.record], outcome.finished, resume_command(out))


def compare(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[METHOD]... [FILE.toml] [KEY=VALUE]...", show_default=False)
    ] = None,
    show: Show = False,
) -> None:
    """Trains several methods on the same clients, cohorts and first weights: one table, one report.

    Keys are those of `fedtailor run`, with `seeds=0,1,2` for `seed`. A hyper-parameter alone is for every method that
    has it; `METHOD.KEY` is for one method. A method may come several times, told apart by a word behind an @. The same
    command with the same `out` goes on where it was stopped.

    Examples:

        fedtailor compare

        fedtailor compare local fedavg fedsim data=digits rounds=30 seeds=1,2,3

        fedtailor compare fedavg fedsim data=synthetic lr=0.05 fedsim.lam=0.5 data.clients=50 out=DIR

        fedtailor compare per-fedavg per-fedavg@fo per-fedavg@fo.variant=fo fsl+per+fedsim
    """
    from fedtailor.run.compare import compare as run_all
    from fedtailor.run.spec import read_comparison, shown

    rest, out = _without_out(words or [])
    comparison = read_comparison(rest)
    if show:
        print("\n".join(shown(spec) for spec in comparison.specs()), end="")
        return
    out = out or _next_folder(comparison.data)
    console = Console()
    with _Told(console) as told:
        outcomes = run_all(comparison, out, (told,), told.asked_to_stop)
    again = shlex.join(["fedtailor", "compare", *rest, f"out={out}"])
    _end(console, out, [each.record for each in outcomes], all(each.finished for each in outcomes), again)


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
    with _Told(console) as told:
        outcome = go_on(out, (told,), told.asked_to_stop)
    _end(console, out, [outcome.record], outcome.finished, resume_command(out))


COMMANDS = (run, compare, resume)
NEED_WORDS = (resume,)


class _Told:
    """Shows how runs go: a bar on a terminal, two lines per run elsewhere. Ctrl-C asks to stop after the round."""

    def __init__(self, console: Console) -> None:
        self.console, self._asked, self._described = console, False, False
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", name="", news="", total=None)

    def __enter__(self) -> "_Told":
        self._before = {kind: signal.signal(kind, self._ask) for kind in (signal.SIGINT, signal.SIGTERM)}
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        for each, handler in self._before.items():
            signal.signal(each, handler)
        if kind is KeyboardInterrupt:
            os.write(sys.stderr.fileno(), b"fedtailor: stopped at once; what was saved before is whole.\n")
            raise typer.Exit(130)

    def _ask(self, *_: object) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        # Not by the console: a signal may come while it is printing, and a stream cannot be entered twice.
        os.write(sys.stderr.fileno(), b"Stopping after this round; once more to stop at once.\n")

    def asked_to_stop(self) -> bool:
        return self._asked

    def began(self, record: Mapping[str, Any], done: int) -> None:
        if not self._described:
            self.console.print(_described(record["data"]), highlight=False)
            self._described = True
        for line in record["choices"]["notes"]:
            self.console.print(f"Note: {line}", highlight=False)
        self._name = f"{record['name']}, seed {record['spec']['seed']}"
        going_on = f", going on after round {done}" if done else ""
        self.console.print(f"{self._name}: {record['spec']['rounds']} rounds{going_on}", highlight=False)
        self._metric, self._cohort, self._news = record["metric"]["name"], record["spec"]["cohort"], ""
        self._bar.reset(self._task, name=self._name, news="", total=record["spec"]["rounds"], completed=done)

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        seen = next(iter((entry["scores"] or {}).values()), None)
        if seen:
            figures = {name: value for name, value in seen["after"].items() if value is not None}
            self._news = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
        speed = f"{self._cohort / max(entry['seconds'], 1e-9):.0f} clients/s"
        self._bar.update(self._task, completed=entry["round"], news=f"{self._news} {speed}")

    def finished(self, record: Mapping[str, Any]) -> None:
        if not self.console.is_terminal:
            self.console.print(f"{self._name}: finished in {record['cost']['seconds']:.1f} s", highlight=False)


def _end(console: Console, out: Path, records: Sequence[Mapping[str, Any]], finished: bool, again: str) -> None:
    """The table and the report, or how to go on."""
    from fedtailor.run.compare import table
    from fedtailor.run.files import disk_trouble
    from fedtailor.run.report import write

    place = out / "report.html"
    with disk_trouble(place, f"the runs are saved, so mend that and run: fedtailor report {shlex.quote(str(out))}"):
        write(records, place)
    if not finished:
        console.print(f"Stopped and saved. Go on with: {again}", highlight=False, soft_wrap=True)
        raise typer.Exit(130)
    spec = records[0]["spec"]
    title = f"{spec['data']}: {spec['rounds']} rounds of {spec['cohort']} clients"
    console.print(table(records, title), highlight=False)
    console.print(f"Report: {out / 'report.html'}", highlight=False, soft_wrap=True)


def _described(data: Mapping[str, Any]) -> str:
    sizes = [train + test for train, test in zip(data["train_sizes"], data["test_sizes"], strict=True)]
    people = ", ".join(f"{len(data['groups'][group])} {group}" for group in ("local", "validation", "new"))
    about = f"{data['name']}: {people} clients with {min(sizes)} to {max(sizes)} examples"
    overlap = f"\nServer data may overlap clients': {data['overlap']}" if data["overlap"] else ""
    return f"{about}; server: {data['server_examples']} examples{overlap}"


def _without_out(words: list[str]) -> tuple[list[str], Path | None]:
    out = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    return [word for word in words if not word.startswith("out=")], Path(out[-1]) if out else None


def _next_folder(data: str) -> Path:
    """The first folder in runs/ that is not there yet."""
    number = 1
    while (place := Path("runs") / f"{Path(data).stem}-{number}").exists():
        number += 1
    return place
