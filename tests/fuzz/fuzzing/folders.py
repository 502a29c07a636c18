"""Folders of runs and of personal models, one file of which is damaged, and commands that read
them.

Damage must be refused or harmless. It is harmless if the command leaves behind what it leaves
behind for the untouched folder.
"""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from fedtailor.experiments.compare import compare
from fedtailor.training.overrides import read_comparison, read_run_config
from fedtailor.training.runner import start_run
from fuzzing.cases import Case, Draws, pick
from fuzzing.children import FindingError, RefusedError
from fuzzing.commands import is_verified_whole, run_command
from fuzzing.mutations import FileDamage, draw_damage
from fuzzing.results import (
    drop_file,
    find_difference,
    hash_file,
    hash_last_state,
    summarize_model,
    summarize_run,
)

SMALL = (
    "data.clients=6",
    "model=linear",
    "cohort=3",
    "batch=200",
    "finetune_epochs=1",
    "engine=sequential",
    "compile=false",
    "threads=1",
    "checkpoint_every=1",
    "evaluate_every=1",
)
"""Words of specifications whose runs take no time."""

COMPARISON = ("fedavg", "fedprox", "baselines=false", "seeds=0", *SMALL, "rounds=2")
TUNING = (
    *("fedavg", "baselines=false", "seeds=0", "tune.lr=0.1,0.2", "trials=2"),
    *("data.validation_clients=0.3", *SMALL, "rounds=2"),
)
OWN_MODEL = """import torch


def net():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""
UNTOUCHED_SHARE = 0.02
"""Share of cases without damage, which must work."""
RESTORED_SHARE = 0.3
"""Share of refused cases in which the damaged file is put back: nothing else may be lost."""
VERIFIED_SHARE = 0.2
"""Share of cases in which the folder is verified first, where there is a command for that."""

Result = dict[str, Any]


class Action(NamedTuple):
    """A command on a folder."""

    folder: str
    perform: Callable[[], Result]  # returns what the command leaves behind

    @property
    def name(self) -> str:
        """Return the folder and the command in a few words."""
        return f"{self.folder}, {getattr(self.perform, '__name__', 'command')}"


# Commands, which run beside a copy of the folder that they work on


def resume_run(folder: str) -> Result:
    """Resume a run to its end."""
    run_command(["resume", folder])
    return {**summarize_run(Path(folder)), "state": hash_last_state(Path(folder))}


def resume_finished(folder: str) -> Result:
    """Resume a run that has finished, which changes nothing."""
    run_command(["resume", folder])
    return {}


def report(folder: str) -> Result:
    """Write a report."""
    run_command(["report", folder, "--to", "report.html"])
    return {"report": hash_file(Path("report.html"))}


def personalize(folder: str) -> Result:
    """Personalize the model of a run for an unseen client."""
    run_command(["personalize", folder, "--data", "own.npz", "--to", "new"])
    return summarize_model(Path("new"))


def export(folder: str) -> Result:
    """Write the personal model of one of a run's clients."""
    run_command(["export", folder, "--client", "1", "--to", "new"])
    return summarize_model(Path("new"))


def predict(folder: str) -> Result:
    """Predict with a personal model."""
    run_command(["predict", folder, "--data", "own.npz", "--to", "out.csv"])
    return {"predictions": Path("out.csv").read_text()}


def repeat_comparison(folder: str) -> Result:
    """Repeat a comparison, which resumes what has not finished."""
    run_command(["compare", *COMPARISON, f"out={folder}"])
    runs = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    return {path.name: summarize_run(path) for path in runs}


def repeat_tuning(folder: str) -> Result:
    """Repeat a command that tunes, which writes what it has chosen anew."""
    run_command(["tune", *TUNING, f"out={folder}"])
    return {name: Path(folder, name).read_text() for name in ("trials.json", "tuned.toml")}


def compare_tuned(folder: str) -> Result:
    """Run the comparison that was chosen."""
    run_command(["compare", f"{folder}/tuned.toml", "out=compared"])
    runs = sorted(path for path in Path("compared").iterdir() if path.is_dir())
    return {path.name: summarize_run(path) for path in runs}


COMMANDS: dict[str, tuple[Callable[[str], Result], ...]] = {
    "finished": (report, personalize, export, resume_finished),
    "interrupted": (resume_run, resume_run, resume_run, report),
    "own-model": (personalize, export),
    "compared": (repeat_comparison, report),
    "half-compared": (repeat_comparison, repeat_comparison),
    "tuned": (repeat_tuning, compare_tuned),
    "personal": (predict, predict),
    "personal-own": (predict,),
}
"""Folders that are prepared, and commands on each; one that stands twice is drawn more often."""

REPEATABLE = (resume_run, repeat_comparison, repeat_tuning)
"""Commands that go on with what they are given."""

OTHERS = ("other", "finished", "interrupted")
"""Folders whose files may take the place of others'."""


