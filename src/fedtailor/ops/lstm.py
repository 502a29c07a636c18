"""A layer of long short-term memory, for one client or a whole stack, each with weights of its own.

One client on a CPU has torch's own layer. Under `torch.func` (in a stack, in the reference engine, on a GPU) places
come one after another: a product for all clients, and one operation for what is done to its outcome. Derivatives of
any order are right: the first is written out, the others are those of its plain formula. The gradient has no forward
rule, which would cost more than its gradient does.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fedtailor.compat.torch_internals import (
    is_functorch_active,
    run_fused_lstm_cell,
    run_fused_lstm_cell_backward,
    without_onednn,
)
from fedtailor.ops.double_backward import needs_double_backward


def lstm_layer(inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor) -> Tensor:
    """Return the hidden states [T, B, hidden] of one layer.

    `inputs` are [T, B, width], `into` their weights [4 hidden, width], `weight` the recurrent ones [4 hidden, hidden].
    """
    if inputs.device.type == "cpu" and not is_functorch_active():
        return _torch_lstm(inputs, weight_ih, bias, weight_hh)
    states: Tensor = _LSTMForward.apply(
        inputs[:, None], weight_ih[None], bias[None], weight_hh[None]
    )[0]  # type: ignore[no-untyped-call]
    return states.squeeze(1)


def _torch_lstm(inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor) -> Tensor:
    """Run torch's own layer, without oneDNN where its gradient will be differentiated, for which oneDNN has no rule."""
    start = inputs.new_zeros(1, inputs.shape[1], weight_hh.shape[1])
    layer = [weight_ih, weight_hh, bias, torch.zeros_like(bias)]
    with without_onednn() if needs_double_backward.get() else nullcontext():
        states, _, _ = torch.lstm(inputs, (start, start), layer, True, 1, 0.0, False, False, False)
    return states


class _StackedFunction(torch.autograd.Function):
    """A function of several tensors and to several that all have a dimension of clients."""

    input_dims: tuple[int, ...] = ()  # which one, of each that it is given
    output_dims: tuple[int, ...] = ()  # and of each that it makes

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], Any]:
        """More clients are only a longer stack."""
        longer = (
            _fold_vmap_dim(*each, info.batch_size)
            for each in zip(tensors, in_dims, cls.input_dims, strict=True)
        )
        found = cls.apply(*longer)  # type: ignore[no-untyped-call]
        apart = [
            each.unflatten(dim, (info.batch_size, -1))
            for each, dim in zip(found, cls.output_dims, strict=True)
        ]
        return tuple(apart), cls.output_dims


def _fold_vmap_dim(tensor: Tensor, dim: int | None, client_dim: int, count: int) -> Tensor:
    """A tensor with the dimension that `vmap` is about, or as often as that counts, joined to the one of clients."""
    whole = (
        tensor.unsqueeze(client_dim).expand(
            *tensor.shape[:client_dim], count, *tensor.shape[client_dim:]
        )
        if dim is None
        else tensor
    )
    return (whole if dim is None else whole.movedim(dim, client_dim)).flatten(
        client_dim, client_dim + 1
    )


