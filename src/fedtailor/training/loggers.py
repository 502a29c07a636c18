"""Loggers as listeners of a run: TensorBoard and MLflow, both extras."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.errors import import_extra

if TYPE_CHECKING:
    from fedtailor.training.runner import Listener


def make_loggers(name: str, out: Path) -> "tuple[Listener, ...]":
    """The logger that a specification names, writing into the run's folder; none for "none"."""
    return () if name == "none" else (_LOGGERS[name](out),)


def collect_scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """What is logged of a round: costs, and the mean scores of every group that was looked at."""
    found = {name: float(entry[name]) for name in ("bytes_down", "bytes_up", "steps", "seconds")}
    for group, scores in (entry["scores"] or {}).items():
        for stage, values in scores.items():
            found |= {
                f"{group}/{stage}/{name}": value
                for name, value in values.items()
                if value is not None
            }
    return found


class TensorBoardLogger:
    """Writes event files to OUT/tensorboard; look at them with `tensorboard --logdir OUT`."""

    def __init__(self, out: Path) -> None:
        import_extra("tensorboard", "tensorboard", "log=tensorboard")
        self._writer_class = import_module("torch.utils.tensorboard").SummaryWriter
        self._log_dir = out / "tensorboard"

    def on_run_start(self, record: Mapping[str, Any], rounds_done: int) -> None:
        """Opens the event file; rounds that will be done again are purged."""
        self._writer = self._writer_class(
            str(self._log_dir), purge_step=rounds_done + 1 if rounds_done else None
        )
        self._writer.add_text("command", record["command"])

    def on_round_end(self, entry: Mapping[str, Any]) -> None:
        """Adds a round."""
        for name, value in collect_scalars(entry).items():
            self._writer.add_scalar(name, value, entry["round"])

    def on_run_end(self, record: Mapping[str, Any]) -> None:
        """Closes the event file."""
        self._writer.close()


class MLflowLogger:
    """Writes to MLflow's local file store in OUT/mlruns; look at it with `mlflow ui --backend-store-uri OUT/mlruns`."""

    def __init__(self, out: Path) -> None:
        os.environ.setdefault(
            "MLFLOW_ALLOW_FILE_STORE", "true"
        )  # MLflow asks for this word before it writes files
        self._client_class = import_extra("mlflow", "mlflow", "log=mlflow").MlflowClient
        self._store_dir = out / "mlruns"

    def on_run_start(self, record: Mapping[str, Any], rounds_done: int) -> None:
        """Opens a run, or the one that was begun before."""
        self._client, run_id_file = (
            self._client_class(self._store_dir.resolve().as_uri()),
            self._store_dir / "run_of_fedtailor",
        )
        if run_id_file.exists():
            self._run_id = run_id_file.read_text()
            return
        found = self._client.get_experiment_by_name("fedtailor")
        experiment = found.experiment_id if found else self._client.create_experiment("fedtailor")
        self._run_id = self._client.create_run(experiment, run_name=record["name"]).info.run_id
        for key, value in _flatten_config(record["config"]).items():
            self._client.log_param(self._run_id, key, value)
        run_id_file.write_text(self._run_id)

    def on_round_end(self, entry: Mapping[str, Any]) -> None:
        """Adds a round."""
        for name, value in collect_scalars(entry).items():
            self._client.log_metric(self._run_id, name, value, step=entry["round"])

    def on_run_end(self, record: Mapping[str, Any]) -> None:
        """Closes the run."""
        self._client.set_terminated(self._run_id)


_LOGGERS: "dict[str, Callable[[Path], Listener]]" = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
}


def _flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    inner = {
        f"{key}.{name}": each
        for key, value in config.items()
        if isinstance(value, dict)
        for name, each in value.items()
    }
    return {key: value for key, value in config.items() if not isinstance(value, dict)} | inner
