"""Fixtures for tests of GPU code without a GPU: name this module as a plugin."""

from collections.abc import Iterator

import pytest
import torch
from code_under_test import pretend_gpu


@pytest.fixture(autouse=True)
def unwritten_memory_is_not_a_number() -> Iterator[None]:
    """Has torch fill memory that it gives out, so that results that were never written show."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all tensors of a test say that they lie on a GPU."""
    pretend_gpu(monkeypatch)


@pytest.fixture
def tf32() -> Iterator[None]:
    """Lets products in float32 round their factors to tf32."""
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = False
