"""A layer of long short-term memory, for one client or a whole stack, each with weights of its own.

One client on a CPU has torch's own layer. Under `torch.func` (in a stack, in the reference engine, on a GPU) places
come one after another: a product for all clients, and one operation for what is done to its outcome. Derivatives of
any order are right: the first is written out, the others are those of its plain formula. The gradient has no forward
rule, which would cost more than its gradient does.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fedtailor import calculus


def recurrence(inputs: Tensor, into: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """Return the hidden states [T, B, hidden] of one layer.

    `inputs` are [T, B, width], `into` their weights [4 hidden, width], `weight` the recurrent ones [4 hidden, hidden].
    """
    if inputs.device.type == "cpu" and torch._C._functorch.peek_interpreter_stack() is None:
        return _by_torch(inputs, into, bias, weight)
    states: Tensor = _Forward.apply(inputs[:, None], into[None], bias[None], weight[None])[0]  # type: ignore[no-untyped-call]
    return states.squeeze(1)


def _by_torch(inputs: Tensor, into: Tensor, bias: Tensor, weight: Tensor) -> Tensor:
    """Run torch's own layer, without oneDNN where its gradient will be differentiated, for which oneDNN has no rule."""
    start = inputs.new_zeros(1, inputs.shape[1], weight.shape[1])
    layer = [into, weight, bias, torch.zeros_like(bias)]
    with _without_onednn() if calculus.is_nested() else nullcontext():
        states, _, _ = torch.lstm(inputs, (start, start), layer, True, 1, 0.0, False, False, False)
    return states


@contextmanager
def _without_onednn() -> Iterator[None]:
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


class _Stacked(torch.autograd.Function):
    """A function of several tensors and to several that all have a dimension of clients."""

    given: tuple[int, ...] = ()  # which one, of each that it is given
    made: tuple[int, ...] = ()  # and of each that it makes

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        """More clients are only a longer stack."""
        longer = (_longer(*each, info.batch_size) for each in zip(tensors, in_dims, cls.given, strict=True))
        found = cls.apply(*longer)  # type: ignore[no-untyped-call]
        apart = [each.unflatten(at, (info.batch_size, -1)) for each, at in zip(found, cls.made, strict=True)]
        return tuple(apart), cls.made


def _longer(tensor: Tensor, dim: int | None, at: int, count: int) -> Tensor:
    """A tensor with the dimension that `vmap` is about, or as often as that counts, joined to the one of clients."""
    whole = tensor.unsqueeze(at).expand(*tensor.shape[:at], count, *tensor.shape[at:]) if dim is None else tensor
    return (whole if dim is None else whole.movedim(dim, at)).flatten(at, at + 1)


class _Forward(_Stacked):
    """States, cells and gates at all places [T, C, B, ...], from inputs [T, C, B, width], weights and biases."""

    given, made = (1, 0, 0, 0), (1, 1, 1)

    @staticmethod
    def forward(inputs: Tensor, into: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Place after place."""
        projected = _projected(inputs, into) + bias[:, None]
        back, found = weight.transpose(1, 2), []
        hidden = cell = projected.new_zeros(*projected.shape[1:3], weight.shape[2])
        for own in projected.contiguous().unbind(0):
            hidden, cell, gates = _cell(own, hidden @ back, cell)
            found.append((hidden, cell, gates))
        states, cells, gates = (torch.stack(each) for each in zip(*found, strict=True))
        return states, cells, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keeps what both derivatives start from. Gates only spare work, and do not count as a function of anything."""
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output[:2])

    @staticmethod
    def backward(ctx: Any, by_state: Tensor, by_cell: Tensor, by_gates: Tensor | None) -> tuple[Tensor, ...]:
        """The gradient, from the last place to the first."""
        found: tuple[Tensor, ...] = _Backward.apply(*ctx.saved_tensors, by_state, by_cell)  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def jvp(ctx: Any, inputs: Tensor, into: Tensor, bias: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, None]:
        """The derivative along a direction, from the first place to the last."""
        before, slopes, shown, kept = _slopes(*ctx.saved_tensors)
        along = _projected(inputs, ctx.saved_tensors[1]) + _projected(ctx.saved_tensors[0], into) + bias[:, None]
        along, recurrent = along + _projected(before, weight), ctx.saved_tensors[3].transpose(1, 2)
        hidden = cell = torch.zeros_like(before[0])
        states, cells = [], []
        for own, slope, show, keep in zip(along, slopes, shown, kept, strict=True):
            enter, forget, new, out = ((own + hidden @ recurrent) * slope).chunk(4, -1)
            cell = enter + forget + new + keep * cell
            hidden = out + show * cell
            states.append(hidden)
            cells.append(cell)
        return torch.stack(states), torch.stack(cells), None


