"""Rows of bytes as numbers, in one pass of compiled code: torch's own operations are the oracle, to
the last bit.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

from fedtailor.compiler.trace import trace
from fedtailor.data.dataset import ExampleSpec
from fedtailor.ops import decode
from fedtailor.ops.decode import decode_inputs, decode_rows

SCALE = 1 / 255
UNITS = ExampleSpec((1, 5, 7), (), 10, SCALE, False)
BYTES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (60, 1, 5, 7), dtype=np.uint8))
needs_compiler = pytest.mark.skipif(decode._load_native() is None, reason="needs a C++ compiler")


def rows(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 60, shape))


def listed(column: Tensor, wanted: Tensor, units: ExampleSpec, dtype: torch.dtype) -> GraphModule:
    """The operations that taking rows comes down to."""
    function: Any = partial(decode_rows, example_spec=units, dtype=dtype)
    return trace(function, (column, wanted))


@needs_compiler
@pytest.mark.parametrize("shape", [(), (1,), (0,), (4, 3), (3000,), (50, 2, 40)])
def test_rows_are_what_torch_decodes(shape: tuple[int, ...]) -> None:
    found = decode_rows(BYTES, rows(*shape), UNITS, torch.float32)
    wanted = decode_inputs(BYTES[rows(*shape)], UNITS, torch.float32)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found, wanted)


@needs_compiler
def test_columns_and_wanted_rows_may_lie_apart() -> None:
    column, wanted = BYTES.flatten(1)[:, 3:-2], rows(6, 8).mT[::2]
    assert not column.is_contiguous()
    assert not wanted.is_contiguous()
    assert torch.equal(
        decode_rows(column, wanted, UNITS, torch.float32),
        decode_inputs(column[wanted], UNITS, torch.float32),
    )
    assert torch.equal(
        decode_rows(BYTES[:0], rows(0), UNITS, torch.float32), torch.empty(0, 1, 5, 7)
    )


@needs_compiler
@pytest.mark.parametrize("wrong", [-1, 60, 2**62])
def test_rows_that_are_not_there_are_refused(wrong: int) -> None:
    with pytest.raises(IndexError, match=r"^1 of 3 rows are not in a column of 60\.$"):
        decode_rows(BYTES, torch.tensor([3, wrong, 5]), UNITS, torch.float32)


@pytest.mark.parametrize(
    ("column", "units", "dtype"),
    [
        (BYTES, UNITS, torch.float64),
        (BYTES, UNITS._replace(tokens=True), torch.float32),
        (BYTES.short(), UNITS, torch.float32),
        (BYTES.mT, UNITS, torch.float32),
    ],
    ids=["double", "tokens", "short", "turned"],
)
def test_other_kinds_are_left_to_torch(
    column: Tensor, units: ExampleSpec, dtype: torch.dtype
) -> None:
    graph = listed(column, rows(4), units, dtype)
    assert "fedtailor" not in graph.code
    assert torch.equal(
        decode_rows(column, rows(4), units, dtype), decode_inputs(column[rows(4)], units, dtype)
    )


def test_rows_of_another_kind_are_left_to_torch() -> None:
    found = decode_rows(BYTES, rows(4).int(), UNITS, torch.float32)
    assert torch.equal(found, decode_inputs(BYTES[rows(4)], UNITS, torch.float32))


@needs_compiler
def test_lists_of_operations_have_it_as_one_of_them() -> None:
    graph = listed(BYTES, rows(4), UNITS, torch.float32)
    assert graph.code.count("fedtailor.decode_rows") == 1
    assert torch.equal(
        graph(BYTES, rows(9))[0], decode_inputs(BYTES[rows(9)], UNITS, torch.float32)
    )


def test_without_a_compiler_torch_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_load_native", lambda: None)
    assert torch.equal(decode_rows(BYTES, rows(4), UNITS, torch.float32), BYTES[rows(4)] * SCALE)
