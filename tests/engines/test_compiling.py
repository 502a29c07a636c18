"""Whether compiling pays is decided from counts alone."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedtailor import data, engines, models
from fedtailor.engines import compiling
from fedtailor.engines.base import Setting
from fedtailor.engines.compiling import LEAST_S, STEP_S, decide
from fedtailor.native import PLACE, place
from fedtailor.run.fitting import prepare
from fedtailor.task import sequences
from scenarios import toy_data, toy_setting


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.delenv(PLACE, raising=False)


def text_setting() -> Setting:
    """FedAvg on short random texts of six clients, with a recurrent model."""
    texts = np.random.default_rng(0).integers(1, 9, (24, 5), dtype=np.uint8)
    client = np.arange(24) // 4
    own = data.from_arrays(texts[:, :4], texts[:, 1:], client, tokens=True, classes=9)
    task = sequences(models.language_model(9, 3, 4))
    return prepare("fedavg", task, own, rounds=1, cohort=2, seed=1, batch=2)


def test_long_runs_are_compiled_and_short_ones_are_not() -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8, 8, 8)), epochs=2, batch=4)  # 4 steps a round
    enough = int(LEAST_S["cpu"] / STEP_S / 4) + 1  # the operations of so small a model take next to no time
    found = decide(setting, 2, enough)
    assert found.compile == "training"
    assert found.why.startswith(f"{4 * enough:,} steps of ")
    assert found.why.endswith(" MFLOP are enough for it to pay")
    short = decide(setting, 2, enough // 2)
    assert short.compile is False
    assert short.why.endswith("too few for it to pay")


def test_larger_steps_need_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8, 8, 8)), batch=4)
    assert not decide(setting, 2, 1000).compile
    monkeypatch.setattr(compiling, "_operations", lambda _: 2e9)
    assert decide(setting, 2, 1000).compile


def test_operations_are_those_of_a_gradient_for_each_batch() -> None:
    one = toy_setting("fedavg", batch=4)
    forward = 2 * (5 * 6 + 6 * 3)
    backward = forward + 2 * 6 * 3  # by the weights of both layers, and by what the second is given
    assert compiling._operations(one) == 4 * (forward + backward)
    three = toy_setting("per-fedavg", batch=4)  # which draws three batches a step
    assert compiling._operations(three) == 3 * compiling._operations(one)


def test_a_decision_is_the_same_every_time_and_trains_nothing() -> None:
    setting = toy_setting("scaffold", data=toy_data(sizes=(8, 8, 8, 8)))
    assert decide(setting, 3, 2) == decide(setting, 3, 2)
    assert not setting.memory.known.any()


def test_recurrent_layers_are_not_compiled_on_a_cpu() -> None:
    setting = text_setting()
    assert decide(setting, 2, 10**9).compile is False
    engine = engines.make(setting, compile=True)
    assert engines.choices(engine)["compile"] is False
    assert any("recurrent layers run one client after another" in note for note in engine.notes)


def test_compiled_code_is_kept_beside_the_data_unless_the_user_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling.keep_compiled()
    assert os.environ[PLACE] == str(tmp_path / "compiled")
    monkeypatch.setenv(PLACE, "elsewhere")
    compiling.keep_compiled()
    assert os.environ[PLACE] == "elsewhere"


def test_what_torch_says_by_itself_the_user_has_not_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    asked = cache_dir()
    assert os.environ[PLACE] == asked
    assert place() == tmp_path / "compiled"
