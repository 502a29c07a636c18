"""Tensors of the host for a device, without waiting for what the device still has to do."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on the device."""
    return (
        tensor if device.type == "cpu" else pin_memory(tensor, device).to(device, non_blocking=True)
    )


def pin_memory(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host where a CUDA device can fetch it by itself."""
    return tensor.pin_memory() if device.type == "cuda" else tensor
