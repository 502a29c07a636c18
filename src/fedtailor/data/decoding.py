"""Columns as a model takes them: whoever runs a model on a dataset's examples decodes them here."""

import torch
from torch import Tensor

from fedtailor.data.dataset import Units


def decoded(x: Tensor, units: Units, dtype: torch.dtype) -> Tensor:
    """Inputs as the model takes them: tokens as integers, everything else floating and scaled."""
    return x.long() if units.tokens else x.to(dtype) * units.scale


def targets(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets as losses take them: labels as integers, numbers in the model's precision."""
    return y.to(dtype) if y.is_floating_point() else y.long()