class _LSTMForward(_StackedFunction):
    """States, cells and gates at all places [T, C, B, ...], from inputs [T, C, B, width], weights and biases."""

    input_dims, output_dims = (1, 0, 0, 0), (1, 1, 1)

    @staticmethod
    def forward(
        inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Place after place."""
        projected = _project(inputs, weight_ih) + bias[:, None]
        back, found = weight_hh.transpose(1, 2), []
        hidden = cell = projected.new_zeros(*projected.shape[1:3], weight_hh.shape[2])
        for step_inputs in projected.contiguous().unbind(0):
            hidden, cell, gates = _cell_forward(step_inputs, hidden @ back, cell)
            found.append((hidden, cell, gates))
        states, cells, gates = (torch.stack(each) for each in zip(*found, strict=True))
        return states, cells, gates

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Keeps what both derivatives start from. Gates only spare work, and do not count as a function of anything."""
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output[:2])

    @staticmethod
    def backward(
        ctx: Any, grad_states: Tensor, grad_cells: Tensor, grad_gates: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The gradient, from the last place to the first."""
        found: tuple[Tensor, ...] = _LSTMBackward.apply(*ctx.saved_tensors, grad_states, grad_cells)  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def jvp(
        ctx: Any, inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        """The derivative along a direction, from the first place to the last."""
        before, slopes, shown, kept = _gate_derivatives(*ctx.saved_tensors)
        along = (
            _project(inputs, ctx.saved_tensors[1])
            + _project(ctx.saved_tensors[0], weight_ih)
            + bias[:, None]
        )
        along, recurrent = along + _project(before, weight_hh), ctx.saved_tensors[3].transpose(1, 2)
        hidden = cell = torch.zeros_like(before[0])
        states, cells = [], []
        for own, slope, show, keep in zip(along, slopes, shown, kept, strict=True):
            enter, forget, new, out = ((own + hidden @ recurrent) * slope).chunk(4, -1)
            cell = enter + forget + new + keep * cell
            hidden = out + show * cell
            states.append(hidden)
            cells.append(cell)
        return torch.stack(states), torch.stack(cells), None


class _LSTMBackward(_StackedFunction):
    """The gradient by inputs, weights and biases, from that by states and cells."""

    input_dims, output_dims = (1, 0, 0, 0, 1, 1, 1, 1, 1), (1, 0, 0, 0)

    @staticmethod
    def forward(
        inputs: Tensor,
        weight_ih: Tensor,
        bias: Tensor,
        weight_hh: Tensor,
        states: Tensor,
        cells: Tensor,
        gates: Tensor,
        grad_states: Tensor,
        grad_cells: Tensor,
    ) -> tuple[Tensor, ...]:
        """From the last place to the first."""
        hidden, cell, found = torch.zeros_like(states[0]), torch.zeros_like(states[0]), []
        steps = zip(
            *(
                each.unbind(0)[::-1]
                for each in (_shift_steps(cells), cells, gates, grad_states, grad_cells)
            ),
            strict=True,
        )
        for old, new, opened, grad_state, grad_cell in steps:
            sums, cell = _cell_backward(hidden + grad_state, cell + grad_cell, old, new, opened)
            found.append(sums)
            hidden = sums @ weight_hh
        return _compute_input_and_weight_grads(torch.stack(found[::-1]), inputs, weight_ih, states)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Keeps what the plain formula needs."""
        ctx.save_for_backward(*inputs[:6], *inputs[7:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """That of the plain formula."""
        found = torch.func.vjp(_reference_backward, *ctx.saved_tensors)[1](grads)
        return *found[:6], None, *found[6:]


def _reference_backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Compute what `_LSTMBackward` finds from the same but the gates, by operations that can be differentiated."""
    inputs, weight_ih, _, weight_hh, states, _, grad_states, grad_cells = tensors
    _, slopes, shown, kept = _gate_derivatives(*tensors[:6])
    hidden, cell, found = torch.zeros_like(states[0]), torch.zeros_like(states[0]), []
    for step in reversed(range(len(states))):
        hidden = hidden + grad_states[step]
        cell = cell + grad_cells[step] + hidden * shown[step]
        found.append(torch.cat([cell, cell, cell, hidden], -1) * slopes[step])
        hidden, cell = found[-1] @ weight_hh, cell * kept[step]
    return _compute_input_and_weight_grads(torch.stack(found[::-1]), inputs, weight_ih, states)


def _compute_input_and_weight_grads(
    sums: Tensor, inputs: Tensor, weight_ih: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient by inputs, weights and biases, from that by the sums that enter gates: products over all places."""
    rows, input_rows, before = (
        each.transpose(0, 1).flatten(1, 2) for each in (sums, inputs, _shift_steps(states))
    )
    grad_inputs = _project(sums, weight_ih.transpose(1, 2))
    return (
        grad_inputs,
        rows.transpose(1, 2) @ input_rows,
        rows.sum(1),
        rows.transpose(1, 2) @ before,
    )


def _project(inputs: Tensor, weight: Tensor) -> Tensor:
    """Inputs [T, C, B, ...] at all places times weights [C, ...] of their clients: one product."""
    rows = inputs.transpose(0, 1)
    return (
        (rows.flatten(1, 2) @ weight.transpose(1, 2)).reshape(*rows.shape[:3], -1).transpose(0, 1)
    )


def _shift_steps(states: Tensor) -> Tensor:
    """What was at the place before."""
    return torch.cat([torch.zeros_like(states[:1]), states[:-1]])


def _gate_derivatives(
    inputs: Tensor,
    weight_ih: Tensor,
    bias: Tensor,
    weight_hh: Tensor,
    states: Tensor,
    cells: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """At all places: the state before, and the derivatives of a cell.

    These are of cell, cell, cell and hidden by the sums that enter the four gates, of hidden by the new cell, and of
    the new cell by the one before.
    """
    before, old = _shift_steps(states), _shift_steps(cells)
    sums = _project(inputs, weight_ih) + bias[:, None] + _project(before, weight_hh)
    enter, keep, new, show = sums.chunk(4, -1)
    enter, keep, new, show, shown = (
        enter.sigmoid(),
        keep.sigmoid(),
        new.tanh(),
        show.sigmoid(),
        cells.tanh(),
    )
    by_gates = (
        new * enter * (1 - enter),
        old * keep * (1 - keep),
        enter * (1 - new**2),
        shown * show * (1 - show),
    )
    return before, torch.cat(by_gates, -1), show * (1 - shown**2), keep


def _cell_forward(inputs: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The new hidden state and cell, and the opened gates: input, forget, new, output."""
    if inputs.is_cuda:
        rows = (each.flatten(0, -2) for each in (inputs, recurrent, cell))
        found = run_fused_lstm_cell(*rows)
        if found is not None:
            hidden, cell, gates = (each.reshape(*inputs.shape[:-1], -1) for each in found)
            return hidden, cell, gates
    enter, keep, new, show = (inputs + recurrent).chunk(4, -1)
    enter, keep, new, show = enter.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    cell = keep * cell + enter * new
    return show * cell.tanh(), cell, torch.cat([enter, keep, new, show], -1)


def _cell_backward(
    grad_hidden: Tensor, grad_cell: Tensor, old: Tensor, new: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient by the sums that enter the gates and by the old cell, from that by what a cell gave."""
    if gates.is_cuda:
        rows = (each.flatten(0, -2) for each in (grad_hidden, grad_cell, old, new, gates))
        found = run_fused_lstm_cell_backward(*rows)
        if found is not None:
            grad_sums, grad_old = (each.reshape(*gates.shape[:-1], -1) for each in found)
            return grad_sums, grad_old
    enter, keep, fresh, show = gates.chunk(4, -1)
    shown = new.tanh()
    grad_cell = grad_cell + grad_hidden * show * (1 - shown**2)
    opened = (
        grad_cell * fresh * enter * (1 - enter),
        grad_cell * old * keep * (1 - keep),
        grad_cell * enter * (1 - fresh**2),
        grad_hidden * shown * show * (1 - show),
    )
    return torch.cat(opened, -1), grad_cell * keep
