"""Pure functions of tensors from an `nn.Module`.

Dropout draws from keys, layers that cannot be pure are refused, and initial weights are drawn from
a seed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from fedtailor import prng
from fedtailor.compat.torch_internals import (
    can_intercept_operations,
    get_tensor_dicts,
    intercept_operations,
    is_batch_norm,
    list_argument_names,
)
from fedtailor.errors import InputError, require
from fedtailor.ops.modules import copy_module
from fedtailor.prng.streams import DropoutStream

_CHANNEL_DROPOUT_TYPES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_DROPOUT_TYPES = (nn.Dropout, *_CHANNEL_DROPOUT_TYPES)

_MAX_DROP_PROB = 1 - 2**-16
"""Largest dropout probability that is not rounded to 1: keyed masks have a resolution of 2^-16."""


# Dropout by key


class KeyedDropout(nn.Module):
    """Dropout whose mask is drawn from a key.

    Each use replaces the key, so that a layer used twice draws two masks. `functional_call` undoes
    the replacement, as it restores every buffer.
    """

    key: Tensor

    def __init__(self, p: float, whole_channels: bool) -> None:
        super().__init__()
        self.p = p
        self.whole_channels = whole_channels
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of `x`, or whole channels, in training mode, and scale up the others."""
        if not self.training or self.p == 0.0:
            return x
        shape = tuple(x.shape)
        if self.whole_channels:
            shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        mask = prng.dropout_mask(self.key, shape, self.p)
        self.key = prng.fold(self.key, DropoutStream.NEXT_MASK)
        return x * mask.to(x.dtype) / prng.keep_prob(self.p)


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """Return a copy of the model, with the same tensors, whose dropout layers draw from keys."""
    # Subclasses of dropout layers have been refused by `reject_impure_layers`.
    if isinstance(model, _DROPOUT_TYPES):
        return _make_keyed(model)
    keyed_model = copy_module(model)
    for name, layer in list(keyed_model.named_modules(remove_duplicate=False)):
        if isinstance(layer, _DROPOUT_TYPES):
            keyed_model.set_submodule(name, _make_keyed(layer))
    return keyed_model


def _make_keyed(
    layer: nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d,
) -> KeyedDropout:
    return KeyedDropout(layer.p, isinstance(layer, _CHANNEL_DROPOUT_TYPES))


def make_dropout_keys(module: nn.Module, key: Tensor) -> dict[str, Tensor]:
    """Return a key for every dropout layer, by the name of the layer's buffer."""
    return {name: prng.fold(key, index) for name, index in list_dropout_layers(module).items()}


def list_dropout_layers(module: nn.Module) -> dict[str, int]:
    """Return each dropout layer's position among all modules, by the name of the layer's buffer."""
    return {
        f"{name}.key": position
        for position, (name, layer) in enumerate(module.named_modules())
        if isinstance(layer, KeyedDropout)
    }


# Calling a module with other tensors


class _Slot(NamedTuple):
    """The entry of a layer's own dict from which the layer reads a tensor."""

    own_tensors: dict[str, Any]
    name: str


