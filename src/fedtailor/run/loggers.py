"""Loggers as listeners of a run: TensorBoard and MLflow, both extras."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.errors import import_extra

if TYPE_CHECKING:
    from fedtailor.run.session import Listener


def logger(name: str, out: Path) -> "tuple[Listener, ...]":
    """The logger that a specification names, writing into the run's folder; none for "none"."""
    return () if name == "none" else (_LOGGERS[name](out),)


def figures_of(entry: Mapping[str, Any]) -> dict[str, float]:
    """What is logged of a round: costs, and the mean scores of every group that was looked at."""
    found = {name: float(entry[name]) for name in ("bytes_down", "bytes_up", "steps", "seconds")}
    for group, scores in (entry["scores"] or {}).items():
        for when, values in scores.items():
            found |= {f"{group}/{when}/{name}": value for name, value in values.items() if value is not None}
    return found


class TensorBoard:
    """Writes event files to OUT/tensorboard; look at them with `tensorboard --logdir OUT`."""

    def __init__(self, out: Path) -> None:
        import_extra("tensorboard", "tensorboard", "log=tensorboard")
        self._make = import_module("torch.utils.tensorboard").SummaryWriter
        self._folder = out / "tensorboard"

    def began(self, record: Mapping[str, Any], done: int) -> None:
        """Opens the event file; rounds that will be done again are purged."""
        self._writer = self._make(str(self._folder), purge_step=done + 1 if done else None)
        self._writer.add_text("command", record["command"])

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """Adds a round."""
        for name, value in figures_of(entry).items():
            self._writer.add_scalar(name, value, entry["round"])

    def finished(self, record: Mapping[str, Any]) -> None:
        """Closes the event file."""
        self._writer.close()


class MLflow:
    """Writes to MLflow's local file store in OUT/mlruns; look at it with `mlflow ui --backend-store-uri OUT/mlruns`."""

    def __init__(self, out: Path) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow asks for this word before it writes files
        self._make = import_extra("mlflow", "mlflow", "log=mlflow").MlflowClient
        self._store = out / "mlruns"

    def began(self, record: Mapping[str, Any], done: int) -> None:
        """Opens a run, or the one that was begun before."""
        self._client, named = self._make(self._store.resolve().as_uri()), self._store / "run_of_fedtailor"
        if named.exists():
            self._run = named.read_text()
            return
        found = self._client.get_experiment_by_name("fedtailor")
        experiment = found.experiment_id if found else self._client.create_experiment("fedtailor")
        self._run = self._client.create_run(experiment, run_name=record["name"]).info.run_id
        for key, value in _flat(record["spec"]).items():
            self._client.log_param(self._run, key, value)
        named.write_text(self._run)

    def ended_round(self, entry: Mapping[str, Any]) -> None:
        """Adds a round."""
        for name, value in figures_of(entry).items():
            self._client.log_metric(self._run, name, value, step=entry["round"])

    def finished(self, record: Mapping[str, Any]) -> None:
        """Closes the run."""
        self._client.set_terminated(self._run)


_LOGGERS: "dict[str, Callable[[Path], Listener]]" = {"tensorboard": TensorBoard, "mlflow": MLflow}


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        f"{key}.{name}": each for key, value in spec.items() if isinstance(value, dict) for name, each in value.items()
    }
    return {key: value for key, value in spec.items() if not isinstance(value, dict)} | inner
