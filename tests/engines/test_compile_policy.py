"""Whether compiling pays is decided from counts alone."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedtailor import data, models
from fedtailor.core.task import sequences
from fedtailor.engines import compile_policy, factory
from fedtailor.engines.compile_policy import MIN_STEP_SECONDS, STEP_SECONDS, decide_compile
from fedtailor.engines.context import EngineContext
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV, get_compile_cache_dir
from fedtailor.training.context import prepare_context
from scenarios import toy_data, toy_setting


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.delenv(INDUCTOR_CACHE_ENV, raising=False)


def text_setting() -> EngineContext:
    """FedAvg on short random texts of six clients, with a recurrent model."""
    texts = np.random.default_rng(0).integers(1, 9, (24, 5), dtype=np.uint8)
    client = np.arange(24) // 4
    own = data.from_arrays(texts[:, :4], texts[:, 1:], client, tokens=True, classes=9)
    task = sequences(models.language_model(9, 3, 4))
    return prepare_context("fedavg", task, own, rounds=1, cohort=2, seed=1, batch=2)


def test_long_runs_are_compiled_and_short_ones_are_not() -> None:
    setting = toy_setting(
        "fedavg", data=toy_data(sizes=(8, 8, 8, 8)), epochs=2, batch=4
    )  # 4 steps a round
    enough = (
        int(MIN_STEP_SECONDS["cpu"] / STEP_SECONDS / 4) + 1
    )  # the operations of so small a model take next to no time
    found = decide_compile(setting, 2, enough)
    assert found.compile == "training"
    assert found.reason.startswith(f"{4 * enough:,} steps of ")
    assert found.reason.endswith(" MFLOP are enough for it to pay")
    short = decide_compile(setting, 2, enough // 2)
    assert short.compile is False
    assert short.reason.endswith("too few for it to pay")


def test_larger_steps_need_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8, 8, 8)), batch=4)
    assert not decide_compile(setting, 2, 1000).compile
    monkeypatch.setattr(compile_policy, "_count_flops", lambda _: 2e9)
    assert decide_compile(setting, 2, 1000).compile


def test_operations_are_those_of_a_gradient_for_each_batch() -> None:
    one = toy_setting("fedavg", batch=4)
    forward = 2 * (5 * 6 + 6 * 3)
    backward = forward + 2 * 6 * 3  # by the weights of both layers, and by what the second is given
    assert compile_policy._count_flops(one) == 4 * (forward + backward)
    three = toy_setting("per-fedavg", batch=4)  # which draws three batches a step
    assert compile_policy._count_flops(three) == 3 * compile_policy._count_flops(one)


def test_a_decision_is_the_same_every_time_and_trains_nothing() -> None:
    setting = toy_setting("scaffold", data=toy_data(sizes=(8, 8, 8, 8)))
    assert decide_compile(setting, 3, 2) == decide_compile(setting, 3, 2)
    assert not setting.client_states.initialized.any()


def test_recurrent_layers_are_not_compiled_on_a_cpu() -> None:
    setting = text_setting()
    assert decide_compile(setting, 2, 10**9).compile is False
    engine = factory.make_engine(setting, compile=True)
    assert factory.get_engine_options(engine).compile is False
    assert any("recurrent layers run one client after another" in note for note in engine.notes)


def test_compiled_code_is_kept_beside_the_data_unless_the_user_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_policy.set_cache_dir()
    assert os.environ[INDUCTOR_CACHE_ENV] == str(tmp_path / "compiled")
    monkeypatch.setenv(INDUCTOR_CACHE_ENV, "elsewhere")
    compile_policy.set_cache_dir()
    assert os.environ[INDUCTOR_CACHE_ENV] == "elsewhere"


def test_what_torch_says_by_itself_the_user_has_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    asked = cache_dir()
    assert os.environ[INDUCTOR_CACHE_ENV] == asked
    assert get_compile_cache_dir() == tmp_path / "compiled"