class FunctionalCall:
    """A module to be called with other tensors in place of its own, as by `functional_call`.

    The layer that owns a tensor is looked up once, which makes calls faster than torch's. The
    module must not have one tensor under two names.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._slots: dict[str, _Slot] = {}
        for prefix, owner in module.named_modules():
            for own_tensors in get_tensor_dicts(owner):
                for name in own_tensors:
                    full_name = f"{prefix}.{name}" if prefix else name
                    self._slots[full_name] = _Slot(own_tensors, name)

    def __call__(self, tensors: dict[str, Tensor], x: Tensor) -> Any:
        """Run the module on `x` with tensors by name; those not given stay as they are."""
        if not self._slots:  # this torch does not say where layers keep their tensors
            return functional_call(self._module, tensors, (x,), tie_weights=False)
        replaced: list[tuple[_Slot, Tensor | None]] = []
        try:
            for full_name, tensor in tensors.items():
                slot = self._slots[full_name]
                replaced.append((slot, slot.own_tensors[slot.name]))
                slot.own_tensors[slot.name] = tensor
            return self._module(x)
        finally:
            for slot, original in replaced:
                slot.own_tensors[slot.name] = original


# Layers that cannot be pure


def reject_impure_layers(model: nn.Module) -> None:
    """Raise an `InputError` for a layer that keeps statistics, or draws without a key."""
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
        if isinstance(module, _DROPOUT_TYPES):
            _reject_unkeyable_dropout(module, layer)
        if any(is_lazy(parameter) for parameter in module.parameters(recurse=False)):
            raise InputError(
                f"Task: {layer} has no parameters yet; run the model once on an example before."
            )


def _reject_unkeyable_dropout(
    module: nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d, layer: str
) -> None:
    if type(module) not in _DROPOUT_TYPES:
        raise InputError(
            f"Task: {layer} is a subclass of a dropout layer, which cannot be keyed; "
            "use torch.nn.Dropout."
        )
    if module.p > _MAX_DROP_PROB:
        raise InputError(
            f"Task: {layer} drops everything, got p = {module.p}; take the layer out or lower p."
        )


def run_and_check_unchanged(
    module: nn.Module, tensors: dict[str, Tensor], x: Tensor, key: Tensor
) -> Tensor:
    """Return a module's outputs, and raise an `InputError` if it changes a tensor of its own.

    Args:
        module: A module with keyed dropout.
        tensors: Parameters and buffers by name, of which the module gets copies.
        x: Its inputs.
        key: Key from which the keys of its dropout layers are folded.
    """
    copies = {name: value.clone() for name, value in tensors.items()}
    copies |= make_dropout_keys(module, key)
    # `functional_call` writes back into the dict what the module has assigned anew.
    outputs: Tensor = functional_call(module, copies, (x,))
    buffers = dict(module.named_buffers())
    for name, value in tensors.items():
        kind = "buffer" if name in buffers else "parameter"
        require(
            torch.equal(torch.nan_to_num(value), torch.nan_to_num(copies[name])),
            f"Task: the model changes its {kind} '{name}' when it is run; "
            "such state cannot be federated.",
        )
    return outputs


# Draws from torch's generators


def _is_random_op(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operation is about to draw random numbers."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = list_argument_names(func)
    if "dropout_p" not in names:
        return True
    # Attention is tagged as random, but does not draw if it drops nothing.
    bound_args = dict(zip(names, args, strict=False)) | kwargs
    return bound_args.get("dropout_p", 0.0) > 0  # type: ignore[no-any-return]


@contextmanager
def forbid_global_randomness() -> Iterator[None]:
    """Raise an `InputError` in the block for a draw from torch's global generator."""
    state = torch.get_rng_state()
    with intercept_operations(_refuse_random_op):
        yield
    if not can_intercept_operations() and not torch.equal(state, torch.get_rng_state()):
        torch.set_rng_state(state)
        raise _make_randomness_error("an unknown operation")


def _refuse_random_op(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _is_random_op(func, args, kwargs):
        raise _make_randomness_error(func)
    return func(*args, **kwargs)


def _make_randomness_error(operation: object) -> InputError:
    return InputError(
        f"Task: the model draws random numbers by itself ({operation}); use torch.nn.Dropout "
        "layers, whose draws are keyed, and set the dropout of recurrent and attention layers to 0."
    )


def _draw_from(
    generator: torch.Generator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operation; if it draws from the global generator, let it draw from this one."""
    has_generator = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
    if has_generator or not _is_random_op(func, args, kwargs):
        return func(*args, **kwargs)
    return func.overloadpacket(*args, **(kwargs | {"generator": generator}))


@contextmanager
def seed_initialization(seed: int) -> Iterator[None]:
    """Make models built in the block draw their initial weights from a generator with this seed.

    The weights are those that torch would draw after `torch.manual_seed(seed)`, but no global state
    changes. If torch cannot intercept operations, its global generator gets the seed and is
    restored afterwards.
    """
    generator = torch.Generator().manual_seed(seed)
    if can_intercept_operations():
        with intercept_operations(partial(_draw_from, generator)):
            yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield
