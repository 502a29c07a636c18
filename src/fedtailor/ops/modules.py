"""Copies of modules that share their tensors."""

import copy

from torch import nn

from fedtailor.errors import InputError


def copy_module(model: nn.Module) -> nn.Module:
    """Return a copy with its own modules that shares parameters and buffers with `model`.

    `functional_call` replaces the tensors anyway.
    """
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    try:
        return copy.deepcopy(model, shared)
    except Exception as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise InputError(
            f"Task: the model must be copyable by copy.deepcopy, but is not: {reason}"
        ) from problem
