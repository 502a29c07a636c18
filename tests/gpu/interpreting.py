"""Triton's interpreter with the arithmetic of a GPU, and with its memory checked.

By itself the interpreter multiplies the bit patterns of bf16, cuts floats off where a GPU rounds
them, does not round to tf32, and reads and writes wherever a kernel says. Here every address must
lie inside a tensor that the kernel was given, and only one program may write a place.

Kernels that are given tensors on the device `meta` run too, but only their first and their last
program: loads give zeros, and stores are only checked. So offsets can be tried in tensors that no
memory would hold.
"""

import importlib
import inspect
from dataclasses import dataclass, field
from itertools import count, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Place = tuple[int, ...]

_interpreter: Any = importlib.import_module("triton.runtime.interpreter")
_tl: Any = importlib.import_module("triton.language")
_ir: Any = importlib.import_module("triton._C.libtriton").ir
_jit: Any = importlib.import_module("triton.runtime.jit")
_builder: Any = _interpreter.InterpreterBuilder
_originals = {
    name: getattr(_builder, name)
    for name in (
        "binary_op",
        "cast_impl",
        "create_fp_to_fp",
        "create_masked_load",
        "create_masked_store",
    )
}
_language = SimpleNamespace(__globals__={"tl": _tl, "core": _tl.core})
"""What a function has to know for Triton to exchange its language for the interpreted one."""
_free = count(1 << 50, 1 << 42)
"""Where tensors without memory pretend to lie: farther apart than any of them is long."""


class StrayAccessError(Exception):
    """A place that a kernel must not read or write."""


@dataclass
class Room:
    """Where a tensor lies, how far it was read or written, and which program wrote each place."""

    begin: int
    end: int
    itemsize: int
    real: bool
    writers: Array = field(repr=False)
    reached: int = 0


@dataclass
class Launch:
    """A kernel's run: where its tensors lie, and the program at work, counted from 1."""

    name: str
    rooms: list[Room] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    program: int = 0

    def pointer(self, tensor: Tensor) -> Any:
        """A tensor as kernels see it."""
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        length = 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
        real = tensor.device.type != "meta"
        begin = tensor.data_ptr() if real else self.given.setdefault(id(tensor), next(_free))
        end = begin + length * tensor.itemsize
        writers = np.zeros(length if real else 0, dtype=np.int32)
        if all(room.begin != begin for room in self.rooms):
            self.rooms.append(Room(begin, end, tensor.itemsize, real, writers))
        kind = _tl.str_to_ty(_jit.mangle_type(tensor), None)
        return _tl.tensor(_interpreter.TensorHandle(np.array([begin], dtype=np.uint64), kind), kind)

    def room(self, addresses: Array, itemsize: int) -> Room:
        """The tensor inside which all addresses lie."""
        low, high = int(addresses.min()), int(addresses.max()) + itemsize
        for room in self.rooms:
            if room.begin <= low and high <= room.end and room.itemsize == itemsize:
                room.reached = max(room.reached, high)
                return room
        place = f"{low:#x} to {high:#x}"
        raise StrayAccessError(f"{self.name}: {place} does not lie inside one of {self.rooms}.")

    def write(self, addresses: Array, itemsize: int) -> None:
        """Notes who writes where."""
        room = self.room(addresses, itemsize)
        if not room.real:
            return
        places = (addresses.astype(np.int64) - room.begin) // itemsize
        before = room.writers[places]
        if ((before != 0) & (before != self.program)).any():
            raise StrayAccessError(f"{self.name}: two programs write the same place.")
        if len(np.unique(places)) < len(places):
            raise StrayAccessError(f"{self.name}: a program writes a place twice at once.")
        room.writers[places] = self.program


LAUNCHES: list[Launch] = []
"""All launches since this list was last cleared; the last one is at work."""


def mend() -> None:
    """Mends the interpreter for the rest of the process."""
    options = _interpreter.InterpreterOptions(sanitize_overflow=False)
    _interpreter.interpreter_builder.options = options
    _interpreter.GridExecutor.__call__ = _launched
    _interpreter.InterpretedFunction.__call__ = _called
    _builder.create_masked_load = _load
    _builder.create_masked_store = _store
    _builder.create_dot = _dot
    _builder.cast_impl = _cast
    _builder.create_fp_to_fp = _converted
    _builder.binary_op = _binary


