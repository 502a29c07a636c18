"""Data stores, one file of which is damaged, and commands that read them.

Damage must be refused or harmless: a run must leave behind what it leaves behind with the untouched
store, and what is shown must be the same.
"""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtailor.data.sources import add_custom, read_custom_blocks
from fedtailor.data.store import DatasetAttributes
from fedtailor.storage.paths import DATA_DIR_ENV
from fuzzing.cases import Case, Draws, pick
from fuzzing.children import FindingError, RefusedError
from fuzzing.commands import is_verified_whole, run_command
from fuzzing.mutations import FileDamage, draw_damage
from fuzzing.results import find_difference, summarize_run

SMALL = (
    "method=fedavg",
    "data.server=5",
    "rounds=1",
    "cohort=3",
    "batch=200",
    "finetune_epochs=1",
    "engine=sequential",
    "compile=false",
    "threads=1",
)
"""Words of specifications whose runs take no time."""

MODELS = {"numbers": "linear", "images": "linear", "texts": "lstm"}
"""Stores that are prepared, with a model for each; each has a twin with other examples."""

DATA_FOLDER = "data"
NUM_TOKENS = 20
UNTOUCHED_SHARE = 0.02
"""Share of cases without damage, which must work."""
VERIFIED_SHARE = 0.2
"""Share of cases in which the store is verified first, where there is a command for that."""


def run(store: str) -> dict[str, Any]:
    """Train a round on the store."""
    words = [*SMALL, f"data={store}", f"model={MODELS[store]}", "hidden=4", "out=out"]
    run_command(["run", *words])
    return summarize_run(Path("out"))


def show(store: str) -> dict[str, Any]:
    """Show the clients' labels."""
    return {"shown": run_command(["data", "show", store, "server=5"]).out}


COMMANDS: tuple[Callable[[str], dict[str, Any]], ...] = (run, run, show)


class StoreTarget:
    """Data stores with damage, and commands that read them."""

    name = "stores"

    def __init__(self) -> None:
        self._folder = Path()
        self._results: dict[str, dict[str, Any]] = {}

    def prepare(self, folder: Path) -> None:
        """Add the sets, and note what commands do with them, which also writes their scenarios."""
        os.chdir(folder)
        os.environ[DATA_DIR_ENV] = str(folder / DATA_FOLDER)
        for seed, prefix in enumerate(("", "twin-")):
            for store, arrays in _make_sets(seed).items():
                np.savez(f"{prefix}{store}.npz", **arrays)
                blocks = read_custom_blocks(f"{prefix}{store}.npz")
                is_text = store == "texts"
                classes: Any = NUM_TOKENS if is_text else "auto"
                attributes = DatasetAttributes(classes=classes, tokens=is_text)
                add_custom(f"{prefix}{store}", blocks, attributes)
        results = {}
        for store in MODELS:
            for command in dict.fromkeys(COMMANDS):
                results[f"{store} {command.__name__}"] = command(store)
                shutil.rmtree("out", ignore_errors=True)
        (folder / "results.json").write_text(json.dumps(results))

    def open(self, folder: Path) -> None:
        """Read what commands do with untouched stores."""
        self._folder = folder
        self._results = json.loads((folder / "results.json").read_text())

    def make_case(self, draws: Draws) -> Case:
        """Return a command on a copy of a store with damage."""
        store = pick(draws, list(MODELS))
        command = pick(draws, COMMANDS)
        is_untouched = draws.random() < UNTOUCHED_SHARE
        is_verified = draws.random() < VERIFIED_SHARE
        stores = self._folder / DATA_FOLDER / "stores"
        twin = stores / f"twin-{store}"
        damage = None if is_untouched else draw_damage(stores / store, draws, (twin,))
        plan = _Plan(store, command, damage, is_verified)
        what = "untouched" if damage is None else damage.description
        return Case(f"{store}: {command.__name__}: {what}", partial(self._act, plan))

    def _act(self, plan: "_Plan", work: Path) -> str:
        data_folder = work / DATA_FOLDER
        stores = data_folder / "stores"
        shutil.copytree(self._folder / DATA_FOLDER / "stores" / plan.store, stores / plan.store)
        os.environ[DATA_DIR_ENV] = str(data_folder)
        if plan.damage is not None:
            plan.damage.apply(stores / plan.store)
        is_whole = plan.is_verified and is_verified_whole(plan.store)
        try:
            result = plan.command(plan.store)
        except RefusedError as refusal:
            if plan.damage is None or is_whole:
                raise FindingError("refused", plan.place, str(refusal)) from None
            return "refused"
        expected = self._results[f"{plan.store} {plan.command.__name__}"]
        difference = find_difference(expected, json.loads(json.dumps(result)))
        if difference:
            raise FindingError("difference", plan.place, f"{difference} differs")
        return "ok"


class _Plan(NamedTuple):
    """What a case does."""

    store: str
    command: Callable[[str], dict[str, Any]]
    damage: FileDamage | None
    is_verified: bool

    @property
    def place(self) -> str:
        """Return the store, the command and the file."""
        file = "" if self.damage is None else Path(self.damage.file).name
        return f"{self.store} {file}, {self.command.__name__}"


def _make_sets(seed: int) -> dict[str, dict[str, Any]]:
    """Return arrays of eight clients by the name of the set."""
    draws = np.random.default_rng(seed)
    client = np.array([f"client {number % 8}" for number in range(96)])
    tokens = draws.integers(0, NUM_TOKENS, (96, 6), np.uint8)
    return {
        "numbers": {
            "x": draws.normal(size=(96, 5)).astype(np.float32),
            "y": draws.integers(0, 3, 96),
            "client": client,
        },
        "images": {
            "x": draws.integers(0, 256, (96, 1, 4, 4), np.uint8),
            "y": draws.integers(0, 3, 96, np.uint8),
            "client": client,
        },
        "texts": {"x": tokens[:, :-1], "y": tokens[:, 1:], "client": client},
    }
