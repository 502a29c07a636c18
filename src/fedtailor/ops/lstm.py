"""A layer of long short-term memory for one client or for a stack, each with its own weights.

One client on a CPU gets torch's own layer. Under `torch.func` (in a stack, in the sequential
engine) and on a GPU, time steps are computed one after another: a matrix product for all clients,
and one operation for the cell. Derivatives of any order work: the first one is written out,
the others are those of its plain formula. The gradient has no forward-mode rule, which would cost
more than the gradient of the gradient does.

Shapes: T time steps, C clients, B examples; gates are in torch's order: input, forget, new, output.
"""

from contextlib import AbstractContextManager, nullcontext
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
    """Return the hidden states of one layer, [T, B, hidden], starting from zero.

    Args:
        inputs: Inputs, [T, B, width].
        weight_ih: Input weights, [4 hidden, width].
        bias: Biases, [4 hidden].
        weight_hh: Recurrent weights, [4 hidden, hidden].
    """
    if inputs.device.type == "cpu" and not is_functorch_active():
        return _torch_lstm(inputs, weight_ih, bias, weight_hh)
    states: Tensor
    states, _, _ = _LSTMForward.apply(  # type: ignore[no-untyped-call]
        inputs[:, None], weight_ih[None], bias[None], weight_hh[None]
    )
    return states.squeeze(1)


def _torch_lstm(inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor) -> Tensor:
    """Run torch's own layer, without oneDNN if its gradient will be differentiated."""
    initial = inputs.new_zeros(1, inputs.shape[1], weight_hh.shape[1])
    weights = [weight_ih, weight_hh, bias, torch.zeros_like(bias)]
    backend: AbstractContextManager[None] = nullcontext()
    if needs_double_backward.get():
        backend = without_onednn()  # oneDNN has no rule for the gradient of its gradient
    with backend:
        states, _, _ = torch.lstm(
            inputs,
            (initial, initial),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=False,
            bidirectional=False,
            batch_first=False,
        )
    return states


