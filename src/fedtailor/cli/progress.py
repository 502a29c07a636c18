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
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedtailor.errors import require

if TYPE_CHECKING:
    from fedtailor.experiments.executor import Event
    from fedtailor.studies.execute import PreparedStudy
    from fedtailor.training.config import ComparisonConfig


def run_on_all_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """A command that is run by the first of the processes that torchrun has started; the others work for it."""

    @wraps(command)
    def together(*args: Any, **options: Any) -> None:
        if not _is_distributed():
            return command(*args, **options)
        from fedtailor.training.distributed_launch import lead_or_follow

        return lead_or_follow(partial(command, *args, **options))

    return together


def _is_distributed() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


class BarState(NamedTuple):
    """What a bar shows of a run."""

    task: TaskID
    cohort: int
    status: str


class ProgressReporter:
    """Shows how runs go: a bar each on a terminal, two lines per run elsewhere. Ctrl-C asks to stop after the round."""

    def __init__(self, console: Console) -> None:
        self.console, self._is_stopping, self._has_described_data = console, False, False
        self._bars: dict[Path, BarState] = {}
        self._run_path = Path()  # the folder of the run that is told of
        self._first_message = ""
        columns = (
            TextColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )

    def __enter__(self) -> Self:
        self._old_handlers = {
            kind: signal.signal(kind, self._handle_signal)
            for kind in (signal.SIGINT, signal.SIGTERM)
        }
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._progress.stop()
        for each, handler in self._old_handlers.items():
            signal.signal(each, handler)
        if kind is KeyboardInterrupt:
            os.write(
                sys.stderr.fileno(),
                b"fedtailor: stopped at once; what was saved before is whole.\n",
            )
            raise typer.Exit(130)

    def _handle_signal(self, kind: int, _: object) -> None:
        is_forwarded = (
            kind == signal.SIGTERM and _is_distributed()
        )  # torchrun does, also when it has lost a process
        if self._is_stopping and not is_forwarded:
            raise KeyboardInterrupt
        self._is_stopping = True
        if is_forwarded:
            return
        # Not by the console: a signal may come while it is printing, and a stream cannot be entered twice.
        os.write(sys.stderr.fileno(), b"Stopping after this round; once more to stop at once.\n")

    def print_message(self, line: str) -> None:
        """Says something, if there is anything to say."""
        if line:
            self.console.print(line, highlight=False, markup=False)

    def set_first_message(self, line: str) -> None:
        """Says something once the first run begins, when everything has been checked."""
        self._first_message = line

    def should_stop(self) -> bool:
        """Whether somebody has."""
        return self._is_stopping

    def on_event(self, event: "Event") -> None:
        """Tell of one run among several."""
        from fedtailor.training.run_dir import RunDir

        self._run_path = event.run.path
        if event.kind == "began":
            self.on_run_start(RunDir(self._run_path).read_record(), event.round)
        elif event.kind == "round":
            self.on_round_end(event.entry)
        elif event.kind == "finished":
            self.on_run_end(RunDir(self._run_path).read_record())
        else:
            self._progress.remove_task(self._bars.pop(self._run_path).task)

    def on_run_start(self, record: Mapping[str, Any], rounds_done: int) -> None:
        """Says what is beginning, or going on."""
        if not self._has_described_data:
            self.print_message(self._first_message)
            self.console.print(_describe_data(record["data"]), highlight=False)
            self._has_described_data = True
        for line in record["choices"]["notes"]:
            self.console.print(f"Note: {line}", highlight=False)
        going_on = f", going on after round {rounds_done}" if rounds_done else ""
        self.console.print(
            f"{_format_run_name(record)}: {record['config']['rounds']} rounds{going_on}",
            highlight=False,
        )
        rounds = record["config"]["rounds"]
        task = self._progress.add_task(
            "", name=_format_run_name(record), news="", total=rounds, completed=rounds_done
        )
        self._bars[self._run_path] = BarState(task, record["config"]["cohort"], "")

    def on_round_end(self, entry: Mapping[str, Any]) -> None:
        """Moves the bar."""
        task, cohort, status = self._bars[self._run_path]
        status = format_scores(entry) or status
        self._bars[self._run_path] = BarState(task, cohort, status)
        speed = f"{cohort / max(entry['seconds'], 1e-9):.0f} clients/s"
        self._progress.update(task, completed=entry["round"], news=f"{status} {speed}")

    def on_run_end(self, record: Mapping[str, Any]) -> None:
        """Says so where there is no bar."""
        if not self.console.is_terminal:
            self.console.print(
                f"{_format_run_name(record)}: finished in {record['cost']['seconds']:.1f} s",
                highlight=False,
            )
        self._progress.remove_task(self._bars.pop(self._run_path).task)


