"""The record of a run: what was asked for, what was chosen, what came out.

OUT/spec.json      the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, when the run is stopped and at the end
OUT/rounds.jsonl   a line per round, as they end
OUT/model.safetensors, OUT/report.html    at the end
"""

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedtailor
from fedtailor import methods
from fedtailor.data.dataset import FederatedDataset
from fedtailor.disk import hold_lock, write_bytes
from fedtailor.engines.base import Setting
from fedtailor.errors import require
from fedtailor.run.commands import resume_command
from fedtailor.run.costs import NAMES as WORK
from fedtailor.run.described import described, fingerprint
from fedtailor.run.evaluate import Full
from fedtailor.run.files import read_json, write_json
from fedtailor.run.metrics import Scores, micro
from fedtailor.run.spec import Spec, checked_spec
from fedtailor.types import Params

FORMAT = 1
OWN_MODEL = "own_model.py"
"""A copy of the file that makes the user's model, so that the folder is whole by itself."""
_BEGINNINGS = {OWN_MODEL, f".{OWN_MODEL}.new", ".spec.json.new"}
"""All that a folder holds if the process was killed before the run was there to be resumed."""
COSTS = ("bytes_down", "bytes_up", "steps", "seconds", *WORK)
"""What a round's entry says that it cost."""
_NEEDED = {"status", "spec", "versions", "choices", "data"}
"""Entries of a record without which a run cannot be gone on with."""


class Folder:
    """A run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self, spec: Spec) -> None:
        """Makes the folder for a run, and refuses one that holds anything; if it fails, nothing is left of it."""
        self._refuse_used()
        made = not self.path.exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if ":" in spec.model:
                write_bytes(self.path / OWN_MODEL, Path(spec.model.rpartition(":")[0]).read_bytes())
            write_json(self._spec, {"format": FORMAT, "spec": spec.model_dump(mode="json")})
        except BaseException:
            if self.path.is_dir():
                for name in (*_BEGINNINGS, self._spec.name):
                    (self.path / name).unlink(missing_ok=True)
                if made:
                    self.path.rmdir()
            raise

    def _refuse_used(self) -> None:
        require(not self.path.exists() or self.path.is_dir(), f"'{self.path}' is a file; choose another folder.")
        require(
            not self._spec.exists(),
            f"'{self.path}' holds another run already; go on with it by: {resume_command(self.path)}",
        )
        others = {each.name for each in self.path.iterdir()} - _BEGINNINGS if self.path.exists() else ()
        require(not others, f"'{self.path}' holds something already; choose another folder.")

    def spec(self) -> Spec:
        """The specification of the run that is in the folder."""
        require(self._spec.exists(), f"'{self.path}' holds no run: there is no spec.json in it.")
        return spec_in(self._spec)

    def only_me(self) -> AbstractContextManager[bool]:
        """Keep other processes from working on the same run."""
        taken = f"The run in '{self.path}' is being worked on by another process; wait for its end."
        return hold_lock(self.path / "lock", taken)

    def write(self, record: Mapping[str, Any]) -> None:
        """Replaces the record."""
        write_json(self.path / "record.json", record)

    def record(self) -> dict[str, Any]:
        """The record, with the rounds of a run that is still going on."""
        require(self._spec.exists(), f"'{self.path}' holds no run: there is no spec.json in it.")
        require((self.path / "record.json").exists(), f"The run in '{self.path}' has not begun yet.")
        record: dict[str, Any] = read_json(self.path / "record.json")
        whole = isinstance(record, dict) and record.get("format") == FORMAT and {*record} >= _NEEDED
        require(whole, f"'{self.path}/record.json' is not a record of format {FORMAT}, which this fedtailor reads.")
        return record if record["status"] == "finished" else record | {"rounds": self.rounds()}

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
        kept = [entry for entry in self.rounds() if entry["round"] <= last]
        whole = [entry["round"] for entry in kept] == list(range(1, last + 1))
        require(whole, f"'{self.path}/rounds.jsonl' lacks rounds up to {last}; bring the file back to go on.")
        write_bytes(self.path / "rounds.jsonl", "".join(json.dumps(entry) + "\n" for entry in kept).encode())

    def add_round(self, entry: Mapping[str, Any], sync: bool) -> None:
        """Adds a line for a round that has ended; with `sync` it and those before are on the disk afterwards."""
        with (self.path / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")
            file.flush()
            if sync:
                os.fsync(file.fileno())

    @property
    def _spec(self) -> Path:
        return self.path / "spec.json"


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry if isinstance(entry, dict) and "round" in entry else None


def spec_in(path: Path) -> Spec:
    """The specification in a JSON file that also says its format."""
    content = read_json(path)
    came = content.get("format") if isinstance(content, dict) else None
    require(came == FORMAT, f"'{path}' has format {came}, but this fedtailor reads format {FORMAT}.")
    return checked_spec(content.get("spec"), path)


def first_record(
    spec: Spec,
    hyper: Mapping[str, Any],
    setting: Setting,
    shared: Mapping[str, str],
    choices: Mapping[str, Any],
    command: str,
) -> dict[str, Any]:
    """The record before the first round; `shared` is what all methods of a comparison have in common."""
    metric = setting.task.metrics[0]
    return {
        "format": FORMAT,
        "status": "running",
        "name": spec.label or setting.method.name,
        "spec": spec.model_dump(mode="json"),
        "hyper": dict(hyper),
        "origins": origins(spec, hyper),
        "command": command,
        "versions": versions(),
        "machine": machine(setting.device),
        "commit": commit(),
        "choices": dict(choices),
        "metric": {"name": metric.name, "higher_is_better": metric.higher_is_better},
        "data": described(setting.data),
        "shared": dict(shared),
        "rounds": [],
        "scores": None,
        "summary": None,
        "window": None,
        "pace": None,
        "cost": None,
    }


def have_same_data(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether runs had the same clients with the same examples, whatever their seeds."""
    sums = {record.get("shared", {}).get("data") for record in records}
    return len(sums) == 1 and None not in sums


