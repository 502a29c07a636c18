"""Code in C++: compiled once, found again, and done without where it cannot be had."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedtailor.ops import cpp_build

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
FREEING = """
import resource, numpy as np
from fedtailor.ops.cpu import tune_malloc
if {}: tune_malloc()
for turn in range(20):
    if turn == 10: before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    some = [np.ones(1 << 21) for _ in range(6)]
    del some
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
SOURCE = 'extern "C" int answer() { return 42; }'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cpp_build.INDUCTOR_CACHE_ENV, str(tmp_path / "kept"))
    path = tmp_path / "some.cpp"
    path.write_text(SOURCE)
    return path


def made(source: Path) -> ctypes.CDLL | None:
    """As in a process that has not asked before."""
    found: ctypes.CDLL | None = cpp_build.load_library.__wrapped__(source)
    return found


def test_code_is_compiled_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(source)
    assert found is not None
    assert found.answer() == 42
    kept = list((source.parent / "kept" / "native").iterdir())
    assert [each.suffix for each in kept] == [".so"]
    monkeypatch.setattr(cpp_build, "_compile_library", None)
    assert made(source) is not None


def test_other_code_or_another_processor_is_another_file(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(source)
    source.write_text(SOURCE.replace("42", "43"))
    found = made(source)
    assert found is not None
    assert found.answer() == 43
    monkeypatch.setattr(cpp_build, "get_cpu_signature", lambda: ("another",))
    made(source)
    assert len(list((source.parent / "kept" / "native").iterdir())) == 3


def test_where_it_cannot_be_had_there_is_none(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert made(source) is None
    monkeypatch.delenv("CXX")
    source.write_text("this is no C++")
    assert made(source) is None
    assert list((source.parent / "kept" / "native").iterdir()) == []
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert made(source) is None


def test_a_full_disk_is_done_without(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source.parent / "kept").write_text("in the way")
    assert made(source) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only there are pages counted this way")
def test_memory_that_is_freed_is_not_fetched_again_page_by_page() -> None:
    fetched = {
        keep: int(subprocess.check_output([sys.executable, "-c", FREEING.format(keep)]))
        for keep in (0, 1)
    }
    assert fetched[1] < fetched[0] / 10
