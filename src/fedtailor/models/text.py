"""Models for text: from [B, T] tokens to [B, T, vocabulary], what comes next at each place; or after the last alone.

The LSTM is written out, because torch's own hands over to fused kernels that `vmap` runs client by client.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf


def shakespeare(vocabulary: int = 90, last: bool = False) -> nn.Sequential:
    """FedSIM's network for Shakespeare (table 7): characters in 8 dimensions, two LSTM layers of 256."""
    return language_model(vocabulary, embedding=8, hidden=256, layers=2, last=last)


def stackoverflow(vocabulary: int = 10_000, last: bool = False) -> nn.Sequential:
    """FedSIM's network for StackOverflow (table 8): words in 96 dimensions, an LSTM of 670, a dense layer of 96."""
    return language_model(vocabulary, embedding=96, hidden=670, dense=96, last=last)


def language_model(
    vocabulary: int, embedding: int, hidden: int, layers: int = 1, dense: int | None = None, last: bool = False
) -> nn.Sequential:
    """Embedding, LSTM, a dense layer without activation if `dense` is its width, and the head, the last layer.

    With `last` it says only what follows the last place: [B, vocabulary].
    """
    encoder: OrderedDict[str, nn.Module] = OrderedDict(
        embedding=nn.Embedding(vocabulary, embedding), lstm=LSTM(embedding, hidden, layers)
    )
    if last:
        encoder["last"] = LastPlace()
    if dense is not None:
        encoder["dense"] = nn.Linear(hidden, dense)
    return nn.Sequential(OrderedDict(encoder, head=nn.Linear(dense or hidden, vocabulary)))


class LastPlace(nn.Module):
    """What is at the last place: [B, T, width] to [B, width]."""

    def forward(self, x: Tensor) -> Tensor:
        """The last of all places."""
        return x[:, -1]


class LSTM(nn.Module):
    """Layers of long short-term memory that start at zero: [B, T, inputs] to [B, T, hidden].

    The outputs and the parameters' names are those of `torch.nn.LSTM(batch_first=True)`, but a layer has one bias
    instead of two that are only ever added, as the papers' tables count: `bias_ih_l0` is torch's plus `bias_hh_l0`.
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = layers
        for layer in range(layers):
            self._add(f"weight_ih_l{layer}", hidden, 4 * hidden, inputs if layer == 0 else hidden)
            self._add(f"weight_hh_l{layer}", hidden, 4 * hidden, hidden)
            self._add(f"bias_ih_l{layer}", hidden, 4 * hidden)

    def _add(self, name: str, hidden: int, *shape: int) -> None:
        """A parameter drawn as torch draws it."""
        bound = hidden**-0.5
        self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's hidden state at every place."""
        if x.shape[1] == 0:
            raise ValueError("LSTM: sequences must have at least one token, got none.")
        steps = x.transpose(0, 1)  # time first, so that what the recurrence reads lies together
        for layer in range(self.layers):
            weight, bias = getattr(self, f"weight_ih_l{layer}"), getattr(self, f"bias_ih_l{layer}")
            steps = recurrence(nnf.linear(steps, weight, bias), getattr(self, f"weight_hh_l{layer}"))
        return steps.transpose(0, 1)


def recurrence(projected: Tensor, weight: Tensor) -> Tensor:
    """Hidden states [T, B, hidden] of one layer, from its projected inputs [T, B, 4 hidden] and recurrent weight."""
    compiling = torch.compiler.is_compiling()  # under vmap the compiler takes no derivatives but its own
    along = Recurrence.forward if compiling else Recurrence.apply
    states: Tensor = along(projected, weight)[0]
    return states


class Recurrence(torch.autograd.Function):
    """Hidden states and cells of one layer at all places, with derivatives of any order.

    The derivative is written out because the loop's own would add up the weight's gradient place by place; here it is
    one product, and what does not depend on the place before is done for all places at once.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The states and cells, place after place."""
        hidden = cell = projected.new_zeros(projected.shape[1], weight.shape[1])
        states, cells = [], []
        for inputs in projected.unbind(0):
            hidden, cell = lstm_cell(inputs + hidden @ weight.T, cell)
            states.append(hidden)
            cells.append(cell)
        return torch.stack(states), torch.stack(cells)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        """Keeps what both derivatives start from."""
        ctx.save_for_backward(*inputs, *output)
        ctx.save_for_forward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, by_state: Tensor, by_cell: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient, from the last place to the first."""
        _, weight, states, _ = ctx.saved_tensors
        before, slopes, shown, kept = _slopes(*ctx.saved_tensors)
        hidden, cell, found = torch.zeros_like(states[0]), torch.zeros_like(states[0]), []
        for slope, show, keep, state, own in _backwards(slopes, shown, kept, by_state, by_cell):
            hidden = hidden + state
            cell = cell + own + hidden * show
            found.append(torch.cat([cell, cell, cell, hidden], -1) * slope)
            hidden, cell = found[-1] @ weight, cell * keep
        gates = torch.stack(found[::-1])
        return gates, gates.flatten(0, 1).T @ before.flatten(0, 1)

    @staticmethod
    def jvp(ctx: Any, projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative along a direction, from the first place to the last."""
        before, slopes, shown, kept = _slopes(*ctx.saved_tensors)
        along, recurrent = projected + before @ weight.T, ctx.saved_tensors[1]
        hidden = cell = torch.zeros_like(before[0])
        states, cells = [], []
        for inputs, slope, show, keep in zip(along, slopes, shown, kept, strict=True):
            enter, forget, new, out = ((inputs + hidden @ recurrent.T) * slope).chunk(4, -1)
            cell = enter + forget + new + keep * cell
            hidden = out + show * cell
            states.append(hidden)
            cells.append(cell)
        return torch.stack(states), torch.stack(cells)


def _backwards(*each: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Places from the last to the first, in several tensors at once."""
    return zip(*(reversed(tensor.unbind(0)) for tensor in each), strict=True)


def _slopes(projected: Tensor, weight: Tensor, states: Tensor, cells: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """At all places: the state before, and the derivatives of `lstm_cell`.

    These are of cell, cell, cell and hidden by the sums that enter the four gates, of hidden by the new cell, and of
    the new cell by the one before.
    """
    before, old = (torch.cat([torch.zeros_like(all_[:1]), all_[:-1]]) for all_ in (states, cells))
    enter, keep, new, show = (projected + before @ weight.T).chunk(4, -1)
    enter, keep, new, show, shown = enter.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid(), cells.tanh()
    by_gates = new * enter * (1 - enter), old * keep * (1 - keep), enter * (1 - new**2), shown * show * (1 - show)
    return before, torch.cat(by_gates, -1), show * (1 - shown**2), keep


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """One step: the new hidden state and cell, from the sums that enter the gates (input, forget, new, output)."""
    enter, keep, new, show = gates.chunk(4, -1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return show.sigmoid() * cell.tanh(), cell
