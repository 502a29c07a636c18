"""Columns as a model takes them: whoever runs a model on a dataset's examples decodes them here.

On a CPU rows of bytes become numbers in one pass of compiled code (`decoding.cpp`), where there is a compiler. For
processors without AVX-512 torch makes code that has them eight at a time through memory, as slow as a small network.
"""

from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor import native
from fedtailor.data.dataset import Units


def decoded(x: Tensor, units: Units, dtype: torch.dtype) -> Tensor:
    """Inputs as the model takes them: tokens as integers, everything else floating and scaled."""
    return x.long() if units.tokens else x.to(dtype) * units.scale


def taken(column: Tensor, rows: Tensor, units: Units, dtype: torch.dtype) -> Tensor:
    """Rows of a column of inputs as the model takes them."""
    kinds = column.dtype, rows.dtype, dtype
    fits = column.device.type == "cpu" and kinds == (torch.uint8, torch.int64, torch.float32) and not units.tokens
    if fits and column[:1].is_contiguous() and _native() is not None:
        found: Tensor = torch.ops.fedtailor.taken(column, rows, units.scale)
        return found
    return decoded(column[rows], units, dtype)


def targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets as losses take them: labels as integers, numbers in the model's precision."""
    return y.to(dtype) if y.is_floating_point() else y.long()


@cache
def _native() -> Any:
    """The compiled code, or None."""
    found = native.library(Path(__file__).with_suffix(".cpp"))
    if found is not None:
        found.take.argtypes = [c_void_p] * 3 + [c_int64] * 4 + [c_float, c_int64]
        found.take.restype = c_int64
    return found


def _take(column: Tensor, rows: Tensor, scale: float) -> Tensor:
    made, wanted = _room(column, rows, scale), rows.contiguous()
    places = (each.data_ptr() for each in (column, wanted, made))
    sizes = len(column), column[:1].numel(), column.stride(0), wanted.numel()
    missing = _native().take(*places, *sizes, scale, torch.get_num_threads())
    if missing:
        raise IndexError(f"{missing} of {wanted.numel()} rows are not in a column of {len(column)}.")
    return made


def _room(column: Tensor, rows: Tensor, scale: float) -> Tensor:
    return column.new_empty((*rows.shape, *column.shape[1:]), dtype=torch.float32)


# Not `torch.library.custom_op`, whose checks take five times as long as the call.
_OURS: Any = torch.library.Library("fedtailor", "FRAGMENT")  # type: ignore[no-untyped-call]
_OURS.define("taken(Tensor column, Tensor rows, float scale) -> Tensor")
_OURS.impl("taken", _take, "CPU")
_OURS.impl("taken", _room, "Meta")
