"""Making an `nn.Module` pure: keyed dropout, refusal of layers that cannot be, first weights drawn from a seed."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedtailor import prng
from fedtailor.compat.torch_internals import (
    can_intercept_operations,
    intercept_operations,
    is_batch_norm,
    list_argument_names,
)
from fedtailor.errors import InputError, require
from fedtailor.ops.modules import copy_module


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
        mask = prng.dropout_mask(self.key, tuple(shape), self.p)
        self.key = prng.fold(self.key, 1)
        return x * mask.to(x.dtype) / prng.keep_prob(self.p)


_CHANNEL_DROPOUT_TYPES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


_DROPOUT_TYPES = (nn.Dropout, *_CHANNEL_DROPOUT_TYPES)


_MAX_DROP_PROB = 1 - 2**-16


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """A twin of the model in which every dropout layer draws from a key."""
    if isinstance(model, _DROPOUT_TYPES):  # subclasses have been refused
        return KeyedDropout(model.p, isinstance(model, _CHANNEL_DROPOUT_TYPES))
    copied = copy_module(model)
    for module in list(copied.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _DROPOUT_TYPES):
                setattr(
                    module, name, KeyedDropout(child.p, isinstance(child, _CHANNEL_DROPOUT_TYPES))
                )
    return copied


def make_dropout_keys(module: nn.Module, key: Tensor) -> dict[str, Tensor]:
    """Return a key for every dropout layer, by the name of the layer's buffer."""
    return {name: prng.fold(key, index) for name, index in dropout_layers(module).items()}


def dropout_layers(module: nn.Module) -> dict[str, int]:
    """Return the position of every dropout layer among a model's modules, by the name of the layer's buffer."""
    layers = enumerate(module.named_modules())
    return {
        f"{name}.key": number for number, (name, layer) in layers if isinstance(layer, KeyedDropout)
    }


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


def reject_impure_layers(model: nn.Module) -> None:
    """Refuses, by name, layers that keep running statistics or draw in a way that cannot be keyed."""
    for name, module in model.named_modules():
        layer = f"layer '{name or 'model'}' ({type(module).__name__})"
        if is_batch_norm(module):
            raise InputError(
                f"Task: {layer} mixes the examples of a batch and keeps running statistics; "
                "convert the model with fedtailor.with_group_norm(model)."
            )
        if getattr(module, "track_running_stats", False):
            raise InputError(
                f"Task: {layer} keeps running statistics; build it with track_running_stats=False."
            )
        if isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
            raise InputError(f"Task: {layer} cannot draw from a key; use torch.nn.Dropout instead.")
        if isinstance(module, _DROPOUT_TYPES) and type(module) not in _DROPOUT_TYPES:
            raise InputError(
                f"Task: {layer} is a dropout of its own kind, which cannot be keyed; use torch.nn.Dropout."
            )
        if isinstance(module, _DROPOUT_TYPES) and module.p > _MAX_DROP_PROB:
            raise InputError(
                f"Task: {layer} drops everything, got p = {module.p}; take the layer out or lower p."
            )
        if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise InputError(
                f"Task: {layer} has no parameters yet; run the model once on an example before."
            )


def run_and_check_unchanged(
    module: nn.Module, tensors: dict[str, Tensor], x: Tensor, key: Tensor
) -> Tensor:
    """Runs a module on copies of its tensors, which `functional_call` hands back, and refuses it if it changed one."""
    used = {name: value.clone() for name, value in tensors.items()} | make_dropout_keys(module, key)
    outputs: Tensor = functional_call(module, used, (x,))
    kinds = dict.fromkeys(dict(module.named_buffers()), "buffer")
    for name, value in tensors.items():
        require(
            torch.equal(torch.nan_to_num(value), torch.nan_to_num(used[name])),
            f"Task: the model changes its {kinds.get(name, 'parameter')} '{name}' when it is run; "
            "such state cannot be federated.",
        )
    return outputs


def _is_random_op(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation is about to draw. Attention is marked as drawing, but does not if it drops nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = list_argument_names(func)
    bound_args = dict(zip(names, args, strict=False)) | kwargs
    return "dropout_p" not in names or bound_args.get("dropout_p", 0.0) > 0


@contextmanager
def forbid_global_randomness() -> Iterator[None]:
    """Refuse to draw random numbers inside, which would come from torch's global generator."""
    before = torch.get_rng_state()
    with intercept_operations(_refuse_random_op):
        yield
    if not can_intercept_operations() and not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise _make_randomness_error("an unknown operation")


def _refuse_random_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do an operation unless it draws."""
    if _is_random_op(func, args, kwargs):
        raise _make_randomness_error(func)
    return func(*args, **kwargs)


def _make_randomness_error(operation: object) -> InputError:
    return InputError(
        f"Task: the model draws random numbers by itself ({operation}); use torch.nn.Dropout layers, "
        "whose draws are keyed, and set the dropout of recurrent and attention layers to 0."
    )


def _draw_from(
    generator: torch.Generator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do an operation, with a generator if it draws and does not name one."""
    named = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
    if named or not _is_random_op(func, args, kwargs):
        return func(*args, **kwargs)
    return func.overloadpacket(*args, **(kwargs | {"generator": generator}))


@contextmanager
def seeded_init(seed: int) -> Iterator[None]:
    """Inside, models draw their first weights from a generator of their own, seeded by `seed`.

    The weights are those that torch would draw after `torch.manual_seed(seed)`, but no global state is touched.
    Where torch cannot hand the generator on, its global one is put in that state, and back afterwards.
    """
    generator = torch.Generator().manual_seed(seed)
    if can_intercept_operations():
        with intercept_operations(partial(_draw_from, generator)):
            yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield
