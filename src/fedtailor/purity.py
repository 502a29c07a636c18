"""Making an `nn.Module` pure: keyed dropout, refusal of layers that cannot be, first weights drawn from a seed."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedtailor import keyed
from fedtailor.errors import InputError


class KeyedDropout(nn.Module):
    """Dropout that draws its mask from a key. The key moves on with each use, so a layer used twice draws twice.

    The move is undone by `functional_call`, which gives every buffer back as it was.
    """

    key: Tensor

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.whole_channels = p, whole_channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drops entries (or whole channels) of x in training mode."""
        if not self.training or self.p == 0.0:
            return x
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.whole_channels else x.shape
        mask = keyed.keep_mask(self.key, tuple(shape), self.p)
        self.key = keyed.fold(self.key, 1)
        return x * mask.to(x.dtype) / max(keyed.keep_share(self.p), 1e-12)


_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_DROPOUT = (nn.Dropout, *_CHANNEL_DROPOUT)


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """A twin of the model in which every dropout layer draws from a key."""
    if isinstance(model, _DROPOUT):
        return KeyedDropout(model.p, isinstance(model, _CHANNEL_DROPOUT))
    copied = twin(model)
    for module in list(copied.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _DROPOUT):
                setattr(module, name, KeyedDropout(child.p, isinstance(child, _CHANNEL_DROPOUT)))
    return copied


def twin(model: nn.Module) -> nn.Module:
    """A copy with its own modules that shares the tensors, which `functional_call` replaces anyway."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, shared)


def refuse_impure_layers(model: nn.Module) -> None:
    """Refuses, by name, layers that keep running statistics or draw in a way that cannot be keyed."""
    for name, module in model.named_modules():
        layer = f"layer '{name or 'model'}' ({type(module).__name__})"
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"Task: {layer} mixes the examples of a batch and keeps running statistics; "
                "convert the model with fedtailor.with_group_norm(model)."
            )
        if getattr(module, "track_running_stats", False):
            raise InputError(f"Task: {layer} keeps running statistics; build it with track_running_stats=False.")
        if isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
            raise InputError(f"Task: {layer} cannot draw from a key; use torch.nn.Dropout instead.")


class RefuseGlobalDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises when an operation draws from torch's global generator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise InputError(
                f"Task: the model draws random numbers by itself ({func}); use torch.nn.Dropout layers, "
                "whose draws are keyed, and set the dropout of recurrent and attention layers to 0."
            )
        return func(*args, **(kwargs or {}))


class _DrawFrom(TorchFunctionMode):
    """Hands a generator to every random initialisation that does not name one."""

    draws = frozenset(
        ("rand", "randn", "randint", "randperm", "bernoulli_", "uniform_", "normal_", "trunc_normal_", "orthogonal_")
        + ("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_", "sparse_")
    )

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") in self.draws and kwargs.get("generator") is None:
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Inside, models draw their first weights from a generator of their own, seeded by `seed`.

    The weights are those that torch would draw after `torch.manual_seed(seed)`, but no global state is touched.
    """
    with _DrawFrom(torch.Generator().manual_seed(seed)):
        yield
