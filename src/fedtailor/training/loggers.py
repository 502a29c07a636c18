"""Loggers as listeners of a run: TensorBoard and MLflow, both extras."""

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.errors import import_extra
from fedtailor.training.record.schema import RoundEntry, RunRecord

if TYPE_CHECKING:
    from fedtailor.training.runner import Listener


def make_loggers(name: str, out: Path) -> "tuple[Listener, ...]":
    """Return the logger that a specification names, if any; it writes into the run's folder."""
    return () if name == "none" else (_LOGGERS[name](out),)


def collect_scalars(entry: RoundEntry) -> dict[str, float]:
    """Return the numbers that are logged of a round: its costs, and mean scores by group."""
    scalars = {
        "bytes_down": float(entry.bytes_down),
        "bytes_up": float(entry.bytes_up),
        "steps": float(entry.steps),
        "seconds": entry.seconds,
    }
    for group, stages in (entry.scores or {}).items():
        for stage, figures in stages.items():
            for name, value in figures.items():
                if value is not None:
                    scalars[f"{group}/{stage}/{name}"] = value
    return scalars


class TensorBoardLogger:
    """A logger to event files in OUT/tensorboard; view them with `tensorboard --logdir OUT`."""

    def __init__(self, out: Path) -> None:
        import_extra("tensorboard", "tensorboard", "log=tensorboard")
        self._writer_class = import_module("torch.utils.tensorboard").SummaryWriter
        self._log_dir = out / "tensorboard"

    def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
        """Open the event file; rounds that will be run again are purged."""
        self._writer = self._writer_class(
            str(self._log_dir), purge_step=rounds_done + 1 if rounds_done else None
        )
        self._writer.add_text("command", record.command)

    def on_round_end(self, entry: RoundEntry) -> None:
        """Add a round."""
        for name, value in collect_scalars(entry).items():
            self._writer.add_scalar(name, value, entry.round)

    def on_run_end(self, record: RunRecord) -> None:
        """Close the event file."""
        self._writer.close()


class MLflowLogger:
    """A logger to MLflow's local file store in OUT/mlruns.

    View it with `mlflow ui --backend-store-uri OUT/mlruns`.
    """

    def __init__(self, out: Path) -> None:
        # MLflow asks for this before it writes files.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client_class = import_extra("mlflow", "mlflow", "log=mlflow").MlflowClient
        self._store_dir = out / "mlruns"

    def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
        """Open a run, or the one that was started before."""
        self._client = self._client_class(self._store_dir.resolve().as_uri())
        run_id_file = self._store_dir / "run_of_fedtailor"
        if run_id_file.exists():
            self._run_id = run_id_file.read_text()
            return
        experiment = self._client.get_experiment_by_name("fedtailor")
        if experiment is None:
            experiment_id = self._client.create_experiment("fedtailor")
        else:
            experiment_id = experiment.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=record.name).info.run_id
        for key, value in _flatten_config(record.config.model_dump(mode="json")).items():
            self._client.log_param(self._run_id, key, value)
        run_id_file.write_text(self._run_id)

    def on_round_end(self, entry: RoundEntry) -> None:
        """Add a round."""
        for name, value in collect_scalars(entry).items():
            self._client.log_metric(self._run_id, name, value, step=entry.round)

    def on_run_end(self, record: RunRecord) -> None:
        """Close the run."""
        self._client.set_terminated(self._run_id)


_LOGGERS: "dict[str, Callable[[Path], Listener]]" = {
    "tensorboard": TensorBoardLogger,
    "mlflow": MLflowLogger,
}


def _flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specification with dotted keys for the entries of its tables."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": entry for name, entry in value.items()}
        else:
            flat[key] = value
    return flat
