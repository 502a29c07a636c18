"""CUDA graphs without a GPU: a tape of operations that are written down, undone, and done again at
each replay.

As on a GPU, nothing that is recorded happens yet, the host cannot look at what is being recorded, a
replay reads and writes the very tensors that were there when it was recorded, and what is made on
the way may be gone afterwards.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_READS = (_ATEN._local_scalar_dense.default, _ATEN.nonzero.default, _ATEN.equal.default)


class Tape:
    """Stands for `torch.cuda.CUDAGraph`."""

    made: list["Tape"] = []  # noqa: RUF012 - all of a test

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.passing: list[Tensor] = []
        self.shares: object = None
        self.replays = 0
        Tape.made.append(self)

    def pool(self) -> object:
        """What says whose passing memory a graph uses."""
        return self if self.shares is None else self.shares

    def replay(self) -> None:
        """Does what was recorded."""
        self.replays += 1
        for step in self.steps:
            step()
        self.spoil()

    def spoil(self) -> None:
        """Leaves nothing of what was made on the way."""
        for each in self.passing:
            each.fill_(torch.nan if each.is_floating_point() else 77)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is done, and what was there before it was written over."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._own: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in _READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        written = list(_written(func, args, named))
        for each in written:
            self._keep(each)
        found = func(*args, **named)
        made = [each for each in _tensors(found) if not _aliases(func)]
        self._own.update(map(_storage, made))
        self._tape.passing += made
        if written or made:
            self._tape.steps.append(lambda: _do_again(func, args, named, made))
        return found

    def undo(self) -> None:
        """Brings back what was there before."""
        for room, value in self._before.values():
            room.copy_(value)

    def _keep(self, tensor: Tensor) -> None:
        where = _storage(tensor)
        if where not in self._own and where not in self._before:
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self._before[where] = whole, whole.clone()


def _do_again(func: Any, args: Any, named: dict[str, Any], made: Sequence[Tensor]) -> None:
    found = func(*args, **named)
    for room, value in zip(made, _tensors(found) if made else (), strict=True):
        room.copy_(value)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(found: Any) -> Iterator[Tensor]:
    """All tensors among an operation's arguments or results."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _tensors(each)


def _written(func: Any, args: Any, named: dict[str, Any]) -> Iterator[Tensor]:
    """What an operation writes over."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[number] if number < len(args) else named.get(argument.name))


def _aliases(func: Any) -> bool:
    """Whether an operation gives a view, or what it has written over."""
    return any(each.alias_info is not None for each in func._schema.returns)


@contextmanager
def recorded(tape: Tape, pool: Any = None) -> Iterator[None]:
    """Stands for `torch.cuda.graph`."""
    tape.shares = pool
    recording = _Recording(tape)
    with recording:
        yield
    recording.undo()
    tape.spoil()


def put_in_place_of_graphs(patch: pytest.MonkeyPatch) -> list[Tape]:
    """Has torch record tapes; gives the list of those that are made."""
    Tape.made.clear()
    patch.setattr(torch.cuda, "CUDAGraph", Tape)
    patch.setattr(torch.cuda, "graph", recorded)
    return Tape.made
