"""Making an `nn.Module` pure: keyed dropout, refusal of layers that cannot be, first weights drawn from a seed."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from fedtailor import keyed
from fedtailor.errors import InputError, require


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
        return x * mask.to(x.dtype) / keyed.keep_share(self.p)


_CHANNEL_DROPOUT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_DROPOUT = (nn.Dropout, *_CHANNEL_DROPOUT)
_MOST_DROPPED = 1 - 2**-16


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """A twin of the model in which every dropout layer draws from a key."""
    if isinstance(model, _DROPOUT):  # subclasses have been refused
        return KeyedDropout(model.p, isinstance(model, _CHANNEL_DROPOUT))
    copied = twin(model)
    for module in list(copied.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _DROPOUT):
                setattr(module, name, KeyedDropout(child.p, isinstance(child, _CHANNEL_DROPOUT)))
    return copied


def dropout_keys(module: nn.Module, key: Tensor) -> dict[str, Tensor]:
    """Return a key for every dropout layer, by the name of the layer's buffer."""
    return {name: keyed.fold(key, number) for name, number in dropout_layers(module).items()}


def dropout_layers(module: nn.Module) -> dict[str, int]:
    """Return the position of every dropout layer among a model's modules, by the name of the layer's buffer."""
    layers = enumerate(module.named_modules())
    return {f"{name}.key": number for number, (name, layer) in layers if isinstance(layer, KeyedDropout)}


class FunctionalCall:
    """Calls a module with other tensors in place of its own, as `torch.func.functional_call` does.

    Where the tensors belong is looked up once. The module must not share a tensor between two places.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._places: dict[str, tuple[dict[str, Any], str]] = {}
        for prefix, owner in module.named_modules():
            for kept in (owner._parameters, owner._buffers):
                for name in kept:
                    self._places[f"{prefix}.{name}" if prefix else name] = (kept, name)

    def __call__(self, tensors: dict[str, Tensor], x: Tensor) -> Any:
        """Run the module on x with tensors by name; those that are not given stay as they are."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for full_name, tensor in tensors.items():
                kept, name = self._places[full_name]
                before.append((kept, name, kept[name]))
                kept[name] = tensor
            return self._module(x)
        finally:
            for kept, name, tensor in before:
                kept[name] = tensor


def twin(model: nn.Module) -> nn.Module:
    """A copy with its own modules that shares the tensors, which `functional_call` replaces anyway."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    try:
        return copy.deepcopy(model, shared)
    except Exception as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise InputError(f"Task: the model must be copyable by copy.deepcopy, but is not: {reason}") from problem


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
        if isinstance(module, _DROPOUT) and type(module) not in _DROPOUT:
            raise InputError(
                f"Task: {layer} is a dropout of its own kind, which cannot be keyed; use torch.nn.Dropout."
            )
        if isinstance(module, _DROPOUT) and module.p > _MOST_DROPPED:
            raise InputError(f"Task: {layer} drops everything, got p = {module.p}; take the layer out or lower p.")
        if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise InputError(f"Task: {layer} has no parameters yet; run the model once on an example before.")


def watched(module: nn.Module, tensors: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
    """Runs a module on copies of its tensors, which `functional_call` hands back, and refuses it if it changed one."""
    used = {name: value.clone() for name, value in tensors.items()} | dropout_keys(module, key)
    outputs: Tensor = functional_call(module, used, (x,))
    kinds = dict.fromkeys(dict(module.named_buffers()), "buffer")
    for name, value in tensors.items():
        require(
            torch.equal(torch.nan_to_num(value), torch.nan_to_num(used[name])),
            f"Task: the model changes its {kinds.get(name, 'parameter')} '{name}' when it is run; "
            "such state cannot be federated.",
        )
    return outputs


def _draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation is about to draw. Attention is marked as drawing, but does not if it drops nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" not in names or given.get("dropout_p", 0.0) > 0


class RefuseGlobalDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises when an operation draws random numbers, which it would from torch's global generator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _draws(func, args, kwargs or {}):
            raise InputError(
                f"Task: the model draws random numbers by itself ({func}); use torch.nn.Dropout layers, "
                "whose draws are keyed, and set the dropout of recurrent and attention layers to 0."
            )
        return func(*args, **(kwargs or {}))


class _DrawFrom(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hands a generator to every operation that draws and does not name one."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        named = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        if named or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        return func.overloadpacket(*args, **(kwargs | {"generator": self.generator}))


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Inside, models draw their first weights from a generator of their own, seeded by `seed`.

    The weights are those that torch would draw after `torch.manual_seed(seed)`, but no global state is touched.
    """
    with _DrawFrom(torch.Generator().manual_seed(seed)):
        yield
