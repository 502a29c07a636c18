"""What commands that train share: telling how it goes, folders, and being run by several processes."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedtailor.errors import require

if TYPE_CHECKING:
    from fedtailor.run.executor import Event
    from fedtailor.run.spec import Comparison
    from fedtailor.run.study.running import Ready


def on_all_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """A command that is run by the first of the processes that torchrun has started; the others work for it."""

    @wraps(command)
    def together(*args: Any, **options: Any) -> None:
        if not _several():
            return command(*args, **options)
        from fedtailor.run.together import lead_or_follow

        return lead_or_follow(partial(command, *args, **options))

    return together


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


class Shown(NamedTuple):
    """What a bar shows of a run."""

    task: TaskID
    cohort: int
    news: str


class Told:
    """Shows how runs go: a bar each on a terminal, two lines per run elsewhere. Ctrl-C asks to stop after the round."""

    def __init__(self, console: Console) -> None:
        self.console, self._asked, self._described = console, False, False
        self._bars: dict[Path, Shown] = {}
        self._run = Path()  # the folder of the run that is told of
        self._first = ""
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

    def __enter__(self) -> Self:
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

    def _ask(self, kind: int, _: object) -> None:
        passed_on = kind == signal.SIGTERM and _several()  # torchrun does, also when it has lost a process
        if self._asked and not passed_on:
            raise KeyboardInterrupt
        self._asked = True
        if passed_on:
            return
        # Not by the console: a signal may come while it is printing, and a stream cannot be entered twice.
        os.write(sys.stderr.fileno(), b"Stopping after this round; once more to stop at once.\n")

    def tell(self, line: str) -> None:
        """Says something, if there is anything to say."""
        if line:
            self.console.print(line, highlight=False, markup=False)

    def tell_first(self, line: str) -> None:
        """Says something once the first run begins, when everything has been checked."""
        self._first = line

    def asked_to_stop(self) -> bool:
        """Whether somebody has."""
        return self._asked

    def heard(self, event: "Event") -> None:
        """Tell of one run among several."""
        from fedtailor.run.record import Folder

        self._run = event.run.place
        if event.kind == "began":
            self.began(Folder(self._run).record(), event.round)
        elif event.kind == "round":
            self.ended_round(event.entry)
        elif event.kind == "finished":
            self.finished(Folder(self._run).record())
        else:
            self._bar.remove_task(self._bars.pop(self._run).task)

    def began(self, record: Mapping[str, Any], done: int) -> None:
        """Says what is beginning, or going on."""
        if not self._described:
            self.tell(self._first)
            self.console.print(_described(record["data"]), highlight=False)
            self._described = True
        for line in record["choices"]["notes"]:
            self.console.print(f"Note: {line}", highlight=False)
        going_on = f", going on after round {done}" if done else ""
        self.console.print(f"{_name(record)}: {record['spec']['rounds']} rounds{going_on}", highlight=False)
        rounds = record["spec"]["rounds"]
        task = self._bar.add_task("", name=_name(record), news="", total=rounds, completed=done)
        self._bars[self._run] = Shown(task, record["spec"]["cohort"], "")

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """Moves the bar."""
        task, cohort, news = self._bars[self._run]
        news = seen_in(entry) or news
        self._bars[self._run] = Shown(task, cohort, news)
        speed = f"{cohort / max(entry['seconds'], 1e-9):.0f} clients/s"
        self._bar.update(task, completed=entry["round"], news=f"{news} {speed}")

    def finished(self, record: Mapping[str, Any]) -> None:
        """Says so where there is no bar."""
        if not self.console.is_terminal:
            self.console.print(f"{_name(record)}: finished in {record['cost']['seconds']:.1f} s", highlight=False)
        self._bar.remove_task(self._bars.pop(self._run).task)


class StudyTold(Told):
    """Shows how the runs of a study go: a bar of all rounds on a terminal, two lines per run elsewhere."""

    def __init__(self, console: Console, until: float | None) -> None:
        super().__init__(console)
        self._until, self._ended, self._runs = until, 0, 0
        self._behind: dict[Path, int] = {}
        self._news: dict[Path, str] = {}
        self._task = self._bar.add_task("", name="", news="", total=None)

    def asked_to_stop(self) -> bool:
        """Whether somebody has, or the time is up."""
        return super().asked_to_stop() or (self._until is not None and time.monotonic() > self._until)

    def expect(self, ready: "Ready") -> None:
        """Sets the bar up for all runs."""
        self._runs = len(ready.rounds)
        self._bar.reset(self._task, name="", news="", total=sum(ready.rounds))

    def heard(self, event: "Event") -> None:
        """Says what has happened, and moves the bar."""
        from fedtailor.run.record import Folder

        place = event.run.place
        name = f"{event.run.scenario}: {place.name}"
        rounds = event.run.spec.rounds
        news = self._news.get(place, "")
        if event.kind == "began":
            going_on = f", going on after round {event.round}" if event.round else ""
            self.tell(f"{name}: {rounds} rounds{going_on}")
        elif event.kind == "round":
            news = seen_in(event.entry) or news
        elif event.kind == "finished":
            news = f"in {Folder(place).record()['cost']['seconds']:.1f} s"
            if not self.console.is_terminal:
                self.tell(f"{name}: finished {news}")
        elif event.kind == "diverged":
            news = Folder(place).record()["problem"]
            self.tell(f"{name}: diverged: {news}")
        self._news[place] = news
        self._behind[place] = rounds if event.kind == "diverged" else event.round
        self._ended += event.kind in ("finished", "diverged")
        done = sum(self._behind.values())
        ended = f"{self._ended} of {self._runs} runs"
        self._bar.update(self._task, completed=done, name=ended, news=f"{name} {news}")


def seen_in(entry: Mapping[str, Any]) -> str:
    """Return the figures of the first group that was looked at after a round; "" if none was."""
    seen = next(iter((entry["scores"] or {}).values()), None)
    if seen is None:
        return ""
    figures = {name: value for name, value in seen["after"].items() if value is not None}
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())


def _name(record: Mapping[str, Any]) -> str:
    return f"{record['name']}, seed {record['spec']['seed']}"


def _described(data: Mapping[str, Any]) -> str:
    sizes = [train + test for train, test in zip(data["train_sizes"], data["test_sizes"], strict=True)]
    people = ", ".join(f"{len(data['groups'][group])} {group}" for group in ("local", "validation", "new"))
    about = f"{data['name']}: {people} clients with {min(sizes)} to {max(sizes)} examples"
    overlap = f"\nServer data may overlap clients': {data['overlap']}" if data["overlap"] else ""
    return f"{about}; server: {data['server_examples']} examples{overlap}"


def added(asked: "Comparison", made: "Comparison") -> str:
    """What is said of methods that nobody asked for; "" if there are none."""
    more = [word for word in made.methods if word not in asked.methods]
    return f"Added {' and '.join(more)}, which every table has; baselines=false leaves them out." if more else ""


class Words(NamedTuple):
    """The words of a command: its own KEY=VALUE, and the rest, which are those of what it runs."""

    command: str
    given: list[str]
    own: dict[str, str]
    rest: list[str]

    @property
    def out(self) -> Path | None:
        """The folder for what is made."""
        return Path(self.own["out"]) if "out" in self.own else None

    @property
    def jobs(self) -> int:
        """How many processes work."""
        return int(self.number("jobs", int) or 1)

    def number(self, key: str, kind: type[int] | type[float]) -> float | None:
        """Return a positive number, or refuse what is none with a sentence."""
        if key not in self.own:
            return None
        try:
            value = kind(self.own[key])
        except ValueError:
            value = kind(0)
        require(value > 0, f"{self.command}: {key} must be a positive number, got {self.own[key]}.")
        return value

    def again(self, out: Path) -> str:
        """Return the command that goes on with what was stopped."""
        from fedtailor.run.commands import program

        words = [word for word in self.given if not word.startswith("out=")]
        return f"{program()} {shlex.join([self.command, *words, f'out={out}'])}"


def words_of(command: str, given: list[str] | None, own: Sequence[str]) -> Words:
    """Tell a command's own KEY=VALUE words from the others."""
    given = given or []
    mine = [word for word in given if "=" in word and word.split("=", 1)[0] in own]
    return Words(command, given, dict(word.split("=", 1) for word in mine), [w for w in given if w not in mine])


def next_folder(data: str) -> Path:
    """The first folder in runs/ that is not there yet."""
    number = 1
    while (place := Path("runs") / f"{Path(data).stem}-{number}").exists():
        number += 1
    return place
