"""Recurrent models for text: from tokens [B, T] to logits of the next token, [B, T, vocabulary].

The LSTM is written out: under `vmap`, torch's own runs its fused kernels client by client.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedtailor.ops.lstm import lstm_layer


def shakespeare(vocabulary: int = 90, last_only: bool = False) -> nn.Sequential:
    """Return FedSIM's model for Shakespeare (table 7).

    It has an embedding of width 8 and two LSTM layers of width 256; see `language_model`.
    """
    return language_model(vocabulary, embedding=8, hidden=256, layers=2, last_only=last_only)


def stackoverflow(vocabulary: int = 10_000, last_only: bool = False) -> nn.Sequential:
    """Return FedSIM's model for StackOverflow (table 8).

    It has an embedding of width 96, an LSTM of width 670 and a dense layer of width 96; see
    `language_model`.
    """
    return language_model(vocabulary, embedding=96, hidden=670, dense=96, last_only=last_only)


def language_model(
    vocabulary: int,
    embedding: int,
    hidden: int,
    layers: int = 1,
    dense: int | None = None,
    last_only: bool = False,
) -> nn.Sequential:
    """Return an embedding, an LSTM, perhaps a dense layer, and the linear head as the last layer.

    Args:
        vocabulary: Number of tokens.
        embedding: Width of the embedding.
        hidden: Width of each layer of the LSTM.
        layers: Number of layers of the LSTM.
        dense: Width of a dense layer without activation before the head; None for no such layer.
        last_only: Predict only the token after the last one: logits are [B, vocabulary].
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
    """Selection of the last time step: [B, T, width] to [B, width]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the last time step of `x`."""
        return x[:, -1]


class LSTM(nn.Module):
    """Long short-term memory whose states start at zero: [B, T, inputs] to [B, T, hidden].

    Outputs and parameter names are those of `torch.nn.LSTM(batch_first=True)`, but a layer has one
    bias, as the tables of the papers count it, and not two that are only ever added: `bias_ih_l0`
    is torch's plus `bias_hh_l0`.

    Args:
        inputs: Width of the inputs.
        hidden: Width of the states.
        layers: Number of layers, each on top of the one before.
    """

    def __init__(self, inputs: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.layers = layers
        for layer in range(layers):
            width = inputs if layer == 0 else hidden
            self._add_parameter(f"weight_ih_l{layer}", hidden, 4 * hidden, width)
            self._add_parameter(f"weight_hh_l{layer}", hidden, 4 * hidden, hidden)
            self._add_parameter(f"bias_ih_l{layer}", hidden, 4 * hidden)

    def _add_parameter(self, name: str, hidden: int, *shape: int) -> None:
        """Add a parameter with torch's initialization, uniform in +-1 / sqrt(hidden)."""
        bound = hidden**-0.5
        self.register_parameter(name, nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states of the last layer at all time steps, [B, T, hidden]."""
        if x.shape[1] == 0:
            raise ValueError("LSTM: sequences must have at least one token, got none.")
        states = x.transpose(0, 1)  # time first, so that a step's inputs are contiguous
        for layer in range(self.layers):
            weight_ih = getattr(self, f"weight_ih_l{layer}")
            bias = getattr(self, f"bias_ih_l{layer}")
            weight_hh = getattr(self, f"weight_hh_l{layer}")
            states = lstm_layer(states, weight_ih, bias, weight_hh)
        return states.transpose(0, 1)