class _StackedFunction(torch.autograd.Function):
    """Base of functions from tensors to tensors that all have a dimension of clients."""

    input_dims: tuple[int, ...] = ()  # dimension of clients of each input
    output_dims: tuple[int, ...] = ()  # dimension of clients of each output

    @classmethod
    def vmap(
        cls, info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return the outputs for a further dimension of clients by making the stack longer.

        The dimension is at `in_dims` of the inputs, the `tensors`, and has the size
        `info.batch_size`.
        """
        folded = []
        for tensor, vmap_dim, client_dim in zip(tensors, in_dims, cls.input_dims, strict=True):
            folded.append(_fold_vmap_dim(tensor, vmap_dim, client_dim, info.batch_size))
        outputs = cls.apply(*folded)  # type: ignore[no-untyped-call]
        unfolded = []
        for output, client_dim in zip(outputs, cls.output_dims, strict=True):
            unfolded.append(output.unflatten(client_dim, (info.batch_size, -1)))
        return tuple(unfolded), cls.output_dims


def _fold_vmap_dim(tensor: Tensor, vmap_dim: int | None, client_dim: int, count: int) -> Tensor:
    """Fold the dimension of `vmap`, of size `count`, into the dimension of clients."""
    if vmap_dim is None:
        leading = tensor.shape[:client_dim]
        trailing = tensor.shape[client_dim:]
        tensor = tensor.unsqueeze(client_dim).expand(*leading, count, *trailing)
    else:
        tensor = tensor.movedim(vmap_dim, client_dim)
    return tensor.flatten(client_dim, client_dim + 1)


class _LSTMForward(_StackedFunction):
    """The layer: hidden states, cells and gates at all time steps."""

    input_dims = (1, 0, 0, 0)
    output_dims = (1, 1, 1)

    @staticmethod
    def forward(
        inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states, cells and gates, [T, C, B, hidden or 4 hidden].

        Args:
            inputs: Inputs, [T, C, B, width].
            weight_ih: Input weights, [C, 4 hidden, width].
            bias: Biases, [C, 4 hidden].
            weight_hh: Recurrent weights, [C, 4 hidden, hidden].
        """
        projected = _project(inputs, weight_ih) + bias[:, None]
        recurrent_weights = weight_hh.transpose(1, 2)
        hidden = projected.new_zeros(*projected.shape[1:3], weight_hh.shape[2])
        cell = hidden
        states = []
        cells = []
        gates = []
        for step_inputs in projected.contiguous().unbind(0):
            recurrent = hidden @ recurrent_weights
            hidden, cell, step_gates = _cell_forward(step_inputs, recurrent, cell)
            states.append(hidden)
            cells.append(cell)
            gates.append(step_gates)
        return torch.stack(states), torch.stack(cells), torch.stack(gates)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Save `inputs` and `output` in `ctx` for both derivatives."""
        states, cells, gates = output
        # Gates only save the gradient some work; they do not count as a function of the inputs.
        ctx.mark_non_differentiable(gates)
        ctx.save_for_backward(*inputs, states, cells, gates)
        ctx.save_for_forward(*inputs, states, cells)

    @staticmethod
    def backward(
        ctx: Any, grad_states: Tensor, grad_cells: Tensor, grad_gates: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return the gradients w.r.t. all inputs from `grad_states` and `grad_cells`.

        Tensors of the forward pass are in `ctx`; gates are not differentiated, so `grad_gates` is
        not used.
        """
        grads: tuple[Tensor, ...] = _LSTMBackward.apply(  # type: ignore[no-untyped-call]
            *ctx.saved_tensors, grad_states, grad_cells
        )
        return grads

    @staticmethod
    def jvp(
        ctx: Any, inputs: Tensor, weight_ih: Tensor, bias: Tensor, weight_hh: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        """Return the derivatives of states and cells along a direction.

        The direction is `inputs`, `weight_ih`, `bias` and `weight_hh`; tensors of the forward pass
        are in `ctx`.
        """
        primal_inputs, primal_weight_ih, _, primal_weight_hh, _, _ = ctx.saved_tensors
        previous_states, gate_slopes, output_slopes, forget_gates = _compute_gate_derivatives(
            *ctx.saved_tensors
        )
        projected = _project(inputs, primal_weight_ih) + _project(primal_inputs, weight_ih)
        projected = projected + bias[:, None] + _project(previous_states, weight_hh)
        recurrent_weights = primal_weight_hh.transpose(1, 2)
        hidden = torch.zeros_like(previous_states[0])
        cell = hidden
        states = []
        cells = []
        steps = zip(projected, gate_slopes, output_slopes, forget_gates, strict=True)
        for step_inputs, gate_slope, output_slope, forget_gate in steps:
            changes = (step_inputs + hidden @ recurrent_weights) * gate_slope
            by_input, by_forget, by_new, by_output = changes.chunk(4, -1)
            cell = by_input + by_forget + by_new + forget_gate * cell
            hidden = by_output + output_slope * cell
            states.append(hidden)
            cells.append(cell)
        return torch.stack(states), torch.stack(cells), None


class _LSTMBackward(_StackedFunction):
    """The gradient of the layer w.r.t. its inputs, from that w.r.t. its outputs."""

    input_dims = (1, 0, 0, 0, 1, 1, 1, 1, 1)
    output_dims = (1, 0, 0, 0)

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
        """Return the gradients w.r.t. `inputs`, `weight_ih`, `bias` and `weight_hh`.

        The other arguments are what `_LSTMForward` returned, `states`, `cells` and `gates`, and the
        gradients `grad_states` and `grad_cells` w.r.t. the first two.
        """
        grad_hidden = torch.zeros_like(states[0])
        grad_cell = torch.zeros_like(states[0])
        grad_preacts = []
        # By time step, from the last to the first.
        reversed_steps = zip(
            _shift_steps(cells).unbind(0)[::-1],
            cells.unbind(0)[::-1],
            gates.unbind(0)[::-1],
            grad_states.unbind(0)[::-1],
            grad_cells.unbind(0)[::-1],
            strict=True,
        )
        for old_cell, new_cell, step_gates, grad_state, step_grad_cell in reversed_steps:
            step_grad_preacts, grad_cell = _cell_backward(
                grad_hidden + grad_state, grad_cell + step_grad_cell, old_cell, new_cell, step_gates
            )
            grad_preacts.append(step_grad_preacts)
            grad_hidden = step_grad_preacts @ weight_hh
        return _compute_input_and_weight_grads(
            torch.stack(grad_preacts[::-1]), inputs, weight_ih, states
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Save `inputs` but the gates in `ctx`; `output` is not needed."""
        ctx.save_for_backward(*inputs[:6], *inputs[7:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the plain formula; gates have none."""
        vjp = torch.func.vjp(_reference_backward, *ctx.saved_tensors)[1]
        input_grads = vjp(grads)
        return *input_grads[:6], None, *input_grads[6:]


def _reference_backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Compute `_LSTMBackward` by differentiable operations, from its inputs without the gates."""
    inputs, weight_ih, _, weight_hh, states, _, grad_states, grad_cells = tensors
    _, gate_slopes, output_slopes, forget_gates = _compute_gate_derivatives(*tensors[:6])
    grad_hidden = torch.zeros_like(states[0])
    grad_cell = torch.zeros_like(states[0])
    grad_preacts = []
    for step in reversed(range(len(states))):
        grad_hidden = grad_hidden + grad_states[step]
        grad_cell = grad_cell + grad_cells[step] + grad_hidden * output_slopes[step]
        grad_gates = torch.cat([grad_cell, grad_cell, grad_cell, grad_hidden], -1)
        step_grad_preacts = grad_gates * gate_slopes[step]
        grad_preacts.append(step_grad_preacts)
        grad_hidden = step_grad_preacts @ weight_hh
        grad_cell = grad_cell * forget_gates[step]
    return _compute_input_and_weight_grads(
        torch.stack(grad_preacts[::-1]), inputs, weight_ih, states
    )


def _compute_input_and_weight_grads(
    grad_preacts: Tensor, inputs: Tensor, weight_ih: Tensor, states: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients w.r.t. inputs and weights from that w.r.t. pre-activations of gates.

    Each is one matrix product per client over all time steps.
    """
    preact_rows = _flatten_steps(grad_preacts)
    input_rows = _flatten_steps(inputs)
    state_rows = _flatten_steps(_shift_steps(states))
    grad_inputs = _project(grad_preacts, weight_ih.transpose(1, 2))
    grad_weight_ih = preact_rows.transpose(1, 2) @ input_rows
    grad_bias = preact_rows.sum(1)
    grad_weight_hh = preact_rows.transpose(1, 2) @ state_rows
    return grad_inputs, grad_weight_ih, grad_bias, grad_weight_hh


def _flatten_steps(tensor: Tensor) -> Tensor:
    """Return [T, C, B, width] as rows of clients, [C, T * B, width]."""
    return tensor.transpose(0, 1).flatten(1, 2)


def _project(inputs: Tensor, weight: Tensor) -> Tensor:
    """Multiply inputs [T, C, B, width] by weights [C, outputs, width]: one product per client."""
    num_steps, clients, batch = inputs.shape[:3]
    rows = _flatten_steps(inputs) @ weight.transpose(1, 2)
    return rows.reshape(clients, num_steps, batch, -1).transpose(0, 1)


def _shift_steps(states: Tensor) -> Tensor:
    """Return the state before each time step; the first one is zero."""
    return torch.cat([torch.zeros_like(states[:1]), states[:-1]])


def _compute_gate_derivatives(
    inputs: Tensor,
    weight_ih: Tensor,
    bias: Tensor,
    weight_hh: Tensor,
    states: Tensor,
    cells: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return previous states and the derivatives of the cell, at all time steps.

    The derivatives are
    - of cell, cell, cell and hidden state w.r.t. the four pre-activations, [T, C, B, 4 H];
    - of the hidden state w.r.t. the new cell, [T, C, B, H];
    - of the new cell w.r.t. the old cell, which is the forget gate, [T, C, B, H].
    """
    previous_states = _shift_steps(states)
    previous_cells = _shift_steps(cells)
    preacts = _project(inputs, weight_ih) + bias[:, None] + _project(previous_states, weight_hh)
    input_preacts, forget_preacts, new_preacts, output_preacts = preacts.chunk(4, -1)
    input_gate = input_preacts.sigmoid()
    forget_gate = forget_preacts.sigmoid()
    new = new_preacts.tanh()
    output_gate = output_preacts.sigmoid()
    cell_tanh = cells.tanh()
    gate_slopes = (
        new * input_gate * (1 - input_gate),
        previous_cells * forget_gate * (1 - forget_gate),
        input_gate * (1 - new**2),
        cell_tanh * output_gate * (1 - output_gate),
    )
    output_slopes = output_gate * (1 - cell_tanh**2)
    return previous_states, torch.cat(gate_slopes, -1), output_slopes, forget_gate


def _cell_forward(inputs: Tensor, recurrent: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new hidden state, the new cell and the gates of one time step."""
    if inputs.is_cuda:
        fused = run_fused_lstm_cell(
            inputs.flatten(0, -2), recurrent.flatten(0, -2), cell.flatten(0, -2)
        )
        if fused is not None:
            hidden, cell, gates = (each.reshape(*inputs.shape[:-1], -1) for each in fused)
            return hidden, cell, gates
    input_preacts, forget_preacts, new_preacts, output_preacts = (inputs + recurrent).chunk(4, -1)
    input_gate = input_preacts.sigmoid()
    forget_gate = forget_preacts.sigmoid()
    new = new_preacts.tanh()
    output_gate = output_preacts.sigmoid()
    cell = forget_gate * cell + input_gate * new
    hidden = output_gate * cell.tanh()
    return hidden, cell, torch.cat([input_gate, forget_gate, new, output_gate], -1)


def _cell_backward(
    grad_hidden: Tensor, grad_cell: Tensor, old_cell: Tensor, new_cell: Tensor, gates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a time step w.r.t. pre-activations of gates and the old cell.

    `grad_hidden` and `grad_cell` are those w.r.t. the new hidden state and the new cell.
    """
    if gates.is_cuda:
        fused = run_fused_lstm_cell_backward(
            grad_hidden.flatten(0, -2),
            grad_cell.flatten(0, -2),
            old_cell.flatten(0, -2),
            new_cell.flatten(0, -2),
            gates.flatten(0, -2),
        )
        if fused is not None:
            grad_preacts, grad_old_cell = (each.reshape(*gates.shape[:-1], -1) for each in fused)
            return grad_preacts, grad_old_cell
    input_gate, forget_gate, new, output_gate = gates.chunk(4, -1)
    cell_tanh = new_cell.tanh()
    grad_cell = grad_cell + grad_hidden * output_gate * (1 - cell_tanh**2)
    gate_grads = (
        grad_cell * new * input_gate * (1 - input_gate),
        grad_cell * old_cell * forget_gate * (1 - forget_gate),
        grad_cell * input_gate * (1 - new**2),
        grad_hidden * cell_tanh * output_gate * (1 - output_gate),
    )
    return torch.cat(gate_grads, -1), grad_cell * forget_gate
