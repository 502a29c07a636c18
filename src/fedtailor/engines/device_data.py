"""Examples on a device: batches are gathered and decoded there."""

from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from fedtailor.compat.torch_internals import silence_read_only_warning
from fedtailor.core.types import (
    Batch,
)
from fedtailor.data.batching import BatchIndices
from fedtailor.data.dataset import ExampleSpec
from fedtailor.data.examples import ClientExamples
from fedtailor.data.store.memory_map import advise_random_access
from fedtailor.ops.decode import decode_rows, decode_targets

_TRANSFER_BYTES = 1 << 26  # bytes of a column that are sent to a device at a time


def _to_device_tensor(column: np.ndarray, device: torch.device) -> Tensor:
    """A column on the device; where it lies already if it can, even if it may not be written to: it never is.

    There may be gaps between rows, as in a view of a memory map. What is sent to another device is sent piece by piece,
    since torch would first copy a column with gaps whole.
    """
    step, whole_rows = column.strides[0], column[:1].flags.c_contiguous
    if (
        not whole_rows or step < 0 or step % column.itemsize
    ):  # torch knows no steps backwards or of parts of numbers
        column = np.ascontiguousarray(column)
    with silence_read_only_warning():
        here = torch.from_numpy(column)
    if device.type == "cpu":
        advise_random_access(column)
        return here
    there, rows = (
        torch.empty(here.shape, dtype=here.dtype, device=device),
        max(1, _TRANSFER_BYTES // max(1, here[:1].nbytes)),
    )
    for start in range(0, len(here), rows):
        there[start : start + rows] = here[start : start + rows]
    return there


class DeviceDataset:
    """The examples of clients, or of the server, as tensors on a device, where batches are gathered and decoded."""

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
        """The inputs and targets of all examples, on the device."""
        x = _to_device_tensor(self.examples.x, self.device)
        y = _to_device_tensor(self.examples.y, self.device)
        return x, y

    def load_batch(self, indices: BatchIndices) -> Batch:
        """Return the examples of a batch, or of a stack of batches, on the device."""
        if self.device.type != "cpu":
            indices = BatchIndices(*(leaf.to(self.device) for leaf in indices))
        return self.decode(self.columns, indices)


def decode_batch(
    example_spec: ExampleSpec,
    dtype: torch.dtype,
    columns: tuple[Tensor, Tensor],
    indices: BatchIndices,
) -> Batch:
    """Gather examples from columns and convert them to what models and losses take.

    Args:
        example_spec: What the columns hold: tokens, or amounts with a scale.
        dtype: Floating-point type of the model.
        columns: Inputs and targets of all examples.
        indices: Which examples; on the device of the columns.
    """
    x, y = columns
    inputs = decode_rows(x, indices.rows, example_spec, dtype)
    targets = decode_targets(y[indices.rows], dtype)
    return Batch(inputs, targets, indices.mask.to(dtype), indices.key)