class StudyProgressReporter(ProgressReporter):
    """Shows how the runs of a study go: a bar of all rounds on a terminal, two lines per run elsewhere."""

    def __init__(self, console: Console, deadline: float | None) -> None:
        super().__init__(console)
        self._deadline, self._num_ended, self._num_runs = deadline, 0, 0
        self._rounds_done: dict[Path, int] = {}
        self._status: dict[Path, str] = {}
        self._task = self._progress.add_task("", name="", news="", total=None)

    def should_stop(self) -> bool:
        """Whether somebody has, or the time is up."""
        return super().should_stop() or (
            self._deadline is not None and time.monotonic() > self._deadline
        )

    def set_totals(self, prepared: "PreparedStudy") -> None:
        """Sets the bar up for all runs."""
        self._num_runs = len(prepared.rounds_per_run)
        self._progress.reset(self._task, name="", news="", total=sum(prepared.rounds_per_run))

    def on_event(self, event: "Event") -> None:
        """Says what has happened, and moves the bar."""
        from fedtailor.training.run_dir import RunDir

        path = event.run.path
        name = f"{event.run.scenario}: {path.name}"
        rounds = event.run.config.rounds
        status = self._status.get(path, "")
        if event.kind == "began":
            going_on = f", going on after round {event.round}" if event.round else ""
            self.print_message(f"{name}: {rounds} rounds{going_on}")
        elif event.kind == "round":
            status = format_scores(event.entry) or status
        elif event.kind == "finished":
            status = f"in {RunDir(path).read_record()['cost']['seconds']:.1f} s"
            if not self.console.is_terminal:
                self.print_message(f"{name}: finished {status}")
        elif event.kind == "diverged":
            status = RunDir(path).read_record()["problem"]
            self.print_message(f"{name}: diverged: {status}")
        self._status[path] = status
        self._rounds_done[path] = rounds if event.kind == "diverged" else event.round
        self._num_ended += event.kind in ("finished", "diverged")
        rounds_done = sum(self._rounds_done.values())
        ended = f"{self._num_ended} of {self._num_runs} runs"
        self._progress.update(
            self._task, completed=rounds_done, name=ended, news=f"{name} {status}"
        )


def format_scores(entry: Mapping[str, Any]) -> str:
    """Return the figures of the first group that was looked at after a round; "" if none was."""
    scores = next(iter((entry["scores"] or {}).values()), None)
    if scores is None:
        return ""
    figures = {name: value for name, value in scores["after"].items() if value is not None}
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())


def _format_run_name(record: Mapping[str, Any]) -> str:
    return f"{record['name']}, seed {record['config']['seed']}"


def _describe_data(data: Mapping[str, Any]) -> str:
    sizes = [
        train + test for train, test in zip(data["train_sizes"], data["test_sizes"], strict=True)
    ]
    groups_text = ", ".join(
        f"{len(data['groups'][group])} {group}"
        for group in ("participating", "validation", "unseen")
    )
    about = f"{data['name']}: {groups_text} clients with {min(sizes)} to {max(sizes)} examples"
    overlap = f"\nServer data may overlap clients': {data['overlap']}" if data["overlap"] else ""
    return f"{about}; server: {data['server_examples']} examples{overlap}"


def describe_added_methods(requested: "ComparisonConfig", completed: "ComparisonConfig") -> str:
    """What is said of methods that nobody asked for; "" if there are none."""
    more = [arg for arg in completed.methods if arg not in requested.methods]
    return (
        f"Added {' and '.join(more)}, which every table has; baselines=false leaves them out."
        if more
        else ""
    )


class CommandArgs(NamedTuple):
    """The words of a command: its own KEY=VALUE, and the rest, which are those of what it runs."""

    command: str
    args: list[str]
    options: dict[str, str]
    rest: list[str]

    @property
    def out(self) -> Path | None:
        """The folder for what is made."""
        return Path(self.options["out"]) if "out" in self.options else None

    @property
    def jobs(self) -> int:
        """How many processes work."""
        return int(self.get_number("jobs", int) or 1)

    def get_number(self, key: str, kind: type[int] | type[float]) -> float | None:
        """Return a positive number, or refuse what is none with a sentence."""
        if key not in self.options:
            return None
        try:
            value = kind(self.options[key])
        except ValueError:
            value = kind(0)
        require(
            value > 0, f"{self.command}: {key} must be a positive number, got {self.options[key]}."
        )
        return value

    def format_command(self, out: Path) -> str:
        """Return the command that goes on with what was stopped."""
        from fedtailor.training.command_lines import format_program

        args = [arg for arg in self.args if not arg.startswith("out=")]
        return f"{format_program()} {shlex.join([self.command, *args, f'out={out}'])}"


def parse_command_args(command: str, args: list[str] | None, keys: Sequence[str]) -> CommandArgs:
    """Tell a command's own KEY=VALUE words from the others."""
    args = args or []
    own_args = [arg for arg in args if "=" in arg and arg.split("=", 1)[0] in keys]
    return CommandArgs(
        command,
        args,
        dict(arg.split("=", 1) for arg in own_args),
        [w for w in args if w not in own_args],
    )


def choose_run_path(data: str) -> Path:
    """The first folder in runs/ that is not there yet."""
    index = 1
    while (path := Path("runs") / f"{Path(data).stem}-{index}").exists():
        index += 1
    return path
