"""Copies from the CPU to a device that do not wait for the device's pending work."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`; on the CPU itself it is not copied."""
    if device.type == "cpu":
        return tensor
    return pin_memory(tensor, device).to(device, non_blocking=True)


def pin_memory(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor in pinned memory if `device` is a CUDA device, else as it is."""
    if device.type == "cuda":
        return tensor.pin_memory()
    return tensor
