"""What commands that train share: telling how it goes, folders, and being run by several processes."""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from fedtailor.run.spec import Comparison
    from fedtailor.run.study.running import Ready
    from fedtailor.run.study.working import Event


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


class Told:
    """Shows how runs go: a bar on a terminal, two lines per run elsewhere. Ctrl-C asks to stop after the round."""

    def __init__(self, console: Console) -> None:
        self.console, self._asked, self._described = console, False, False
        self._going: list[str] = []
        self._first = ""
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", name="", news="", total=None)

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
        self._going.append(_name(record))
        self._cohort, self._news = record["spec"]["cohort"], ""
        name = self._going[0] if len(self._going) == 1 else f"{record['name']}, {len(self._going)} runs"
        self._bar.reset(self._task, name=name, news="", total=record["spec"]["rounds"], completed=done)

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """Moves the bar."""
        seen = next(iter((entry["scores"] or {}).values()), None)
        if seen:
            figures = {name: value for name, value in seen["after"].items() if value is not None}
            self._news = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
        speed = f"{self._cohort / max(entry['seconds'], 1e-9):.0f} clients/s"
        self._bar.update(self._task, completed=entry["round"], news=f"{self._news} {speed}")

    def finished(self, record: Mapping[str, Any]) -> None:
        """Says so where there is no bar."""
        if not self.console.is_terminal:
            self.console.print(f"{_name(record)}: finished in {record['cost']['seconds']:.1f} s", highlight=False)
        self._going = [name for name in self._going if name != _name(record)]


class StudyTold(Told):
    """Shows how the runs of a study go: a bar of all rounds on a terminal, two lines per run elsewhere."""

    def __init__(self, console: Console, until: float | None) -> None:
        super().__init__(console)
        self._until, self._behind, self._ended, self._runs = until, dict[str, int](), 0, 0

    def asked_to_stop(self) -> bool:
        """Whether somebody has, or the time is up."""
        return super().asked_to_stop() or (self._until is not None and time.monotonic() > self._until)

    def expect(self, ready: "Ready") -> None:
        """Sets the bar up for all runs."""
        self._runs = len(ready.rounds)
        self._bar.reset(self._task, name="", news="", total=sum(ready.rounds))

    def heard(self, event: "Event") -> None:
        """Says what has happened, and moves the bar."""
        self._behind[event.run] = event.rounds if event.kind == "diverged" else event.round
        if event.kind == "began":
            going_on = f", going on after round {event.round}" if event.round else ""
            self.tell(f"{event.run}: {event.rounds} rounds{going_on}")
        elif event.kind == "finished" and not self.console.is_terminal:
            self.tell(f"{event.run}: finished {event.news}")
        elif event.kind == "diverged":
            self.tell(f"{event.run}: diverged: {event.news}")
        self._ended += event.kind in ("finished", "diverged")
        done = sum(self._behind.values())
        name = f"{self._ended} of {self._runs} runs"
        self._bar.update(self._task, completed=done, name=name, news=f"{event.run} {event.news}")


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


def without_out(words: list[str]) -> tuple[list[str], Path | None]:
    """The words but for out=DIR, and that folder."""
    out = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    return [word for word in words if not word.startswith("out=")], Path(out[-1]) if out else None


def next_folder(data: str) -> Path:
    """The first folder in runs/ that is not there yet."""
    number = 1
    while (place := Path("runs") / f"{Path(data).stem}-{number}").exists():
        number += 1
    return place
