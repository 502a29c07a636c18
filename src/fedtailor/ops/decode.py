"""Columns as a model takes them: whoever runs a model on a dataset's examples decodes them here.

On a CPU rows of bytes become numbers in one pass of compiled code (`decode.cpp`), where there is a compiler. For
processors without AVX-512 torch makes code that has them eight at a time through memory, as slow as a small network.
"""

from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtailor.ops import cpp_build


class InputFormat(Protocol):
    """What a column of inputs holds: tokens, or amounts with a factor."""

    @property
    def tokens(self) -> bool:
        """Whether inputs stay integers."""

    @property
    def scale(self) -> float:
        """What inputs that are no tokens are multiplied by."""


def decode_inputs(x: Tensor, example_spec: InputFormat, dtype: torch.dtype) -> Tensor:
    """Inputs as the model takes them: tokens as integers, everything else floating and scaled."""
    return x.long() if example_spec.tokens else x.to(dtype) * example_spec.scale


def decode_rows(
    column: Tensor, rows: Tensor, example_spec: InputFormat, dtype: torch.dtype
) -> Tensor:
    """Rows of a column of inputs as the model takes them."""
    kinds = column.dtype, rows.dtype, dtype
    fits = (
        column.device.type == "cpu"
        and kinds == (torch.uint8, torch.int64, torch.float32)
        and not example_spec.tokens
    )
    if fits and column[:1].is_contiguous() and _load_native() is not None:
        found: Tensor = torch.ops.fedtailor.taken(column, rows, example_spec.scale)
        return found
    return decode_inputs(column[rows], example_spec, dtype)


def decode_targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets as losses take them: labels as integers, numbers in the model's precision."""
    return y.to(dtype) if y.is_floating_point() else y.long()


@cache
def _load_native() -> Any:
    """The compiled code, or None."""
    found = cpp_build.load_library(Path(__file__).with_suffix(".cpp"))
    if found is not None:
        found.take.argtypes = [c_void_p] * 3 + [c_int64] * 4 + [c_float, c_int64]
        found.take.restype = c_int64
    return found


def _decode_rows_cpu(column: Tensor, rows: Tensor, scale: float) -> Tensor:
    output, wanted = _empty_output(column, rows, scale), rows.contiguous()
    pointers = (each.data_ptr() for each in (column, wanted, output))
    sizes = len(column), column[:1].numel(), column.stride(0), wanted.numel()
    missing = _load_native().take(*pointers, *sizes, scale, torch.get_num_threads())
    if missing:
        raise IndexError(
            f"{missing} of {wanted.numel()} rows are not in a column of {len(column)}."
        )
    return output


def _empty_output(column: Tensor, rows: Tensor, scale: float) -> Tensor:
    return column.new_empty((*rows.shape, *column.shape[1:]), dtype=torch.float32)


# Not `torch.library.custom_op`, whose checks take five times as long as the call.
_LIBRARY: Any = torch.library.Library("fedtailor", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("taken(Tensor column, Tensor rows, float scale) -> Tensor")
_LIBRARY.impl("taken", _decode_rows_cpu, "CPU")
_LIBRARY.impl("taken", _empty_output, "Meta")
