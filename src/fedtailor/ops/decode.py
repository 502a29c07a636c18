"""Decoding of columns of examples into the inputs and targets of models.

On a CPU, rows of bytes become float32 in one pass of compiled code (`decode.cpp`), where there is a
compiler. For CPUs without AVX-512, torch's code converts eight numbers at a time through memory,
which takes as long as a small network.
"""

from ctypes import c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedtailor.ops import cpp_build


class InputFormat(Protocol):
    """Meaning of a column of inputs: tokens, or numbers with a scale."""

    @property
    def tokens(self) -> bool:
        """Return whether inputs are tokens, which stay integers."""

    @property
    def scale(self) -> float:
        """Return the factor of inputs that are not tokens."""


def decode_inputs(x: Tensor, example_spec: InputFormat, dtype: torch.dtype) -> Tensor:
    """Return inputs as the model takes them.

    Args:
        x: Inputs as they are stored.
        example_spec: Whether they are tokens, which become int64, and the scale of others.
        dtype: Floating-point type of inputs that are not tokens.
    """
    if example_spec.tokens:
        return x.long()
    return x.to(dtype) * example_spec.scale


def decode_rows(
    column: Tensor, rows: Tensor, example_spec: InputFormat, dtype: torch.dtype
) -> Tensor:
    """Return some rows of a column of inputs as the model takes them, [*rows.shape, *example].

    Args:
        column: Inputs of all examples as they are stored, [examples, ...].
        rows: Indices of examples, of any shape.
        example_spec: Whether inputs are tokens, and the scale of others.
        dtype: Floating-point type of inputs that are not tokens.
    """
    if _can_decode_natively(column, rows, example_spec, dtype):
        decoded: Tensor = torch.ops.fedtailor.decode_rows(column, rows, example_spec.scale)
        return decoded
    return decode_inputs(column[rows], example_spec, dtype)


def decode_targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return targets as losses take them: labels as int64, numbers in the model's `dtype`."""
    return y.to(dtype) if y.is_floating_point() else y.long()


def _can_decode_natively(
    column: Tensor, rows: Tensor, example_spec: InputFormat, dtype: torch.dtype
) -> bool:
    """Return whether compiled code decodes these rows: bytes to float32, on a CPU."""
    if column.device.type != "cpu" or example_spec.tokens:
        return False
    dtypes = (column.dtype, rows.dtype, dtype)
    if dtypes != (torch.uint8, torch.int64, torch.float32):
        return False
    # There may be gaps between examples, but not inside them.
    return column[:1].is_contiguous() and _load_native() is not None


@cache
def _load_native() -> Any:
    """Return the library compiled from `decode.cpp`, or None without a compiler."""
    library = cpp_build.load_library(Path(__file__).with_suffix(".cpp"))
    if library is not None:
        library.decode_rows.argtypes = [c_void_p] * 3 + [c_int64] * 4 + [c_float, c_int64]
        library.decode_rows.restype = c_int64
    return library


def _decode_rows_cpu(column: Tensor, rows: Tensor, scale: float) -> Tensor:
    output = _allocate_output(column, rows, scale)
    rows = rows.contiguous()
    num_missing = _load_native().decode_rows(
        column.data_ptr(),
        rows.data_ptr(),
        output.data_ptr(),
        len(column),
        column[:1].numel(),
        column.stride(0),
        rows.numel(),
        scale,
        torch.get_num_threads(),
    )
    if num_missing:
        raise IndexError(
            f"{num_missing} of {rows.numel()} rows are not in a column of {len(column)}."
        )
    return output


def _allocate_output(column: Tensor, rows: Tensor, scale: float) -> Tensor:
    return column.new_empty((*rows.shape, *column.shape[1:]), dtype=torch.float32)


# Not `torch.library.custom_op`, whose checks take five times as long as the call.
_LIBRARY: Any = torch.library.Library("fedtailor", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("decode_rows(Tensor column, Tensor rows, float scale) -> Tensor")
_LIBRARY.impl("decode_rows", _decode_rows_cpu, "CPU")
_LIBRARY.impl("decode_rows", _allocate_output, "Meta")
