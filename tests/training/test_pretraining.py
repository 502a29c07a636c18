"""Pre-training at the server: SGD on its data, the same for all methods, computed once, part of
what resumes.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedtailor as ft
from agreement import distance
from fedtailor import prng
from fedtailor.core.types import Params
from fedtailor.engines.context import EngineContext
from fedtailor.errors import DivergedError, InputError
from fedtailor.experiments.compare import compare, get_run_path
from fedtailor.experiments.tune import tune
from fedtailor.training import runner
from fedtailor.training.overrides import read_comparison
from fedtailor.training.pretraining import PretrainingConfig, run_pretraining
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import left, small
from oracles import module_of, server_descended
from scenarios import toy_data, toy_setting, toy_task

DATA = toy_data(sizes=(5, 1, 9, 3, 2, 2, 2))
WORDS = [
    "data.clients=12",
    "hidden=8",
    "cohort=4",
    "batch=200",
    "finetune_epochs=1",
    "threads=1",
    "pretrain=2",
]


def by_torch(setting: EngineContext, how: PretrainingConfig) -> Params:
    """The same epochs with torch.optim, on the same batches."""
    key = prng.fold(prng.key(setting.seed, "pretrain"), 0)
    return server_descended(setting, key, how.lr, how.epochs, how.batch, setting.task.params)


@pytest.mark.parametrize("how", [PretrainingConfig(3, 0.2, 5), PretrainingConfig(1, 0.05, 100)])
def test_it_is_sgd_on_the_servers_examples(how: PretrainingConfig) -> None:
    setting = toy_setting("fedavg", data=DATA)
    found = run_pretraining(setting, how)
    assert distance(found, by_torch(setting, how)) < 1e-12
    assert distance(found, setting.task.params) > 1e-3


@pytest.mark.parametrize(
    "method", ["local", "centralized", "ds", "fedper", "scaffold", "fsl+fedsim"]
)
def test_every_method_begins_with_the_same_model(method: str) -> None:
    how = PretrainingConfig(2, 0.1, 5)
    expected = by_torch(toy_setting("fedavg", data=DATA), how)
    assert distance(run_pretraining(toy_setting(method, data=DATA), how), expected) < 1e-12


def test_fit_pretrains() -> None:
    hyper: dict[str, Any] = {"cohort": 3, "seed": 7, "batch": 8}
    first = ft.fit(
        "fedavg", toy_task(), DATA, rounds=0, pretrain=2, pretrain_lr=0.3, pretrain_batch=4, **hyper
    )
    expected = by_torch(toy_setting("fedavg", data=DATA), PretrainingConfig(2, 0.3, 4))
    assert distance(first.params, expected) < 1e-12
    by_default = ft.fit("fedavg", toy_task(), DATA, rounds=0, pretrain=1, **hyper).params
    assert (
        distance(
            by_default, by_torch(toy_setting("fedavg", data=DATA), PretrainingConfig(1, 0.1, 20))
        )
        < 1e-12
    )
    assert (
        distance(ft.fit("fedavg", toy_task(), DATA, rounds=0, **hyper).params, toy_task().params)
        == 0.0
    )


def test_newcomers_of_methods_with_memory_begin_with_it() -> None:
    alone = ft.fit(
        "local", toy_task(), DATA, rounds=1, cohort=3, seed=7, pretrain=2, local_epochs=1
    )
    expected = by_torch(toy_setting("fedavg", data=DATA), PretrainingConfig(2, 0.1, 20))
    rows = DATA.clients.splits["test"].get_rows(6)
    x, y = torch.as_tensor(DATA.clients.x[rows]), torch.as_tensor(DATA.clients.y[rows])
    loss = nn.functional.cross_entropy(module_of(expected)(x), y).item()
    assert alone.scores["unseen"].before["loss"][-1] == pytest.approx(loss, rel=1e-10)


RATES = "a number above 0 and at most 3.4e+38"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"pretrain": -1}, "pretrain must be a whole number not below 0, got -1."),
    ({"pretrain": 1.5}, "pretrain must be a whole number not below 0, got 1.5."),
    ({"pretrain": 1, "pretrain_lr": 0.0}, f"pretrain_lr must be {RATES}, got 0.0."),
    ({"pretrain": 1, "pretrain_lr": float("nan")}, f"pretrain_lr must be {RATES}, got nan."),
    ({"pretrain": 1, "pretrain_lr": 1e39}, f"pretrain_lr must be {RATES}, got 1e+39."),
    (
        {"pretrain": 1, "pretrain_batch": 0},
        "pretrain_batch must be a whole number not below 1, got 0.",
    ),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_bad_numbers_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        ft.fit("fedavg", toy_task(), DATA, rounds=0, cohort=1, **options)


def test_without_server_data_it_is_refused() -> None:
    said = "pretrain: the server must have data to train on, but data set 'toy' gives it none; "
    said += "hold some out"
    with pytest.raises(InputError, match=said):
        ft.fit("fedavg", toy_task(), toy_data(server=0), rounds=0, cohort=1, pretrain=1)
    with pytest.raises(InputError, match="pretrain: the server must have data to train on"):
        start_run(small("method=fedavg", "data.server=0", "pretrain=1"), "never")
    assert not Path("never").exists()


@pytest.mark.parametrize(
    ("word", "said"), [("pretrain=-1", "pretrain: "), ("pretrain_lr=0", "pretrain_lr: ")]
)
def test_bad_words_are_refused(word: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        small(word)


def test_a_rate_at_which_it_runs_away_is_named() -> None:
    task = toy_task().to(dtype=torch.float32)
    with pytest.raises(
        DivergedError, match="pretrain: the model was no longer finite; lower pretrain_lr"
    ):
        ft.fit("fedavg", task, DATA, rounds=0, cohort=1, pretrain=20, pretrain_lr=3e38)


def test_a_comparison_pretrains_once_for_each_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(setting: EngineContext, how: PretrainingConfig) -> Params:
        calls.append(setting.seed)
        return run_pretraining(setting, how)

    monkeypatch.setattr(runner, "run_pretraining", counted)
    comparison = read_comparison(["ds", "fedper", *WORDS, "rounds=1", "seeds=3,4"])
    assert all(outcome.is_finished for outcome in compare(comparison, tmp_path / "all"))
    assert sorted(calls) == [3, 4]
    spec = comparison.make_run_configs()[-1]
    start_run(spec, tmp_path / "alone")
    models = [
        (place / "model.safetensors").read_bytes()
        for place in (get_run_path(tmp_path / "all", spec), tmp_path / "alone")
    ]
    assert models[0] == models[1]  # as if it had run by itself
    assert calls[2:] == [4]


def test_trials_on_other_data_are_pretrained_on_these(tmp_path: Path) -> None:
    comparison = read_comparison(
        ["fedper", *WORDS, "rounds=1", "seeds=3,4", "tune.lr=0.1,0.2", "trials=2"]
    )
    trials = tune(comparison, tmp_path)
    weights = [RunDir(trial.run.path).read_record().checksums.weights for trial in trials]
    assert [trial.data_seed for trial in trials] == [3, 3, 4, 4]
    assert weights[0] == weights[1] != weights[2] == weights[3]


class Falls:
    """Somebody who stops a run before its first round."""

    def on_run_start(self, record: Any, done: int) -> None:
        raise RuntimeError("fell")

    def on_round_end(self, entry: Any) -> None: ...

    def on_run_end(self, record: Any) -> None: ...


def test_a_run_that_was_stopped_ends_with_the_same_bytes(tmp_path: Path) -> None:
    spec = small("method=fedper", "rounds=2", "pretrain=2", "pretrain_lr=0.2", "pretrain_batch=16")
    start_run(spec, tmp_path / "whole")
    start_run(spec, tmp_path / "stopped", should_stop=lambda: True)
    resume_run(tmp_path / "stopped")
    with pytest.raises(RuntimeError, match="fell"):
        start_run(spec, tmp_path / "fallen", (Falls(),))
    resume_run(tmp_path / "fallen")
    results = [left(tmp_path / name) for name in ("whole", "stopped", "fallen")]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("option", "what"), [("pretrain", "steps"), ("pretrain_batch", "batch")])
def test_more_than_fits_into_memory_is_refused(option: str, what: str) -> None:
    options: dict[str, Any] = {"pretrain": 1, option: 2**62}
    with pytest.raises(InputError, match=f"^pretrain: .* {what} of .* needs at least .* of memory"):
        ft.fit("fedavg", toy_task(), DATA, rounds=0, cohort=1, **options)
