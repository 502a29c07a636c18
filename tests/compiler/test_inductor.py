"""Libraries that a killed process has left unfinished in torch's cache."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.compiler import inductor
from fedtailor.ops.cpp_build import INDUCTOR_CACHE_ENV


def double(x: Tensor) -> None:
    x.mul_(2)


class Compiler:
    """Fails to load each of some libraries as long as it is there, as torch does."""

    def __init__(self, *paths: Path, is_wrapped: bool = False) -> None:
        self._paths = paths
        self._is_wrapped = is_wrapped

    def __call__(self, graph: Any, leaves: Any) -> Any:
        for path in self._paths:
            if path.exists():
                try:
                    raise ImportError(f"{path}: file too short", path=str(path))
                except ImportError as problem:
                    if self._is_wrapped:
                        raise RuntimeError(f"ImportError: {problem}") from problem
                    raise
        return graph.forward


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(INDUCTOR_CACHE_ENV, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_unfinished_libraries_in_the_cache_are_compiled_once_more(
    is_wrapped: bool, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [cache_dir / "a.main.so", cache_dir / "b.so"]
    for path in paths:
        path.touch()
    monkeypatch.setattr(inductor, "compile_graph", Compiler(*paths, is_wrapped=is_wrapped))
    x = torch.ones(2)
    inductor.bind_compiled(double, (x,))()
    assert x.tolist() == [2.0, 2.0]
    assert not any(path.exists() for path in paths)


@pytest.mark.parametrize("name", ["../a.so", "a.py"])
def test_no_other_file_is_removed(
    name: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = (cache_dir / name).resolve()
    path.touch()
    monkeypatch.setattr(inductor, "compile_graph", Compiler(path))
    with pytest.raises(ImportError, match="file too short"):
        inductor.bind_compiled(double, (torch.ones(2),))
    assert path.exists()


def test_what_cannot_be_loaded_even_then_is_told(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache_dir / "a.so"

    def fail(*_: object) -> None:
        path.touch()
        raise ImportError("no such symbol", path=str(path))

    monkeypatch.setattr(inductor, "compile_graph", fail)
    with pytest.raises(ImportError, match="no such symbol"):
        inductor.bind_compiled(double, (torch.ones(2),))
