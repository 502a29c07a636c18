"""Specifications: words of commands and files, most of them benign but for one or two places."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from fedtailor.data import get_options
from fedtailor.storage.paths import DATA_DIR_ENV
from fedtailor.training.config import CommonConfig, ComparisonConfig, RunConfig
from fedtailor.training.overrides import read_comparison, read_run_config
from fedtailor.training.runner import start_run
from fuzzing.cases import Case, Draws, StrategyDrawer
from fuzzing.children import RefusedError, WorkingError
from fuzzing.commands import run_command
from fuzzing.strategies import SPECIFICATION_FILE, Specification, specifications

OWN_KEYS = ("out=", "jobs=")
WORK_SECONDS = 2.0
"""Seconds of CPU that are given to a run that asks for much work."""
MAX_RUNS = 3
MAX_ROUNDS = 3
MAX_NUMBER = 64
"""Number above which a run is much work."""

_FREE_KEYS = (
    "seed",
    "chunk",
    "eval_clients",
    "final_eval_clients",
    "target",
    "checkpoint_every",
    "pretrain_batch",
)
"""Keys whose numbers do not make a run longer."""


class SpecificationTarget:
    """Commands with hostile words and files."""

    name = "specifications"

    def __init__(self) -> None:
        self._drawer = StrategyDrawer(specifications())

    def prepare(self, folder: Path) -> None:
        """Prepare nothing: specifications use data that come with the library."""

    def open(self, folder: Path) -> None:
        """Read nothing."""

    def make_case(self, draws: Draws) -> Case:
        """Return a command."""
        specification: Specification = self._drawer.draw(draws)
        file = "" if specification.file is None else f" {specification.file[:200]!r}"
        description = f"{list(specification.words)!a}{file}"
        return Case(description[:1000], partial(_act, specification))


def _act(specification: Specification, work: Path) -> str:
    os.environ[DATA_DIR_ENV] = str(work.parent / "data")
    if specification.file is not None:
        Path(SPECIFICATION_FILE).write_bytes(specification.file)
    command = specification.words[0]
    words = [word for word in specification.words[1:] if not word.startswith(OWN_KEYS)]
    try:
        if command in ("run", "compare", "tune") and not _is_small(command, words):
            _show_and_work(command, words)
        else:
            run_command(specification.words)
    except RefusedError:
        return "refused"
    return "ok"


def _is_small(command: str, words: list[str]) -> bool:
    """Return whether a command takes little time, as it does if it is refused."""
    try:
        if command == "run":
            return _is_small_config(read_run_config(words))
        comparison = read_comparison(words).add_baselines()
        configs = comparison.make_run_configs()
    except Exception:  # which the command meets again
        return True
    is_short = comparison.trials <= 1 and len(configs) <= MAX_RUNS
    return is_short and all(map(_is_small_config, configs))


def _is_small_config(config: RunConfig) -> bool:
    if config.compile is not False or config.log != "none" or config.rounds > MAX_ROUNDS:
        return False
    values = config.model_dump(exclude=set(_FREE_KEYS))
    values["hparams"].pop("batch", None)
    defaults = get_options(config.data)
    options = values["data_options"]
    values["data_options"] = {
        key: value for key, value in options.items() if value != defaults.get(key)
    }
    return all(_is_small_value(value) for value in values.values())


def _is_small_value(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_small_value, value.values()))
    if isinstance(value, list | tuple):
        return len(value) < 4 and all(map(_is_small_value, value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number or value <= MAX_NUMBER


def _show_and_work(command: str, words: list[str]) -> None:
    """Show a specification, and give its first run some time, in which it must be refused or work.

    Raises:
        WorkingError: The run was at work when the time was up.
    """
    if command != "tune":
        run_command([command, *words, "--show"])
    config: CommonConfig
    if command == "run":
        config = read_run_config(words)
    else:
        comparison: ComparisonConfig = read_comparison(words)
        config = comparison.make_run_config(comparison.methods[0], comparison.seeds[0])
    config = config.model_copy(update={"compile": False, "log": "none"})
    signal.signal(signal.SIGPROF, _raise_working)
    signal.setitimer(signal.ITIMER_PROF, WORK_SECONDS)
    start_run(config, "large", should_stop=lambda: True)


def _raise_working(number: int, frame: Any) -> None:
    raise WorkingError
