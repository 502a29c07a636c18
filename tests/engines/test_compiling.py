"""Whether compiling pays is decided from what a step takes and how many there are."""

import os
from pathlib import Path

import pytest

from fedtailor.engines import compiling
from fedtailor.engines.compiling import KNOWN, NEW, SAVED, decided
from fedtailor.native import PLACE, place
from scenarios import toy_data, toy_setting


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.delenv(PLACE, raising=False)


def test_long_runs_are_compiled_and_short_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_seconds_a_step", lambda *_: 0.01)
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8, 8, 8)), epochs=2, batch=4)  # 4 steps a round
    enough = int(NEW["cpu"] / SAVED / 0.04) + 1
    assert decided(setting, 2, enough - 1).compile is False
    found = decided(setting, 2, enough)
    assert found.compile
    assert found.why == f"{4 * enough:,} steps are enough for it to pay"
    less = int(KNOWN["cpu"] / SAVED / 0.04) + 1
    assert decided(setting, 2, less).compile  # the same shapes have been compiled before
    assert not decided(setting, 3, less).compile


def test_a_step_is_really_timed() -> None:
    setting = toy_setting("fedsim", data=toy_data(sizes=(8, 8, 8, 8)))
    found = decided(setting, 3, 2)
    assert not found.compile
    assert found.why.endswith("steps are too few for it to pay")
    assert compiling._seconds_a_step(setting, setting.data.groups["train"], None) > 0
    assert not setting.memory.known.any()


def test_what_cannot_be_stepped_together_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = toy_setting("fedavg", data=toy_data(sizes=(8, 8)))

    def failing(*_: object) -> None:
        raise RuntimeError("no rule")

    phase = setting.method.client.phases[0]._replace(step=failing)
    broken = setting.method._replace(client=setting.method.client._replace(phases=(phase,)))
    object.__setattr__(setting, "method", broken)
    assert decided(setting, 2, 10**6) == (False, "a step could not be timed")


def test_a_disk_that_takes_nothing_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "file"))
    monkeypatch.setattr(compiling, "_seconds_a_step", lambda *_: 1.0)
    assert decided(toy_setting("fedavg", data=toy_data(sizes=(8, 8))), 2, 10**4).compile


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
