"""Models and arguments that cannot be trained are refused in one sentence, before any round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedtailor as ft
from fedtailor.storage import memory
from fedtailor.training import from_config
from fedtailor.training.overrides import read_run_config
from fedtailor.training.runner import start_run
from sentences import assert_refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = RNG.integers(0, 3, 60)
CLIENT = np.arange(60) % 6
DATA = ft.from_arrays(X, Y, CLIENT)


class Wrapped(nn.Module):
    """A linear layer whose output goes through a function."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.layer(x))


class WithoutGradient(Wrapped):
    """A model that switches gradients off."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class Unused(Wrapped):
    """A model whose output does not depend on its parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class WithParameter(nn.Module):
    """A model with a parameter of any kind."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.real.to(x.dtype)


def pick_largest(outputs: Tensor) -> Tensor:
    return nn.functional.one_hot(outputs.argmax(1), 3).float()


def fail() -> nn.Module:
    raise RuntimeError("out of luck. Twice.\nAnd more")


def run_out_of_memory() -> nn.Module:
    raise MemoryError


MODELS: dict[str, tuple[Any, str]] = {
    "detached": (Wrapped(Tensor.detach), "loss has no gradient with respect to any parameter"),
    "argmax": (Wrapped(pick_largest), "loss has no gradient with respect to any parameter"),
    "no_grad": (WithoutGradient(torch.relu), "loss has no gradient"),
    "unused": (Unused(torch.relu), "loss has no gradient"),
    "meta": (nn.Linear(3, 3, device="meta"), "parameter 'weight' is on the meta device"),
    "meta function": (lambda: nn.Linear(3, 3, device="meta"), "'weight' is on the meta device"),
    "partly meta": (
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, device="meta")),
        "parameter '1.weight' is on the meta device",
    ),
    "sparse": (WithParameter(torch.eye(3).to_sparse()), "plain dense tensor, got torch.sparse_coo"),
    "complex": (WithParameter(torch.ones(3, 3, dtype=torch.cfloat)), "got torch.complex64"),
    "eight bits": (WithParameter(torch.ones(3, 3).to(torch.float8_e4m3fn)), "float8_e4m3fn"),
    "a function that fails": (fail, "failed with RuntimeError: out of luck; Twice"),
    "no memory": (run_out_of_memory, "failed with MemoryError"),
    "a class with arguments": (nn.Linear, "failed with TypeError: .* missing 2 required"),
    "a function that returns None": (lambda: None, "but it returned None"),
    "a function of functions": (lambda: lambda: None, "but it returned <function"),
    "a name": ("mlp", "got 'mlp'"),
    "nothing": (None, "got None"),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_trained_are_refused(case: str) -> None:
    model, pattern = MODELS[case]
    assert_refused(lambda: ft.fit("fedavg", model, DATA, rounds=1, cohort=2), pattern)


def test_parameters_beside_a_trained_one_may_be_unused() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    assert ft.fit("fedavg", model, DATA, rounds=1, cohort=2).cost.steps > 0


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "fractional rounds": ({"rounds": 1.5}, "rounds must be a whole number .* got 1.5"),
    "true cohort": ({"cohort": True}, "cohort must be a whole number .* got True"),
    "a huge cohort": ({"cohort": 10**12}, "1000000000000 clients a round were asked for"),
    "a seed of 64 bits": ({"seed": 2**63}, "seed must be a whole number that fits in 64 bits"),
    "seed as text": ({"seed": "a"}, "seed must be a whole number, got 'a'"),
    "no engine": ({"engine": None}, "There is no engine 'None'"),
    "a number as folder": ({"client_state_dir": 3}, "must be the path of a folder, got 3"),
    "a null byte": ({"client_state_dir": Path("a\0b")}, "null byte"),
    "a callback that is none": ({"on_round_end": 3}, "on_round_end must be a function, got 3"),
    "a huge rate": ({"lr": 10**400}, "lr must be a number of at most 64 bits, got 1000"),
    "a huge batch": (
        {"batch": 10**30},
        "batch must be a whole number of at most 64 bits, got 1000",
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_cannot_be_used_are_refused(case: str) -> None:
    options, pattern = ARGUMENTS[case]
    chosen = {"rounds": 1, "cohort": 2} | options
    assert_refused(lambda: ft.fit("fedavg", lambda: nn.Linear(3, 3), DATA, **chosen), pattern)


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert_refused(
        lambda: ft.fit("fedavg", nn.Linear(3, 3), DATA, rounds=1, client_state_dir=path),
        "client_state_dir must be a folder that can be made",
    )


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (
            {"x": np.where(np.arange(60)[:, None] == 7, 1e300, X.astype(float))},
            "x of example 7 of the clients",
        ),
        ({"y": np.where(np.arange(60) == 8, -1e300, 0.5)}, "y of example 8 of the clients"),
        ({"server": (np.full((2, 3), 1e300), Y[:2])}, "example 0 of the server has a NaN or inf"),
        ({"x": RNG.integers(0, 9, (60, 3)), "scale": 1e300}, "x of example 0 of the clients"),
    ],
)
def test_numbers_that_overflow_the_models_type_are_refused(
    changes: dict[str, Any], pattern: str
) -> None:
    arrays = {"x": X, "y": Y, "client": CLIENT, **changes}
    outputs = 3 if arrays["y"] is Y else 1
    assert_refused(
        lambda: ft.fit(
            "fedavg", nn.Linear(3, outputs), ft.from_arrays(**arrays), rounds=1, cohort=2
        ),
        pattern,
    )


def test_the_models_type_decides_what_overflows() -> None:
    data = ft.from_arrays(np.where(np.arange(60)[:, None] == 7, 1e50, X.astype(float)), Y, CLIENT)
    model = nn.Sequential(nn.Tanh(), nn.Linear(3, 3))
    assert_refused(lambda: ft.fit("fedavg", model, data, rounds=0, cohort=2), "torch.float32")
    ft.fit("fedavg", model.double(), data, rounds=0, cohort=2)


def test_a_model_for_very_many_classes_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = np.where(Y == 2, 10**9, Y)
    np.savez(tmp_path / "t.npz", x=X, y=y, client=CLIENT)
    monkeypatch.setattr(memory, "get_memory", lambda: memory.Memory(64 << 30, 64 << 30))
    config = read_run_config([f"data={tmp_path / 't.npz'}", "method=fedavg", "rounds=1"])
    assert_refused(
        lambda: start_run(config, tmp_path / "run"), r"model: .* needs at least 1,0\d\d\.\d GB"
    )
    assert not (tmp_path / "run").exists()


def test_scoring_validation_clients_alone_needs_some(tmp_path: Path) -> None:
    words = ["data.validation_clients=0", "eval_groups=validation", "method=fedavg", "rounds=1"]
    assert_refused(
        lambda: start_run(read_run_config(words), tmp_path / "run"),
        "eval_groups: .* data set 'digits' has none",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["a\0b", "a" * 300, "file", "file/run"])
def test_a_folder_that_cannot_be_written_is_refused_before_data_are_read(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_to_load(_: object) -> None:
        raise AssertionError("data were read")

    monkeypatch.setattr(from_config, "load_dataset", refuse_to_load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert_refused(lambda: start_run(read_run_config(["rounds=1"]), out), "out must|choose another")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind the superuser, so the answer of the system is replaced."""
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert_refused(
        lambda: start_run(read_run_config(["rounds=1"]), tmp_path / "new" / "run"),
        "is no folder that may be written to; choose another folder",
    )
