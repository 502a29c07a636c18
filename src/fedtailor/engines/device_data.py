"""Examples on a device, where batches are gathered and decoded."""

from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from fedtailor.compat.torch_internals import silence_read_only_warning
from fedtailor.core.types import Batch
from fedtailor.data.batching import BatchIndices
from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.examples import ClientExamples
from fedtailor.data.store.memory_map import advise_random_access
from fedtailor.data.store.verified_column import get_verified_column
from fedtailor.ops.decode import decode_rows, decode_targets

_TRANSFER_BYTES = 1 << 26
"""Bytes of a column that are copied to a device at a time."""


class DeviceDataset:
    """Examples of all clients, or of the server, as tensors on a device.

    Args:
        examples: Columns, which are copied to the device when the first batch is loaded.
        example_spec: Content of the columns: tokens, or numbers with a scale.
        dtype: Floating-point type of the batches.
        device: Device that batches are gathered on; a CPU shares the memory of the columns.
    """

    def __init__(
        self,
        examples: ClientExamples,
        example_spec: ExampleSpec,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.examples = examples
        self.example_spec = example_spec
        self.dtype = dtype
        self.device = device
        self.decode = partial(decode_batch, example_spec, dtype)

    @cached_property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all examples, on the device."""
        x = _to_device_tensor(self.examples.x, self.device)
        y = _to_device_tensor(self.examples.y, self.device)
        return x, y

    def load_batch(self, indices: BatchIndices) -> Batch:
        """Return the examples of a batch, or of a stack of batches, on the device."""
        self.verify_rows(indices.rows)
        if self.device.type != "cpu":
            indices = BatchIndices(*(leaf.to(self.device) for leaf in indices))
        return self.decode(self.columns, indices)

    def verify_rows(self, rows: Tensor) -> None:
        """Verify examples of a store before they are gathered from `columns`.

        On a device other than a CPU, columns are verified when they are copied.
        """
        if self.device.type != "cpu":
            return
        for column in (self.examples.x, self.examples.y):
            stored = get_verified_column(column)
            if stored is not None:
                stored.verify_rows(rows.numpy())


def decode_batch(
    example_spec: ExampleSpec,
    dtype: torch.dtype,
    columns: tuple[Tensor, Tensor],
    indices: BatchIndices,
) -> Batch:
    """Gather examples from columns and convert them to what models and losses take.

    Args:
        example_spec: Content of the columns: tokens, or numbers with a scale.
        dtype: Floating-point type of the model.
        columns: Inputs and targets of all examples.
        indices: Rows of the batch, or of a stack of batches, on the device of the columns.
    """
    x, y = columns
    inputs = decode_rows(x, indices.rows, example_spec, dtype)
    targets = decode_targets(y[indices.rows], dtype)
    return Batch(inputs, targets, indices.mask.to(dtype), indices.key)


def _to_device_tensor(column: np.ndarray, device: torch.device) -> Tensor:
    """Return a column as a tensor on the device.

    On a CPU the tensor shares the memory of the column if torch can express it, even if that is
    read-only: examples are never written to. Of a store's column these are rows that have not been
    verified, see `DeviceDataset.verify_rows`; other devices get a copy of verified rows.
    """
    stored = get_verified_column(column)
    if stored is not None:
        column = stored.raw_array if device.type == "cpu" else np.asarray(stored)
    if not _is_valid_tensor_layout(column):
        column = np.ascontiguousarray(column)
    with silence_read_only_warning():
        tensor = torch.from_numpy(column)
    if device.type == "cpu":
        advise_random_access(column)
        return tensor
    return _copy_in_pieces(tensor, device)


def _is_valid_tensor_layout(column: np.ndarray) -> bool:
    """Return whether rows are contiguous; there may be gaps between them, as in a memory map."""
    stride = column.strides[0]
    # torch has no negative strides, and none of a fraction of an element.
    has_valid_stride = stride >= 0 and stride % column.itemsize == 0
    return has_valid_stride and column[:1].flags.c_contiguous


def _copy_in_pieces(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device in pieces: torch would first make a column with gaps contiguous."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    row_bytes = tensor[:1].nbytes
    rows_per_piece = max(1, _TRANSFER_BYTES // max(1, row_bytes))
    for begin in range(0, len(tensor), rows_per_piece):
        end = begin + rows_per_piece
        copy[begin:end] = tensor[begin:end]
    return copy