def shared_by_all(data: FederatedDataset, params: Params) -> dict[str, str]:
    """Checksums of the data as they are before any method's view of them, and of the first weights."""
    return {"data": fingerprint(data), "weights": _sum(params)}


def _sum(params: Params) -> str:
    found = hashlib.sha256()
    for name, value in sorted(params.items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def origins(spec: Spec, hyper: Mapping[str, Any]) -> dict[str, str]:
    """Where every hyper-parameter's value comes from.

    validation: validation clients chose it in trials that scored nobody else; given: it was asked for; run: it follows
    from the size of the run; default: nobody said anything.
    """
    default = asdict(methods.hyper_of(spec.method))
    found = {}
    for name, value in hyper.items():
        asked = spec.hyper.get(name, default[name])
        by = "validation" if name in spec.chosen else "given" if asked != default[name] else "default"
        found[name] = "run" if by == "default" and value != asked else by
    return found


def figures(full: Full) -> dict[str, Any]:
    """Every client's figures as JSON; None for a client that could not be tested."""
    scores = full.scores
    return {
        "ids": scores.ids.tolist(),
        "before": {name: _listed(values) for name, values in scores.before.items()},
        "after": {name: _listed(values) for name, values in scores.after.items()},
        "after_steps": {
            passes: {name: _listed(values) for name, values in found.items()}
            for passes, found in full.after_steps.items()
        },
        "weights": _listed(next(reversed(scores.weights.values()))),
    }


def means(scores: Scores, headline: str) -> dict[str, Any]:
    """Means over the clients that could be tested; of the headline figure also that over all their examples."""
    return {
        when: {name: _mean(values) for name, values in found.items()}
        | {"acc_micro": _plain(micro(found[headline], scores.weights[headline]))}
        for when, found in (("before", scores.before), ("after", scores.after))
    }


def _mean(values: np.ndarray) -> float | None:
    tested = values[np.isfinite(values)]
    return float(tested.mean()) if len(tested) else None


def _listed(values: np.ndarray) -> list[float | None]:
    return [_plain(float(value)) for value in values]


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def changed_versions(record: Mapping[str, Any]) -> list[str]:
    """A note if the run was begun with other versions than those here: the last digits may differ then."""
    then = record["versions"]
    changed = [f"{name} {value} for {then.get(name)}" for name, value in versions().items() if value != then.get(name)]
    return [f"resumed with {', '.join(changed)}: the last digits may differ"] if changed else []


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "fedtailor": fedtailor.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def machine(device: torch.device) -> str:
    """The GPU's name, or the processor's: seconds mean nothing without it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the source tree that fedtailor is run from, with a + if it was changed; None without one."""
    here = Path(fedtailor.__file__).parent
    asked = ["git", "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"})
    except OSError:
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
