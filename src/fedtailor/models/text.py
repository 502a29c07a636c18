"""Models for text: from [B, T] tokens to [B, T, vocabulary], what comes next at each place; or after the last alone.

The LSTM is written out, because torch's own hands over to fused kernels that `vmap` runs client by client.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedtailor.ops.lstm import lstm_layer


def shakespeare(vocabulary: int = 90, last_only: bool = False) -> nn.Sequential:
    """FedSIM's network for Shakespeare (table 7): characters in 8 dimensions, two LSTM layers of 256."""
    return language_model(vocabulary, embedding=8, hidden=256, layers=2, last_only=last_only)


def stackoverflow(vocabulary: int = 10_000, last_only: bool = False) -> nn.Sequential:
    """FedSIM's network for StackOverflow (table 8): words in 96 dimensions, an LSTM of 670, a dense layer of 96."""
    return language_model(vocabulary, embedding=96, hidden=670, dense=96, last_only=last_only)


def language_model(
    vocabulary: int,
    embedding: int,
    hidden: int,
    layers: int = 1,
    dense: int | None = None,
    last_only: bool = False,
) -> nn.Sequential:
    """Embedding, LSTM, a dense layer without activation if `dense` is its width, and the head, the last layer.

    With `last` it says only what follows the last place: [B, vocabulary].
    """
    encoder: OrderedDict[str, nn.Module] = OrderedDict(
        embedding=nn.Embedding(vocabulary, embedding), lstm=LSTM(embedding, hidden, layers)
    )
    if last_only:
        encoder["last"] = LastStep()
    if dense is not None:
        encoder["dense"] = nn.Linear(hidden, dense)
    return nn.Sequential(OrderedDict(encoder, head=nn.Linear(dense or hidden, vocabulary)))


class LastStep(nn.Module):
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
            self._add_parameter(
                f"weight_ih_l{layer}", hidden, 4 * hidden, inputs if layer == 0 else hidden
            )
            self._add_parameter(f"weight_hh_l{layer}", hidden, 4 * hidden, hidden)
            self._add_parameter(f"bias_ih_l{layer}", hidden, 4 * hidden)

    def _add_parameter(self, name: str, hidden: int, *shape: int) -> None:
        """A parameter drawn as torch draws it."""
        bound = hidden**-0.5
        self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's hidden state at every place."""
        if x.shape[1] == 0:
            raise ValueError("LSTM: sequences must have at least one token, got none.")
        steps = x.transpose(0, 1)  # time first, so that what the recurrence reads lies together
        for layer in range(self.layers):
            own = (
                getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "bias_ih", "weight_hh")
            )
            steps = lstm_layer(steps, *own)
        return steps.transpose(0, 1)
