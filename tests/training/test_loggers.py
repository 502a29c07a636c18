import sys
from pathlib import Path
from typing import Any

import pytest

from fedtailor.errors import InputError
from fedtailor.training.overrides import read_run_config
from fedtailor.training.runner import start_run
from known import known


def small(log: str) -> Any:
    return read_run_config(
        ["method=fedavg", "rounds=3", "data.clients=12", "cohort=3", "hidden=8", f"log={log}"]
    )


def test_tensorboard_has_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = start_run(small("tensorboard"), tmp_path / "out")
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    events.Reload()
    seen = [(event.step, event.value) for event in events.Scalars("unseen/after/accuracy")]
    rounds = outcome.record.rounds
    recorded = [known(entry.scores)["unseen"]["after"]["accuracy"] for entry in rounds]
    assert [step for step, _ in seen] == [entry.round for entry in rounds] == [1, 2, 3]
    assert [value for _, value in seen] == pytest.approx(recorded)


def test_mlflow_has_every_round(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")

    outcome = start_run(small("mlflow"), tmp_path / "out")
    client = mlflow.MlflowClient((tmp_path / "out" / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("fedtailor").experiment_id])
    assert run.data.params["hparams.lr"] == "0.1"
    seen = [
        (metric.step, metric.value)
        for metric in client.get_metric_history(run.info.run_id, "bytes_up")
    ]
    assert seen == [(entry.round, entry.bytes_up) for entry in outcome.record.rounds]
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        InputError,
        match=rf"log={name} needs the package {name}: pip install 'fedtailor\[{name}\]'\.",
    ):
        start_run(small(name), tmp_path / "out")
    assert not (tmp_path / "out").exists()
