"""What commands that train share: progress, Ctrl-C, torchrun, and parsing of arguments."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TimeRemainingColumn

from fedtailor.cli.terminal import PrintableColumn, TerminalConsole
from fedtailor.errors import InputError, require, require_distinct
from fedtailor.storage.atomic import make_folder

if TYPE_CHECKING:
    from fedtailor.experiments.executor import Event
    from fedtailor.studies.execute import PreparedStudy
    from fedtailor.training.config import ComparisonConfig
    from fedtailor.training.record.schema import DatasetSummary, RoundEntry, RunRecord

EXIT_DIVERGED = 3
"""Exit code of a command that has ended, but some of whose runs have diverged."""
EXIT_STOPPED = 130
"""Exit code of a command that was stopped: 128 plus the number of SIGINT, as shells have it."""


_LOADED_AT = time.perf_counter()
"""When the command line was loaded."""


class CommandClock:
    """Seconds of a command by what it did, from when the command line was loaded."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Count the seconds within the block under a name."""
        started_at = time.perf_counter()
        self._seconds.setdefault("starting", started_at - _LOADED_AT)
        try:
            yield
        finally:
            seconds = time.perf_counter() - started_at
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def describe(self) -> str:
        """Return what the command took so far, and for what, in a sentence."""
        total = time.perf_counter() - _LOADED_AT
        rest = total - sum(self._seconds.values())
        parts = [f"{name} {seconds:.1f}" for name, seconds in self._seconds.items()]
        return f"The command took {total:.1f} s: {', '.join(parts)}, rest {rest:.1f}."


def run_on_all_ranks(command: Callable[..., None]) -> Callable[..., None]:
    """Make a command run on rank 0 of a torchrun launch, while the other ranks work for it."""

    @wraps(command)
    def run_command(*args: Any, **options: Any) -> None:
        if not _is_distributed():
            command(*args, **options)
            return
        from fedtailor.training.distributed_launch import lead_or_follow

        lead_or_follow(partial(command, *args, **options))

    return run_command


def _is_distributed() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


# Progress


class BarState(NamedTuple):
    """The progress bar of a run, and the parts of its status text."""

    task: TaskID
    cohort_size: int  # clients a round
    scores: str  # of the last evaluation


