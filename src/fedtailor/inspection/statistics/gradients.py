"""How far gradients are apart at a model: clients' from their mean, and the server's from it (FSL).

    f_i(x) = mean loss over client i's train examples,  F = sum_i p_i f_i,  f_0 = mean loss over the server's examples
    xi^2   = |grad f_0(x) - grad F(x)|^2                            how well the server's data stand for the clients'
    G^2    = 1/N sum_i |grad f_i(x) - grad F(x)|^2                  how much clients differ            (figure 9)

FSL weighs clients in F by their examples, p_i = n_i / n (2), but counts them alike in G^2. Models run in evaluation
mode: without dropout, so that losses are functions of x alone.
"""

import math
from collections.abc import Iterable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.task import Task
from fedtailor.core.types import Batch, Params
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.data.examples import ClientExamples
from fedtailor.errors import require
from fedtailor.ops.decode import decode_inputs, decode_targets

BATCH_SIZE = 256
"""Examples that a gradient is taken over at a time."""


class LossGradient(NamedTuple):
    """A holder's mean loss at a model, its gradient, and over how much it is a mean."""

    gradient: Tensor  # [parameters] in double precision, in the order of `trees.leaves`
    loss: float
    weight: float  # examples, or tokens that count


class GradientGaps(NamedTuple):
    """Gradients at a model, compared; what concerns the server is None if it has no examples."""

    clients: float  # G^2 = 1/N sum_i |grad f_i - grad F|^2
    server: float | None  # xi^2 = |grad f_0 - grad F|^2
    overall_norm: float  # |grad F|^2
    server_norm: float | None  # |grad f_0|^2
    product: float | None  # <grad F, grad f_0>
    loss: float  # F
    server_loss: float | None  # f_0


def compute_gradient_gaps(
    task: Task,
    params: Params,
    dataset: FederatedDataset,
    client_ids: NDArray[np.int64] | None = None,
    *,
    weight_by: Literal["examples", "alike"] = "examples",
    batch: int = BATCH_SIZE,
) -> GradientGaps:
    """xi^2 and G^2 at `params`, over the clients that may train, or the clients `who`; see above.

    `weigh` says how much clients count in F: p_i = n_i / n, which makes F the mean loss over all examples (over all
    tokens that count, for sequences), or p_i = 1 / N. Every example is seen once, `batch` at a time, on the device of
    the parameters; one gradient is kept, not one for each client.
    """
    require(
        weight_by in ("examples", "alike"),
        f"gradient_gaps: weight_by must be examples or alike, got {weight_by!r}.",
    )
    selected = dataset.groups["train"] if client_ids is None else client_ids
    require(
        len(selected) > 0,
        f"gradient_gaps: at least one client of '{dataset.name}' is needed, got none.",
    )
    require(
        params.keys() == task.params.keys(), f"gradient_gaps: params must be {sorted(task.params)}."
    )
    compute_one = partial(
        compute_loss_gradient, task, params, example_spec=dataset.example_spec, batch=batch
    )
    loss_gradients = (
        _require_finite(
            compute_one(dataset.clients, int(one)), f"client {str(dataset.client_names[one])!r}"
        )
        for one in selected
    )
    overall, apart = _aggregate_gradients(loss_gradients, weight_by)
    norm = float(overall.gradient @ overall.gradient)
    if dataset.server is None:
        return GradientGaps(apart, None, norm, None, None, overall.loss, None)
    server_gradient = _require_finite(compute_one(dataset.server, 0), "the server")
    away = server_gradient.gradient - overall.gradient
    return GradientGaps(
        clients=apart,
        server=float(away @ away),
        overall_norm=norm,
        server_norm=float(server_gradient.gradient @ server_gradient.gradient),
        product=float(server_gradient.gradient @ overall.gradient),
        loss=overall.loss,
        server_loss=server_gradient.loss,
    )


def compute_loss_gradient(
    task: Task,
    params: Params,
    examples: ClientExamples,
    client: int,
    example_spec: ExampleSpec,
    batch: int = BATCH_SIZE,
) -> LossGradient:
    """The mean loss over a holder's train examples and its gradient, gathered batch by batch."""
    require(batch >= 1, f"gradient_gaps: batch must be at least 1, got {batch}.")
    rows, like = examples.splits["train"].get_rows(client), next(iter(params.values()))
    gradient, sums = (
        torch.zeros(sum(leaf.numel() for leaf in trees.leaves(params)), dtype=torch.float64),
        np.zeros(2),
    )
    of_sum = torch.func.grad(partial(_sum_losses, task), has_aux=True)
    for begin in range(0, len(rows), batch):
        found, pair = of_sum(
            params, make_batch(examples, rows[begin : begin + batch], example_spec, like)
        )
        gradient += torch.cat(
            [leaf.detach().flatten().cpu().double() for leaf in trees.leaves(found)]
        )
        sums += pair.detach().cpu().double().numpy()
    weight = max(float(sums[1]), 1.0)  # a mean over nothing is 0
    return LossGradient(gradient / weight, float(sums[0]) / weight, float(sums[1]))


def _require_finite(loss_gradient: LossGradient, name: str) -> LossGradient:
    is_finite = math.isfinite(loss_gradient.loss) and bool(
        torch.isfinite(loss_gradient.gradient).all()
    )
    require(
        is_finite,
        f"gradient_gaps: at params, every loss and gradient must be finite, but those of {name} are not.",
    )
    return loss_gradient


def make_batch(
    examples: ClientExamples, rows: NDArray[np.int64], example_spec: ExampleSpec, like: Tensor
) -> Batch:
    """These examples, on the device and in the precision of a parameter; without padding."""
    x, y = (torch.from_numpy(column[rows]).to(like.device) for column in (examples.x, examples.y))
    mask, key = torch.ones(len(rows), dtype=like.dtype), torch.zeros((), dtype=torch.int64)
    return Batch(
        decode_inputs(x, example_spec, like.dtype),
        decode_targets(y, like.dtype),
        mask.to(like.device),
        key.to(like.device),
    )


def _sum_losses(task: Task, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
    """The sum of losses over a batch, and beside it the pair of that sum and its weight."""
    pair = task.compute_metric_sums(params, batch)["loss"]
    return pair[0], pair


def _aggregate_gradients(
    loss_gradients: Iterable[LossGradient], weight_by: str
) -> tuple[LossGradient, float]:
    """F's slope and G^2, from slopes that are seen once.

    With m the plain mean of gradients, sum_i |g_i - grad F|^2 = sum_i |g_i - m|^2 + N |m - grad F|^2; the first sum is
    gathered as by Welford, as differences, since the difference of large sums would lose digits.
    """
    mean = total = torch.zeros((), dtype=torch.float64)
    spread, weights, loss, count = 0.0, 0.0, 0.0, 0
    for count, loss_gradient in enumerate(loss_gradients, start=1):
        share = loss_gradient.weight if weight_by == "examples" else 1.0
        away = loss_gradient.gradient - mean
        mean = mean + away / count
        spread += float(away @ (loss_gradient.gradient - mean))
        total, weights, loss = (
            total + share * loss_gradient.gradient,
            weights + share,
            loss + share * loss_gradient.loss,
        )
    overall = LossGradient(total / max(weights, 1.0), loss / max(weights, 1.0), weights)
    off = mean - overall.gradient
    return overall, spread / count + float(off @ off)