class FolderTarget:
    """Run folders and model folders with damage, and commands that read them."""

    name = "folders"

    def __init__(self) -> None:
        self._folder = Path()
        self._results: dict[str, Result] = {}

    def prepare(self, folder: Path) -> None:
        """Write one folder of each kind, and what every command leaves behind for it."""
        os.chdir(folder)
        # Records of equal bytes, so that equal cases damage equal places.
        with mock.patch("time.perf_counter", side_effect=itertools.count(step=0.125)):
            _write_folders()
        results = {}
        for name, command in _list_commands():
            copy = folder / "copy" / "work"
            copy.mkdir(parents=True)
            _copy_for(folder, copy, name)
            os.chdir(copy)
            results[f"{name} {command.__name__}"] = command(name)
            os.chdir(folder)
            shutil.rmtree(folder / "copy")
        (folder / "results.json").write_text(json.dumps(results))

    def open(self, folder: Path) -> None:
        """Read what commands leave behind for untouched folders."""
        self._folder = folder
        self._results = json.loads((folder / "results.json").read_text())

    def make_case(self, draws: Draws) -> Case:
        """Return a command on a copy of a folder with damage."""
        name = pick(draws, list(COMMANDS))
        command = pick(draws, COMMANDS[name])
        is_untouched = draws.random() < UNTOUCHED_SHARE
        is_restored = draws.random() < RESTORED_SHARE
        is_verified = draws.random() < VERIFIED_SHARE
        others = tuple(self._folder / other for other in OTHERS if other != name)
        damage = None if is_untouched else draw_damage(self._folder / name, draws, others)
        plan = _Plan(name, command, damage, is_restored, is_verified)
        what = "untouched" if damage is None else damage.description
        return Case(f"{name}: {command.__name__}: {what}", partial(self._act, plan))

    def _act(self, plan: "_Plan", work: Path) -> str:
        _copy_for(self._folder, work, plan.folder)
        if plan.damage is not None:
            plan.damage.apply(work / plan.folder)
        is_whole = plan.is_verified and is_verified_whole(plan.folder)
        try:
            self._compare(plan, plan.command(plan.folder))
        except RefusedError as refusal:
            if plan.damage is None or is_whole:
                raise FindingError("refused", plan.place, str(refusal)) from None
            if plan.is_restored and plan.command in REPEATABLE:
                self._require_nothing_lost(plan, work)
            return "refused"
        return "ok"

    def _compare(self, plan: "_Plan", result: Result, kind: str = "difference") -> None:
        expected: Any = self._results[f"{plan.folder} {plan.command.__name__}"]
        actual = json.loads(json.dumps(result))
        if plan.damage is not None and plan.damage.is_in(Path(plan.folder)):
            # The file is neither written nor, so far as this shows, read by the command.
            path = Path(plan.folder, plan.damage.file)
            expected = drop_file(expected, path)
            actual = drop_file(actual, path)
        difference = find_difference(expected, actual)
        if difference:
            raise FindingError(kind, plan.place, f"{difference} differs")

    def _require_nothing_lost(self, plan: "_Plan", work: Path) -> None:
        """Put the damaged file back, and run the refused command again."""
        assert plan.damage is not None
        path = work / plan.folder / plan.damage.file
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        shutil.copy2(self._folder / plan.folder / plan.damage.file, path)
        try:
            self._compare(plan, plan.command(plan.folder), "lost")
        except RefusedError as refusal:
            place = f"{plan.place}: still refused when the file is put back"
            raise FindingError("lost", place, str(refusal)) from None


class _Plan(NamedTuple):
    """What a case does."""

    folder: str
    command: Callable[[str], Result]
    damage: FileDamage | None
    is_restored: bool
    is_verified: bool

    @property
    def place(self) -> str:
        """Return the folder, the command and the file without its numbers."""
        file = "" if self.damage is None else simplify(self.damage.file)
        return f"{self.folder} {file}, {self.command.__name__}"


def simplify(file: str) -> str:
    """Return a path without the digits of its names."""
    return "".join("N" if letter.isdigit() else letter for letter in file)


def _list_commands() -> list[tuple[str, Callable[[str], Result]]]:
    return [
        (name, command)
        for name, commands in COMMANDS.items()
        for command in dict.fromkeys(commands)
    ]


def _copy_for(source: Path, target: Path, name: str) -> None:
    """Copy a prepared folder, with the times of its files, and the examples of a client."""
    shutil.copytree(source / name, target / name)
    shutil.copy2(source / "own.npz", target / "own.npz")


def _write_folders() -> None:
    """Write all prepared folders into the current one."""
    draws = np.random.default_rng(0)
    x = draws.integers(0, 17, (12, 1, 8, 8), np.uint8)
    np.savez("own.npz", x=x, y=draws.integers(0, 10, 12))
    Path("net.py").write_text(OWN_MODEL)
    run_command(["run", "method=ditto", *SMALL, "rounds=2", "out=finished"])
    run_command(["run", "method=ditto", *SMALL, "rounds=2", "seed=1", "lr=0.2", "out=other"])
    own_words = [word for word in SMALL if not word.startswith("model=")]
    run_command(
        ["run", "method=fedavg", *own_words, "model=net.py:net", "rounds=1", "out=own-model"]
    )
    config = read_run_config(["method=ditto", *SMALL, "rounds=4"])
    start_run(config, "interrupted", should_stop=_stop_after(2))
    run_command(["compare", *COMPARISON, "out=compared"])
    comparison = read_comparison(list(COMPARISON))
    compare(comparison, Path("half-compared"), should_stop=_stop_after(4))
    run_command(["tune", *TUNING, "out=tuned"])
    run_command(["personalize", "finished", "--data", "own.npz", "--to", "personal"])
    run_command(["personalize", "own-model", "--data", "own.npz", "--to", "personal-own"])


def _stop_after(num_calls: int) -> Callable[[], bool]:
    """Return a function that asks a run to stop when it has been called so often."""
    calls = iter(range(num_calls - 1))
    return lambda: next(calls, None) is None