def rounded_to_tf32(x: Array) -> Array:
    """Float32 with ten bits behind the point, the nearest, those farther from zero in a tie."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)


def _launched(self: Any, *given: Any, **named: Any) -> None:
    """Runs a kernel, program after program."""
    known = inspect.getfullargspec(self.fn).args
    kept = {name: value for name, value in named.items() if name in known}
    bound = inspect.getcallargs(self.fn, *given, **kept)
    launch = Launch(self.fn.__name__)
    LAUNCHES.append(launch)
    scope = _interpreter._patch_lang(_language)
    try:
        varying = {name: each for name, each in bound.items() if name not in self.constexprs}
        args = bound | {name: _seen(launch, each) for name, each in varying.items()}
        grid: Place = (*self.grid, 1, 1)[:3]
        _interpreter.interpreter_builder.set_grid_dim(*grid)
        for number, place in enumerate(_programs(launch, grid), 1):
            launch.program = number
            _interpreter.interpreter_builder.set_grid_idx(*place)
            self.fn(**args)
    finally:
        scope.restore()


def _programs(launch: Launch, grid: Place) -> list[Place]:
    if all(room.real for room in launch.rooms):
        return list(product(*map(range, grid)))
    return [(0, 0, 0), (grid[0] - 1, grid[1] - 1, grid[2] - 1)]


def _seen(launch: Launch, value: Any) -> Any:
    return launch.pointer(value) if isinstance(value, Tensor) else _interpreter._implicit_cvt(value)


def _called(self: Any, *given: Any, **named: Any) -> Any:
    """A function that a kernel calls: Triton would exchange the language once more, for good."""
    return self.rewrite()(*given, **named)


def _load(self: Any, pointers: Any, mask: Any, other: Any, *how: Any) -> Any:
    kind = pointers.get_element_ty()
    dtype = _interpreter._get_np_dtype(kind)
    addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
    real = all(room.real for room in LAUNCHES[-1].rooms)
    if addresses.size:
        LAUNCHES[-1].room(addresses, dtype.itemsize)
    if not real:
        return _interpreter.TensorHandle(np.zeros(pointers.data.shape, dtype), kind)
    return _originals["create_masked_load"](self, pointers, mask, other, *how)


def _store(self: Any, pointers: Any, value: Any, mask: Any, *how: Any) -> Any:
    addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
    if addresses.size:
        LAUNCHES[-1].write(addresses, value.data.dtype.itemsize)
    if all(room.real for room in LAUNCHES[-1].rooms):
        _originals["create_masked_store"](self, pointers, value, mask, *how)


def _dot(self: Any, a: Any, b: Any, total: Any, precision: Any, *how: Any) -> Any:
    """A product of matrices as a GPU's units do it, with sums in float32."""
    factors = [_widened(each) for each in (a, b)]
    if precision == _ir.INPUT_PRECISION.TF32 and a.dtype.scalar == _tl.float32:
        factors = [rounded_to_tf32(each) for each in factors]
    found = np.matmul(*factors, dtype=np.float32) + _widened(total)
    return _narrowed(found, total.dtype.scalar)


def _cast(self: Any, source: Any, kind: Any) -> Any:
    if _tl.bfloat16 in (source.dtype.scalar, kind.scalar):
        return _narrowed(_widened(source).astype(_wide_dtype(kind.scalar)), kind.scalar)
    return _originals["cast_impl"](self, source, kind)


def _converted(self: Any, source: Any, kind: Any, how: Any) -> Any:
    if _tl.bfloat16 in (source.dtype.scalar, kind.scalar):
        return _cast(self, source, kind)
    return _originals["create_fp_to_fp"](self, source, kind, how)


def _binary(self: Any, one: Any, other: Any, operation: Any) -> Any:
    kind = one.dtype.scalar
    if kind != _tl.bfloat16:
        return _originals["binary_op"](self, one, other, operation)
    found = operation(_widened(one), _widened(other))
    if found.dtype == np.bool_:
        return _interpreter.TensorHandle(found, _tl.int1)
    return _narrowed(found, kind)


def _wide_dtype(kind: Any) -> Any:
    return np.float32 if kind == _tl.bfloat16 else _interpreter._get_np_dtype(kind)


def _widened(handle: Any) -> Array:
    """A tensor's numbers; those in bf16 as float32."""
    if handle.dtype.scalar != _tl.bfloat16:
        return np.asarray(handle.data)
    wide: Array = handle.data.astype(np.uint32) << 16
    return wide.view(np.float32)


def _narrowed(numbers: Array, kind: Any) -> Any:
    """Numbers as a tensor of a kind; in bf16 the nearest ones, and even ones in a tie."""
    if kind == _tl.bfloat16:
        rounded = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32)).bfloat16()
        numbers = rounded.view(torch.int16).numpy().view(np.uint16)
    return _interpreter.TensorHandle(numbers, kind)