class ProgressReporter:
    """A display of the progress of runs: a bar for each on a terminal, two lines elsewhere.

    As a context it also handles signals: the first Ctrl-C asks to stop after the round, the second
    one stops immediately.
    """

    def __init__(self, console: TerminalConsole) -> None:
        self.console = console
        self._is_stopping = False
        self._has_described_data = False
        self._first_message = ""
        self.has_started = False
        self._bars: dict[Path, BarState] = {}
        self._run_path = Path()  # the run of the current event
        self._progress = Progress(
            PrintableColumn("{task.fields[name]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            PrintableColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
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
        for signal_kind, handler in self._old_handlers.items():
            signal.signal(signal_kind, handler)
        if kind is KeyboardInterrupt:
            _write_to_stderr("fedtailor: stopped immediately; what was saved before is intact.\n")
            raise typer.Exit(EXIT_STOPPED)

    def _handle_signal(self, kind: int, _: object) -> None:
        # torchrun forwards SIGTERM to its processes, and sends it when it has lost one of them, so
        # a second one does not mean that the user is impatient.
        is_forwarded = kind == signal.SIGTERM and _is_distributed()
        if self._is_stopping and not is_forwarded:
            raise KeyboardInterrupt
        self._is_stopping = True
        if not is_forwarded:
            _write_to_stderr("Stopping after this round; interrupt again to stop immediately.\n")

    def print_message(self, message: str) -> None:
        """Print a line as it is, unless it is empty."""
        if message:
            self.console.print(message, highlight=False)

    def set_first_message(self, message: str) -> None:
        """Set a line to print when the first run starts, after all checks have passed."""
        self._first_message = message

    def should_stop(self) -> bool:
        """Return whether the user has asked to stop."""
        return self._is_stopping

    def on_event(self, event: "Event") -> None:
        """Show an event of one of several runs."""
        from fedtailor.training.run_dir import RunDir

        self._run_path = event.run.path
        if event.kind == "began":
            self.on_run_start(RunDir(self._run_path).read_record(), event.round)
        elif event.entry is not None:
            self.on_round_end(event.entry)
        elif event.kind == "finished":
            self.on_run_end(RunDir(self._run_path).read_record())
        elif event.kind == "diverged":
            record = RunDir(self._run_path).read_record()
            self.print_message(f"{_format_run_name(record)}: diverged: {record.problem}")
            self._remove_bar()
        else:
            self._remove_bar()

    def on_run_start(self, record: "RunRecord", rounds_done: int) -> None:
        """Print what starts or is resumed, before the first run also the data, and add a bar."""
        self.has_started = True
        if not self._has_described_data:
            self.print_message(self._first_message)
            for line in describe_data(record.data):
                self.print_message(line)
            self._has_described_data = True
        for note in record.choices.notes:
            self.console.print_line(f"Note: {note}")
        name = _format_run_name(record)
        num_rounds = record.config.rounds
        start = _format_start(rounds_done)
        self.console.print(f"{name}: {num_rounds} rounds{start}", highlight=False)
        task = self._progress.add_task(
            "", name=name, status="", total=num_rounds, completed=rounds_done
        )
        self._bars[self._run_path] = BarState(task, record.config.cohort, "")

    def on_round_end(self, entry: "RoundEntry") -> None:
        """Advance the bar of the run."""
        bar = self._bars[self._run_path]
        scores = format_scores(entry) or bar.scores
        self._bars[self._run_path] = bar._replace(scores=scores)
        clients_per_second = bar.cohort_size / max(entry.seconds, 1e-9)
        status = f"{scores} {clients_per_second:.0f} clients/s"
        self._progress.update(bar.task, completed=entry.round, status=status)

    def on_run_end(self, record: "RunRecord") -> None:
        """Remove the bar of the run; where there are no bars, print that the run has finished."""
        if not self.console.is_terminal:
            self.console.print(
                f"{_format_run_name(record)}: finished in {_get_seconds(record):.1f} s",
                highlight=False,
            )
        self._remove_bar()

    def _remove_bar(self) -> None:
        bar = self._bars.pop(self._run_path)
        self._progress.remove_task(bar.task)


class StudyProgressReporter(ProgressReporter):
    """A display of the progress of a study: one bar for all rounds, or lines without a terminal."""

    def __init__(self, console: TerminalConsole, deadline: float | None) -> None:
        """Prepare to stop at a time of `time.monotonic()`, or never if it is None."""
        super().__init__(console)
        self._deadline = deadline
        self._num_ended = 0
        self._num_runs = 0
        self._rounds_done: dict[Path, int] = {}
        self._run_status: dict[Path, str] = {}
        self._task = self._progress.add_task("", name="", status="", total=None)

    def should_stop(self) -> bool:
        """Return whether the user has asked to stop or the time is up."""
        is_time_up = self._deadline is not None and time.monotonic() > self._deadline
        return super().should_stop() or is_time_up

    def set_totals(self, prepared: "PreparedStudy") -> None:
        """Set the bar up for all runs."""
        self._num_runs = len(prepared.rounds_per_run)
        self._progress.reset(self._task, name="", status="", total=sum(prepared.rounds_per_run))

    def on_event(self, event: "Event") -> None:
        """Print the start and the end of a run, and advance the bar."""
        path = event.run.path
        name = f"{event.run.comparison_name}: {path.name}"
        self._run_status[path] = self._print_event(event, name)
        self._rounds_done[path] = event.round
        if event.kind in ("finished", "diverged"):
            # None of its rounds is left, also if it has stopped early.
            self._rounds_done[path] = event.run.config.rounds
        if event.kind in ("finished", "diverged"):
            self._num_ended += 1
        self._progress.update(
            self._task,
            completed=sum(self._rounds_done.values()),
            name=f"{self._num_ended} of {self._num_runs} runs",
            status=f"{name} {self._run_status[path]}",
        )

    def _print_event(self, event: "Event", name: str) -> str:
        """Print what is worth a line, and return the status of the run."""
        from fedtailor.training.run_dir import RunDir

        path = event.run.path
        last_status = self._run_status.get(path, "")
        if event.kind == "began":
            start = _format_start(event.round)
            self.print_message(f"{name}: {event.run.config.rounds} rounds{start}")
            return last_status
        if event.entry is not None:
            return format_scores(event.entry) or last_status
        if event.kind == "finished":
            status = f"in {_get_seconds(RunDir(path).read_record()):.1f} s"
            if not self.console.is_terminal:
                self.print_message(f"{name}: finished {status}")
            return status
        if event.kind == "diverged":
            problem = RunDir(path).read_record().problem or ""
            self.print_message(f"{name}: diverged: {problem}")
            return problem
        return last_status


def _write_to_stderr(text: str) -> None:
    # Not through the console: a signal may arrive while it prints, and a stream cannot be
    # reentered.
    os.write(sys.stderr.fileno(), text.encode())


def _format_start(rounds_done: int) -> str:
    return f", resuming after round {rounds_done}" if rounds_done else ""


def format_scores(entry: "RoundEntry") -> str:
    """Return the figures of the first group that was evaluated after a round; "" if none was."""
    scores = next(iter((entry.scores or {}).values()), None)
    if scores is None:
        return ""
    figures = {name: value for name, value in scores["after"].items() if value is not None}
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())


def _get_seconds(record: "RunRecord") -> float:
    return 0.0 if record.times is None else record.times.total


def _format_run_name(record: "RunRecord") -> str:
    name = f"{record.name}, seed {record.config.seed}"
    data_seed = record.config.data_seed
    if data_seed in (None, record.config.seed):
        return name
    return f"{name}, data of seed {data_seed}"


def describe_data(data: "DatasetSummary") -> list[str]:
    """Return the first lines about a run's data: clients, and what became of all rows."""
    from fedtailor.data.row_counts import OVERLAP_NOTE

    sizes = [train + test for train, test in zip(data.train_sizes, data.test_sizes, strict=True)]
    groups = ", ".join(
        f"{len(data.groups[group])} {group}" for group in ("participating", "validation", "unseen")
    )
    lines = [
        f"{data.name}: {groups} clients with {min(sizes)} to {max(sizes)} examples; "
        f"server: {data.server_examples} examples",
        str(data.rows),
    ]
    if data.overlap:
        lines.append(OVERLAP_NOTE)
    return lines


def describe_added_methods(requested: "ComparisonConfig", completed: "ComparisonConfig") -> str:
    """Return a line on the baselines that were added to a comparison; "" if none was."""
    added_methods = [arg for arg in completed.methods if arg not in requested.methods]
    if not added_methods:
        return ""
    return f"Added {' and '.join(added_methods)} as baselines; baselines=false leaves them out."


# Arguments

TrustCodeFlag = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the model's file in the folder, now and later: it is remembered."
    ),
]


TrustRunsFlag = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the models' files in the folders of runs, now and later."
    ),
]


def trust_runs(out: Path | None) -> None:
    """Allow the copies of model files in the folders of runs below `out`, which must be named."""
    from fedtailor.training.from_config import trust_folders

    if out is None:
        raise InputError("--trust-code is for runs that are there already; name them by out=DIR.")
    trust_folders(out)


class CommandArgs(NamedTuple):
    """The arguments of a command, divided into its own options and the others."""

    command: str
    args: list[str]  # all of them
    options: dict[str, str]  # the command's own KEY=VALUE
    rest: list[str]  # what the command runs, and KEY=VALUE for that

    @property
    def out(self) -> Path | None:
        """The folder for results, or None if the user has named none."""
        if "out" not in self.options:
            return None
        require(bool(self.options["out"]), f"{self.command}: out must be a folder, got nothing.")
        return Path(self.options["out"])

    @property
    def jobs(self) -> int:
        """The number of processes, which this machine can have."""
        from fedtailor.training.resources import check_jobs

        jobs = int(self.get_number("jobs", int) or 1)
        check_jobs(jobs)
        return jobs

    def get_number(self, key: str, kind: type[int] | type[float]) -> float | None:
        """Return the value of an option, None if it is not given; it must be a positive number."""
        if key not in self.options:
            return None
        text = self.options[key]
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)  # refused below
        require(value > 0, f"{self.command}: {key} must be a positive number, got {text}.")
        return value

    def format_command(self, out: Path) -> str:
        """Return the command that resumes what was stopped."""
        from fedtailor.training.shell_commands import format_program, join_args

        args = [arg for arg in self.args if not arg.startswith("out=")]
        return f"{format_program()} {join_args([self.command, *args, f'out={out}'])}"


OPTION_COMMANDS = {
    "out": ("run", "compare", "tune", "study"),
    "jobs": ("compare", "tune", "study"),
    "scale": ("study",),
    "parts": ("study",),
    "max_seconds": ("study",),
    "write": ("study",),
    "minutes": ("inspect",),
}
"""The commands that have options of their own, by option."""


def check_keys(command: str, args: Sequence[str], keys: Sequence[str] = ()) -> None:
    """Raise an InputError for a key that is given twice, or is an option of other commands.

    Args:
        command: Name of the command.
        args: Its arguments.
        keys: The options that it has itself.
    """
    given_keys = []
    for arg in args:
        key, equals, _ = arg.partition("=")
        if not equals:
            continue
        given_keys.append(key)
        commands = OPTION_COMMANDS.get(key, ())
        require(
            key in keys or not commands,
            f"{command}: {key} is an option of {', '.join(commands)}; leave it out.",
        )
    require_distinct(command, given_keys)


def parse_command_args(command: str, args: list[str] | None, keys: Sequence[str]) -> CommandArgs:
    """Return the arguments of a command, with those KEY=VALUE apart whose key is in `keys`.

    Args:
        command: Name of the command, for messages.
        args: The arguments as typed.
        keys: Keys of the command's own options.
    """
    check_keys(command, args or [], keys)
    options: dict[str, str] = {}
    rest = []
    for arg in args or []:
        key, equals, value = arg.partition("=")
        if equals and key in keys:
            options[key] = value
        else:
            rest.append(arg)
    return CommandArgs(command, list(args or []), options, rest)


@contextmanager
def reserve_out(out: Path | None, name: str) -> Iterator[Path]:
    """Yield the folder for results: `out`, or else the first of runs/NAME-1, runs/NAME-2, ...

    The latter is made at once, so that no other command takes it. If it is still empty at the end
    of the block, since what was asked for was refused, it is removed.

    Args:
        out: The folder that the user has named, if any.
        name: What is run, or the path of its data.
    """
    if out is not None:
        yield out
        return
    runs_path = Path("runs")
    with make_folder(runs_path):
        path = _make_next_folder(runs_path, Path(name).stem)
        try:
            yield path
        finally:
            with suppress(OSError):  # it is not empty
                path.rmdir()


def _make_next_folder(parent: Path, stem: str) -> Path:
    """Make the first folder of STEM-1, STEM-2, ... that does not exist yet."""
    for index in count(1):
        path = parent / f"{stem}-{index}"
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    return path
