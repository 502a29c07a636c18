"""A run that begins with the weights of another one: what it takes over, and that it fits."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedtailor as ft
from fedtailor import models
from fedtailor.errors import InputError
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_run_config
from fedtailor.training.record.schema import RoundEntry, RunRecord
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from fedtailor.training.start_weights import make_branch_values
from interruptions import command, left, process, small

WORDS = ["method=fedavg", "server_optimizer=adam", "lr=0.05", "rounds=3", "checkpoint_every=1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has finished."""
    out = tmp_path_factory.mktemp("source") / "out"
    start_run(small(*WORDS), out)
    return out


def branch(out: Path, *words: str) -> RunConfig:
    return read_run_config(list(words), make_branch_values(out, list(words)))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def trained_in_python(first: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
    """What `fit` makes of a module with these weights."""
    module = models.mlp(64, (8,), 10)
    module.load_state_dict(first)
    data = from_config.load_dataset(small())
    options = {"cohort": 4, "batch": 200, "finetune_epochs": 1} | options
    return dict(ft.fit("fedavg", module, data, **options).params)


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_it_trains_from_the_last_weights_of_the_other(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    record = start_run(branch(source, "seed=7", "rounds=2"), out).record
    expected = trained_in_python(
        weights(source), rounds=2, seed=7, lr=0.05, server_optimizer="adam"
    )
    assert_equal(weights(out), expected)
    assert [entry.round for entry in record.rounds] == [1, 2]
    assert record.started_from is not None
    assert record.started_from.model_dump(exclude={"weights"}) == {
        "path": str(source),
        "name": "fedavg",
        "seed": 0,
        "rounds": 3,
    }
    assert record.started_from.weights == record.checksums.weights
    assert record.checksums.weights != RunDir(source).read_record().checksums.weights
    assert record.choices.notes == ()


def test_an_interrupted_run_gives_the_weights_of_its_last_checkpoint(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    start_run(small(*WORDS), source, should_stop=iter([False, True]).__next__)
    start_run(small(*WORDS, "rounds=2"), tmp_path / "two")
    record = start_run(branch(source, "rounds=1"), out).record
    expected = trained_in_python(
        weights(tmp_path / "two"), rounds=1, lr=0.05, server_optimizer="adam"
    )
    assert_equal(weights(out), expected)
    assert record.started_from is not None
    assert record.started_from.rounds == 2


def test_what_is_taken_over(source: Path) -> None:
    base = RunDir(source).read_config()
    start = {"start_from": str(source)}
    assert branch(source) == base.model_copy(update=start)
    hparams = base.hparams | {"lr": 0.3}
    assert branch(source, "lr=0.3") == base.model_copy(update=start | {"hparams": hparams})
    longer = branch(source, "rounds=50", "seed=4", "data.labels=3")
    assert (longer.rounds, longer.evaluate_every, longer.seed) == (50, 5, 4)
    assert longer.data_options == base.data_options | {"labels": 3}
    other = branch(source, "method=fedprox", "data=synthetic")
    assert other.hparams == small("method=fedprox").hparams | {"batch": 20, "finetune_epochs": 5}
    assert other.data_options == read_run_config(["data=synthetic"]).data_options
    assert (other.hidden, other.cohort, other.rounds) == (base.hidden, base.cohort, base.rounds)


def test_what_is_left_behind(tmp_path: Path) -> None:
    words = ["pretrain=1", "budget=bytes", "tuned=lr,batch", "label=mine", "evaluate_every=2"]
    start_run(small(*WORDS, *words), tmp_path / "source")
    found = branch(tmp_path / "source", "lr=0.3")
    assert (found.pretrain, found.budget, found.tuned) == (0, "rounds", ("batch",))
    assert (found.label, found.evaluate_every) == ("mine", 2)
    assert branch(tmp_path / "source", "method=local").label == ""


def test_the_command_of_the_record_makes_the_same_run(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    record = start_run(branch(source, "rounds=2"), out).record
    words = shlex.split(record.command)
    assert words[:2] == ["fedtailor", "run"]
    config = read_run_config(words[2:-1])
    assert config == record.config
    start_run(config, tmp_path / "again")
    assert left(tmp_path / "again") == left(out)


def refused(source: Path, out: Path, *words: str) -> str:
    with pytest.raises(InputError) as caught:
        start_run(branch(source, *words), out)
    assert not out.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_that_do_not_fit_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    end = "; use the model of that run, or leave out start_from."
    assert refused(source, out, "hidden=16") == (
        "start_from: the model mlp has weights of shape (16, 64) for 1.weight, but the run in "
        f"'{source}' has weights of shape (8, 64)" + end
    )
    assert refused(source, out, "hidden=8,10") == (
        "start_from: the model mlp has weights of shape (10, 10) for 5.weight, but the run in "
        f"'{source}' has no weights" + end
    )
    assert refused(source, out, "pretrain=1").startswith(
        f"start_from: the first weights come from the run in '{source}', so they cannot be pre-tr"
    )
    assert refused(tmp_path / "none", out).startswith(f"'{tmp_path / 'none'}' holds no run: ")
    assert refused(source, out, "my.toml").startswith(
        f"run: 'my.toml' has a specification of its own, and so has the run in '{source}'; "
    )


FROZEN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.register_buffer("shift", torch.rand(64))

    def forward(self, x):
        return self.head(x.flatten(1) + self.shift)
"""


def test_ones_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(FROZEN)
    source = tmp_path / "source"
    start_run(small("method=fedavg", "rounds=1", f"model={tmp_path / 'mine.py'}:Net"), source)
    (tmp_path / "mine.py").unlink()
    config = branch(source)
    assert config.model == f"{source / 'own_model.py'}:Net"
    assert start_run(config, tmp_path / "out").is_finished
    assert refused(source, tmp_path / "other", "seed=5").startswith(
        f"start_from: shift, which is not trained, is not the same in the model {config.model} as "
    )
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "elsewhere"))
    assert refused(source, tmp_path / "other").endswith(
        "look at the file, then repeat with --trust-code."
    )


def test_weights_from_other_data_are_noted(source: Path, tmp_path: Path) -> None:
    record = start_run(branch(source, "data.seed=5", "rounds=1"), tmp_path / "out").record
    assert record.choices.notes == (
        "the first weights were trained on other data, or with other clients, perhaps on examples "
        "that are for testing here",
    )


def test_killed_and_resumed(source: Path, tmp_path: Path) -> None:
    """Also where the other run is gone, once there is a checkpoint."""
    words = [*WORDS, f"start_from={source}", "seed=3", "data.seed=0"]
    start_run(small(*words), tmp_path / "whole")
    for at in (20, 30, 40):
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        child = process(words, out, at)
        child.start()
        child.join()
        assert child.exitcode == -9
        resume_run(out)
        assert left(out) == left(tmp_path / "whole")


def test_before_the_first_checkpoint_other_weights_are_noticed(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    class StopAfterRound:
        """Ends the run when its first round is in the log, but not yet in a checkpoint."""

        def on_run_start(self, record: RunRecord, rounds_done: int) -> None: ...
        def on_round_end(self, entry: RoundEntry) -> None:
            raise Stop

        def on_run_end(self, record: RunRecord) -> None: ...

    source, out = tmp_path / "source", tmp_path / "out"
    start_run(small(*WORDS), source)
    with pytest.raises(Stop):
        start_run(branch(source), out, (StopAfterRound(),))
    shutil.copytree(out, tmp_path / "same")
    assert resume_run(tmp_path / "same").is_finished
    resume_run(source, changes={"rounds": 4})
    with pytest.raises(InputError, match=r"^The run in '.*source', whose weights this run began "):
        resume_run(out)


def test_the_command(source: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    child = command(["run", "--from", str(source), "rounds=1", "lr=0.02", f"out={out}"], said)
    child.join()
    assert child.exitcode == 0, said.read_text()
    record = json.loads((out / "record.json").read_text())
    assert record["started_from"]["path"] == str(source)
    assert record["hparams"]["lr"] == 0.02
