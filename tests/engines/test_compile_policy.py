"""Whether compiling pays is decided from counts alone."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedtailor import data, models
from fedtailor.core.task import sequences
from fedtailor.engines import compile_policy, factory
from fedtailor.engines.compile_policy import (
    COMPILE_OPERATION_SECONDS,
    COMPILE_START_SECONDS,
    SAVED_SHARE,
    STEP_SECONDS,
    CompileDecision,
    TrainingCounts,
    count_training,
    decide_compile,
    estimate_compile_seconds,
    list_program_kinds,
    select_covering_cohorts,
)
from fedtailor.engines.context import EngineContext
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV, get_compile_cache_dir
from fedtailor.training.context import prepare_context
from scenarios import toy_data, toy_setting

COUNTS = TrainingCounts(
    steps=1000, cohort_size=10, step_flops=1e6, step_operations=50, num_programs=1
)


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


def decide(setting: EngineContext, rounds: int) -> CompileDecision:
    cohorts = [setting.data.groups["train"][:2]]
    return decide_compile(setting, count_training(setting, cohorts, rounds))


def test_long_runs_are_compiled_and_short_ones_are_not() -> None:
    # 4 steps a round, whose operations take next to no time in so small a model
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8, 8, 8)), epochs=2, batch=4)
    counts = count_training(setting, [np.array([0, 1])], 1)
    assert (counts.steps, counts.cohort_size, counts.num_programs) == (4, 2, 1)
    compiling = COMPILE_START_SECONDS
    compiling += counts.step_operations * COMPILE_OPERATION_SECONDS["cpu"]
    enough = int(compiling / SAVED_SHARE / STEP_SECONDS / 4) + 1
    found = decide(setting, enough)
    assert found.compile == "training"
    assert found.reason.startswith(f"{4 * enough:,} steps of ")
    assert found.reason.endswith(" MFLOP are enough for compiling 1 kind of steps to pay")
    short = decide(setting, enough // 2)
    assert short.compile is False
    assert short.reason.endswith("too few for compiling 1 kind of steps to pay")


def test_larger_steps_need_fewer_of_them() -> None:
    setting = toy_setting("fedavg")
    assert not decide_compile(setting, COUNTS).compile
    assert decide_compile(setting, COUNTS._replace(step_flops=1e9)).compile


def test_each_kind_of_steps_has_to_pay() -> None:
    setting = toy_setting("fedavg")
    few = COUNTS._replace(steps=200_000)
    many = few._replace(num_programs=10)
    assert decide_compile(setting, few).compile
    assert not decide_compile(setting, many).compile
    added = estimate_compile_seconds(setting, many) - estimate_compile_seconds(setting, few)
    assert added == pytest.approx(9 * 50 * COMPILE_OPERATION_SECONDS["cpu"])


@pytest.mark.parametrize("method", ["fedavg", "fedsim", "fsl", "fedrep"])
def test_the_kinds_of_steps_are_those_that_programs_are_made_for(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = toy_setting(method, batch=4)
    bound: list[object] = []

    def bind(self: object, function: object, args: object) -> object:
        bound.append(function)
        return compile_policy_bind(function, args)  # type: ignore[arg-type]

    from fedtailor.compiler.inductor import bind_eager as compile_policy_bind
    from fedtailor.engines.stack_runner import StackRunner

    monkeypatch.setattr(StackRunner, "_bind_compiled", bind)
    engine = VectorizedEngine(setting, compile="training")
    state = setting.init_server_state()
    cohort = setting.data.groups["train"][2:]
    engine.update_server(state, engine.train(state, cohort, 0).cohort_update, 0)
    assert len(bound) == len(list_program_kinds(setting, cohort))


def test_covering_cohorts_meet_every_kind_of_steps_once() -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8, 16, 16, 8, 16, 8)), batch=8)
    cohorts = [np.array([0, 1]), np.array([2, 3]), np.array([0, 2]), np.array([1, 3])]
    # Equal clients need one kind, unequal ones a second for the rest of the longer.
    assert [len(list_program_kinds(setting, cohort)) for cohort in cohorts] == [1, 1, 2, 2]
    covering = select_covering_cohorts(setting, cohorts)
    assert [cohort.tolist() for cohort in covering] == [[0, 1], [0, 2]]


def test_operations_are_those_of_a_gradient_for_each_batch() -> None:
    one = count_training(toy_setting("fedavg", batch=4), [np.array([0])], 1)
    forward = 2 * (5 * 6 + 6 * 3)
    backward = forward + 2 * 6 * 3  # by the weights of both layers, and by what the second is given
    assert one.step_flops == 4 * (forward + backward)
    # Per-FedAvg draws three batches a step.
    three = count_training(toy_setting("per-fedavg", batch=4), [np.array([0])], 1)
    assert three.step_flops == 3 * one.step_flops
    assert three.step_operations == 3 * one.step_operations


def test_a_decision_is_the_same_every_time_and_trains_nothing() -> None:
    setting = toy_setting("scaffold", data=toy_data(sizes=(8, 8, 8, 8)))
    assert decide(setting, 3) == decide(setting, 3)
    assert not setting.client_states.initialized.any()


def test_recurrent_layers_are_not_compiled_on_a_cpu() -> None:
    setting = text_setting()
    assert decide(setting, 10**9).compile is False
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
