"""Texts from a specification: the task of sequences, the models, and what is left out of the
accuracy.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.core.types import Batch
from fedtailor.data import add
from fedtailor.errors import InputError
from fedtailor.training import from_config
from fedtailor.training.overrides import read_run_config
from fedtailor.training.runner import start_run

TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n" * 6


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Shakespeare in it, eight small roles."""
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    texts = [TEXT[: 200 + 40 * role] for role in range(8)]
    offsets = np.cumsum([0, *map(len, texts)])
    np.savez(
        tmp_path / "roles.npz",
        text=np.frombuffer("".join(texts).encode(), np.uint8),
        role_offsets=offsets,
        role_names=np.array([f"ROLE {role}" for role in range(8)]),
        play_names=np.array(["PLAY"] * 8),
    )
    for name in ("shakespeare", "shakespeare-leaf"):
        add(name, tmp_path / "roles.npz")
    return tmp_path


WORDS = [
    "model=lstm",
    "hidden=8",
    "method=fedavg",
    "rounds=2",
    "cohort=2",
    "data.server=0",
    "lr=0.5",
    "finetune_epochs=1",
]


def test_a_text_with_a_target_at_each_place_is_a_task_of_sequences() -> None:
    spec = read_run_config(["data=shakespeare", *WORDS])
    dataset = from_config.load_dataset(spec)
    task = from_config.build_task(spec, dataset.example_spec)
    assert task.kind == "sequences"
    assert dataset.example_spec.padding == (0,)
    x, y = (torch.from_numpy(np.array(column[1:3])).long() for column in dataset.clients[:2])
    assert task.compute_outputs(task.params, x).shape == (2, 80, 90)
    batch = Batch(x, y, torch.ones(2), torch.zeros(2, dtype=torch.int64))
    counted = (y != 0) & (y < 87)  # neither padding nor unknown characters, beginnings and ends
    assert 0 < int(counted.sum()) < y.numel()
    assert float(task.compute_metric_sums(task.params, batch)["accuracy"][1]) == float(
        counted.sum()
    )


def test_what_follows_a_window_is_a_task_of_classes() -> None:
    spec = read_run_config(["data=shakespeare-leaf", *WORDS])
    dataset = from_config.load_dataset(spec)
    task = from_config.build_task(spec, dataset.example_spec)
    assert task.kind == "classification"
    x = torch.from_numpy(np.array(dataset.clients.x[:3])).long()
    assert task.compute_outputs(task.params, x).shape == (3, 90)


@pytest.mark.parametrize("data", ["shakespeare", "shakespeare-leaf"])
def test_a_run_on_texts_comes_to_an_end(data: str, tmp_path: Path) -> None:
    most = ["data.most=12"] if data == "shakespeare-leaf" else []
    outcome = start_run(read_run_config([f"data={data}", *WORDS, *most]), tmp_path / "run")
    assert outcome.is_finished


def test_models_and_data_that_do_not_fit_are_told() -> None:
    spec = read_run_config(["data=shakespeare", "model=mlp", "method=fedavg"])
    with pytest.raises(
        InputError,
        match="model: mlp is not for texts, as data set 'shakespeare' has; use shakespeare",
    ):
        from_config.build_task(spec, from_config.load_dataset(spec).example_spec)
    spec = read_run_config(["data=digits", "model=shakespeare", "method=fedavg"])
    with pytest.raises(
        InputError, match="model: shakespeare is for texts, but data set 'digits' has none"
    ):
        from_config.build_task(spec, from_config.load_dataset(spec).example_spec)