class _Backward(_Stacked):
    """The gradient by inputs, weights and biases, from that by states and cells."""

    given, made = (1, 0, 0, 0, 1, 1, 1, 1, 1), (1, 0, 0, 0)

    @staticmethod
    def forward(
        inputs: Tensor,
        into: Tensor,
        bias: Tensor,
        weight: Tensor,
        states: Tensor,
        cells: Tensor,
        gates: Tensor,
        by_state: Tensor,
        by_cell: Tensor,
    ) -> tuple[Tensor, ...]:
        """From the last place to the first."""
        hidden, cell, found = torch.zeros_like(states[0]), torch.zeros_like(states[0]), []
        places = zip(*(each.unbind(0)[::-1] for each in (_before(cells), cells, gates, by_state, by_cell)), strict=True)
        for old, new, opened, state, own in places:
            sums, cell = _cell_back(hidden + state, cell + own, old, new, opened)
            found.append(sums)
            hidden = sums @ weight
        return _by_all(torch.stack(found[::-1]), inputs, into, states)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keeps what the plain formula needs."""
        ctx.save_for_backward(*inputs[:6], *inputs[7:])

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> tuple[Tensor | None, ...]:
        """That of the plain formula."""
        found = torch.func.vjp(_plain_backward, *ctx.saved_tensors)[1](by)
        return *found[:6], None, *found[6:]


def _plain_backward(*given: Tensor) -> tuple[Tensor, ...]:
    """What `_Backward` finds from the same but the gates, by operations that can be differentiated."""
    inputs, into, _, weight, states, _, by_state, by_cell = given
    _, slopes, shown, kept = _slopes(*given[:6])
    hidden, cell, found = torch.zeros_like(states[0]), torch.zeros_like(states[0]), []
    for place in reversed(range(len(states))):
        hidden = hidden + by_state[place]
        cell = cell + by_cell[place] + hidden * shown[place]
        found.append(torch.cat([cell, cell, cell, hidden], -1) * slopes[place])
        hidden, cell = found[-1] @ weight, cell * kept[place]
    return _by_all(torch.stack(found[::-1]), inputs, into, states)


def _by_all(sums: Tensor, inputs: Tensor, into: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient by inputs, weights and biases, from that by the sums that enter gates: products over all places."""
    rows, own, before = (each.transpose(0, 1).flatten(1, 2) for each in (sums, inputs, _before(states)))
    by_inputs = _projected(sums, into.transpose(1, 2))
    return by_inputs, rows.transpose(1, 2) @ own, rows.sum(1), rows.transpose(1, 2) @ before


def _projected(inputs: Tensor, weight: Tensor) -> Tensor:
    """Inputs [T, C, B, ...] at all places times weights [C, ...] of their clients: one product."""
    rows = inputs.transpose(0, 1)
    return (rows.flatten(1, 2) @ weight.transpose(1, 2)).reshape(*rows.shape[:3], -1).transpose(0, 1)


def _before(states: Tensor) -> Tensor:
    """What was at the place before."""
    return torch.cat([torch.zeros_like(states[:1]), states[:-1]])


def _slopes(
    inputs: Tensor, into: Tensor, bias: Tensor, weight: Tensor, states: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """At all places: the state before, and the derivatives of a cell.

    These are of cell, cell, cell and hidden by the sums that enter the four gates, of hidden by the new cell, and of
    the new cell by the one before.
    """
    before, old = _before(states), _before(cells)
    sums = _projected(inputs, into) + bias[:, None] + _projected(before, weight)
    enter, keep, new, show = sums.chunk(4, -1)
    enter, keep, new, show, shown = enter.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid(), cells.tanh()
    by_gates = new * enter * (1 - enter), old * keep * (1 - keep), enter * (1 - new**2), shown * show * (1 - show)
    return before, torch.cat(by_gates, -1), show * (1 - shown**2), keep


def _cell(inputs: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The new hidden state and cell, and the opened gates: input, forget, new, output."""
    if inputs.is_cuda:
        rows = (each.flatten(0, -2) for each in (inputs, recurrent, cell))
        found = torch.ops.aten._thnn_fused_lstm_cell(*rows)
        return tuple(each.unflatten(0, inputs.shape[:-1]) for each in found)
    enter, keep, new, show = (inputs + recurrent).chunk(4, -1)
    enter, keep, new, show = enter.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    cell = keep * cell + enter * new
    return show * cell.tanh(), cell, torch.cat([enter, keep, new, show], -1)


def _cell_back(by_hidden: Tensor, by_cell: Tensor, old: Tensor, new: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient by the sums that enter the gates and by the old cell, from that by what a cell gave."""
    if gates.is_cuda:
        rows = (each.flatten(0, -2) for each in (by_hidden, by_cell, old, new, gates))
        found = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*rows, False)
        return tuple(each.unflatten(0, gates.shape[:-1]) for each in found[:2])
    enter, keep, fresh, show = gates.chunk(4, -1)
    shown = new.tanh()
    by_cell = by_cell + by_hidden * show * (1 - shown**2)
    opened = (
        by_cell * fresh * enter * (1 - enter),
        by_cell * old * keep * (1 - keep),
        by_cell * enter * (1 - fresh**2),
        by_hidden * shown * show * (1 - show),
    )
    return torch.cat(opened, -1), by_cell * keep
