"""The record of a run: what was asked for, what was chosen, what came out.

OUT/spec.json      the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, at every checkpoint and at the end
OUT/rounds.jsonl   a line per round, as they end
OUT/model.safetensors, OUT/report.html    at the end
"""

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedtailor
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.holders import Holders
from fedtailor.engines.base import Setting
from fedtailor.errors import InputError, require
from fedtailor.run.files import read_json, write_bytes, write_json
from fedtailor.run.metrics import Scores
from fedtailor.run.spec import Spec

FORMAT = 1
OWN_MODEL = "own_model.py"
"""A copy of the file that makes the user's model, so that the folder is whole by itself."""
MOST_CELLS = 200_000
"""Label counts are left out of the record when clients x classes are more."""


class Folder:
    """A run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, spec: Spec) -> None:
        """Makes the folder for a run, and refuses one that holds anything."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            hint = (
                f"go on with it by: fedtailor resume {self.path}" if self._spec.exists() else "choose another folder."
            )
            raise InputError(
                f"'{self.path}' holds {'another run' if self._spec.exists() else 'something'} already; {hint}"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        if ":" in spec.model:
            own = Path(spec.model.rpartition(":")[0])
            write_bytes(self.path / OWN_MODEL, own.read_bytes())
        write_json(self._spec, {"format": FORMAT, "spec": spec.model_dump(mode="json")})

    def spec(self) -> Spec:
        """The specification of the run that is in the folder."""
        require(self._spec.exists(), f"'{self.path}' holds no run: there is no spec.json in it.")
        content = read_json(self._spec)
        require(content.get("format") == FORMAT, f"'{self._spec}' has format {content.get('format')}, not {FORMAT}.")
        return Spec.model_validate(content["spec"])

    def write(self, record: Mapping[str, Any]) -> None:
        """Replaces the record."""
        write_json(self.path / "record.json", record)

    def record(self) -> dict[str, Any]:
        """The record, with the rounds of a run that is still going on."""
        require(self._spec.exists(), f"'{self.path}' holds no run: there is no spec.json in it.")
        require((self.path / "record.json").exists(), f"The run in '{self.path}' has not begun yet.")
        record: dict[str, Any] = read_json(self.path / "record.json")
        return record | {"rounds": self.rounds()}

    def begun(self) -> bool:
        """Whether choices have been made and written."""
        return (self.path / "record.json").exists()

    def rounds(self) -> list[dict[str, Any]]:
        """The rounds that have ended; a line that was being written when the run was killed is left out."""
        path = self.path / "rounds.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for line in lines if (entry := _entry(line)) is not None]

    def keep_rounds(self, last: int) -> None:
        """Forgets the rounds after one, which will be done again."""
        kept = [json.dumps(entry) + "\n" for entry in self.rounds() if entry["round"] <= last]
        write_bytes(self.path / "rounds.jsonl", "".join(kept).encode())

    def add_round(self, entry: Mapping[str, Any]) -> None:
        """Adds a line for a round that has ended."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")

    @property
    def _spec(self) -> Path:
        return self.path / "spec.json"


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry


def first_record(spec: Spec, setting: Setting, choices: Mapping[str, Any], command: str) -> dict[str, Any]:
    """The record before the first round."""
    metric = setting.task.metrics[0]
    return {
        "format": FORMAT,
        "status": "running",
        "name": setting.method.name,
        "spec": spec.model_dump(mode="json"),
        "command": command,
        "versions": versions(),
        "commit": commit(),
        "choices": dict(choices),
        "metric": {"name": metric.name, "higher_is_better": metric.higher_is_better},
        "data": described(setting.data),
        "rounds": [],
        "scores": None,
        "cost": None,
    }


def described(data: FederatedDataset) -> dict[str, Any]:
    """Who has how much of what."""
    count = data.clients.count
    small = data.classes is not None and data.clients.y.ndim == 1 and count * data.classes <= MOST_CELLS
    return {
        "name": data.name,
        "classes": data.classes,
        "server_examples": 0 if data.server is None else len(data.server.x),
        "overlap": data.overlap,
        "units": data.units._asdict() | {"shape": list(data.units.shape)},
        "clients": data.ids.tolist(),
        "groups": {group: people.tolist() for group, people in data.groups.items()},
        "train_sizes": data.clients.splits["train"].sizes().tolist(),
        "test_sizes": data.clients.splits["test"].sizes().tolist(),
        "labels": label_counts(data.clients, data.classes or 0).tolist() if small else None,
        "server_labels": label_counts(data.server, data.classes or 0)[0].tolist() if small and data.server else None,
    }


def label_counts(holders: Holders, classes: int) -> np.ndarray:
    """How many examples of each class every holder has, in whatever split."""
    counts = np.zeros((holders.count, classes), dtype=np.int64)
    for split in holders.splits.values():
        np.add.at(counts, (split.holders(), holders.y[split.index].astype(np.int64)), 1)
    return counts


def figures(scores: Scores) -> dict[str, Any]:
    """Every client's figures as JSON; None for a client that could not be tested."""
    return {
        "ids": scores.ids.tolist(),
        "before": {name: _listed(values) for name, values in scores.before.items()},
        "after": {name: _listed(values) for name, values in scores.after.items()},
        "weights": _listed(next(reversed(scores.weights.values()))),
    }


def means(scores: Scores) -> dict[str, Any]:
    """The mean over the clients that could be tested."""
    return {
        when: {name: _mean(values) for name, values in found.items()}
        for when, found in (("before", scores.before), ("after", scores.after))
    }


def _mean(values: np.ndarray) -> float | None:
    tested = values[np.isfinite(values)]
    return float(tested.mean()) if len(tested) else None


def _listed(values: np.ndarray) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "fedtailor": fedtailor.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def commit() -> str | None:
    """The commit of the source tree that fedtailor is run from, with a + if it was changed; None without one."""
    here = Path(fedtailor.__file__).parent
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"})
    except OSError:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
