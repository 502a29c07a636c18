"""How far gradients are apart at a model: clients' from their mean, and the server's from it (FSL).

    f_i(x) = mean loss over client i's train examples,  F = sum_i p_i f_i
    f_0(x) = mean loss over the server's examples
    xi^2   = |grad f_0(x) - grad F(x)|^2              how well server data represents clients'
    G^2    = 1/N sum_i |grad f_i(x) - grad F(x)|^2    how much clients differ (figure 9)

FSL weighs clients in F by their examples, p_i = n_i / n (2), but counts them alike in G^2. Models
run in evaluation mode, without dropout, so that losses are functions of x alone.
"""

import math
from collections.abc import Iterable, Iterator
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
"""Default number of examples that a gradient is computed over at a time."""


class LossGradient(NamedTuple):
    """The mean loss of one client or of the server at a model, and its gradient."""

    gradient: Tensor  # [parameters] in double precision, in the order of `trees.leaves`
    loss: float
    weight: float  # number of examples, or of tokens that count, that the mean is over


class GradientGaps(NamedTuple):
    """A comparison of gradients at a model; the server's values are None if it has no examples."""

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
    """Compute xi^2 and G^2 at a model.

    Every example is read once. One gradient is kept, not one for each client.

    Args:
        task: The model and its loss.
        params: The parameters at which gradients are taken, on the device that computes them.
        dataset: The clients and the server.
        client_ids: The clients that make up F and G^2; None: those of group "train".
        weight_by: How clients count in F. "examples": p_i = n_i / n, which makes F the mean loss
            over all examples (for sequences over all tokens that count); "alike": p_i = 1 / N.
        batch: Number of examples at a time.
    """
    _validate_args(task, params, weight_by, batch)
    selected = dataset.groups["train"] if client_ids is None else client_ids
    require(
        len(selected) > 0,
        f"compute_gradient_gaps: at least one client of '{dataset.name}' is needed, got none.",
    )
    compute_one = partial(
        compute_loss_gradient, task, params, example_spec=dataset.example_spec, batch=batch
    )

    def iter_client_gradients() -> Iterator[LossGradient]:
        for client in selected:
            client_gradient = compute_one(dataset.clients, int(client))
            _require_finite(client_gradient, f"client '{dataset.client_names[client]}'")
            yield client_gradient

    overall, client_gap = _aggregate_gradients(iter_client_gradients(), weight_by)
    overall_norm = float(overall.gradient @ overall.gradient)
    if dataset.server is None:
        return GradientGaps(
            clients=client_gap,
            server=None,
            overall_norm=overall_norm,
            server_norm=None,
            product=None,
            loss=overall.loss,
            server_loss=None,
        )
    server = compute_one(dataset.server, 0)
    _require_finite(server, "the server")
    difference = server.gradient - overall.gradient
    return GradientGaps(
        clients=client_gap,
        server=float(difference @ difference),
        overall_norm=overall_norm,
        server_norm=float(server.gradient @ server.gradient),
        product=float(server.gradient @ overall.gradient),
        loss=overall.loss,
        server_loss=server.loss,
    )


def compute_loss_gradient(
    task: Task,
    params: Params,
    examples: ClientExamples,
    client: int,
    example_spec: ExampleSpec,
    batch: int = BATCH_SIZE,
) -> LossGradient:
    """Return the mean loss over one client's train examples, and its gradient.

    Args:
        task: The model and its loss.
        params: The parameters, on the device that computes the gradient.
        examples: Examples of the clients, or of the server, which is client 0 of its own.
        client: Index of the client.
        example_spec: How examples become inputs of the model.
        batch: Number of examples at a time.
    """
    rows = examples.splits["train"].get_rows(client)
    like = next(iter(params.values()))
    num_params = sum(leaf.numel() for leaf in trees.leaves(params))
    gradient_sum = torch.zeros(num_params, dtype=torch.float64)
    loss_sums = np.zeros(2)  # sum of losses, sum of their weights
    differentiate = torch.func.grad(partial(_sum_losses, task), has_aux=True)
    for begin in range(0, len(rows), batch):
        examples_batch = make_batch(examples, rows[begin : begin + batch], example_spec, like)
        batch_gradient, batch_sums = differentiate(params, examples_batch)
        leaves = [leaf.detach().flatten().cpu().double() for leaf in trees.leaves(batch_gradient)]
        gradient_sum += torch.cat(leaves)
        loss_sums += batch_sums.detach().cpu().double().numpy()
    loss_sum, weight = loss_sums.tolist()
    divisor = max(weight, 1.0)  # where no token counts, the mean is 0
    return LossGradient(gradient_sum / divisor, loss_sum / divisor, weight)


def make_batch(
    examples: ClientExamples, rows: NDArray[np.int64], example_spec: ExampleSpec, like: Tensor
) -> Batch:
    """Return some examples as one batch without padding.

    Args:
        examples: Examples of the clients or of the server.
        rows: Rows of their columns.
        example_spec: How examples become inputs of the model.
        like: A tensor on the device and of the dtype that the batch should have.
    """
    x = torch.from_numpy(examples.x[rows]).to(like.device)
    y = torch.from_numpy(examples.y[rows]).to(like.device)
    return Batch(
        x=decode_inputs(x, example_spec, like.dtype),
        y=decode_targets(y, like.dtype),
        mask=torch.ones(len(rows), dtype=like.dtype, device=like.device),
        key=torch.zeros((), dtype=torch.int64, device=like.device),
    )


def _validate_args(task: Task, params: Params, weight_by: str, batch: int) -> None:
    require(
        weight_by in ("examples", "alike"),
        f"compute_gradient_gaps: weight_by must be examples or alike, got {weight_by!r}.",
    )
    require(
        params.keys() == task.params.keys(),
        f"compute_gradient_gaps: params must be {sorted(task.params)}, got {sorted(params)}.",
    )
    require(batch >= 1, f"compute_gradient_gaps: batch must be at least 1, got {batch}.")


def _require_finite(loss_gradient: LossGradient, owner: str) -> None:
    is_finite = math.isfinite(loss_gradient.loss) and bool(
        torch.isfinite(loss_gradient.gradient).all()
    )
    require(
        is_finite,
        "compute_gradient_gaps: at params, every loss and gradient must be finite, "
        f"but those of {owner} are not.",
    )


def _sum_losses(task: Task, params: Params, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the sum of losses over a batch, and beside it [sum of losses, sum of weights]."""
    sums = task.compute_metric_sums(params, batch)["loss"]
    return sums[0], sums


def _aggregate_gradients(
    loss_gradients: Iterable[LossGradient], weight_by: str
) -> tuple[LossGradient, float]:
    """Return F with its gradient, and G^2, from gradients that are read once.

    With m the plain mean of gradients,

        sum_i |g_i - grad F|^2 = sum_i |g_i - m|^2 + N |m - grad F|^2

    where the first sum is accumulated by Welford's method, since the difference of two large sums
    would lose digits.

    Args:
        loss_gradients: The clients' losses and gradients, at least one.
        weight_by: How clients count in F; see `compute_gradient_gaps`.
    """
    mean = torch.zeros((), dtype=torch.float64)
    weighted_gradients = torch.zeros((), dtype=torch.float64)
    weighted_losses = 0.0
    total_weight = 0.0
    squared_deviations = 0.0
    count = 0
    for loss_gradient in loss_gradients:
        count += 1
        weight = loss_gradient.weight if weight_by == "examples" else 1.0
        weighted_gradients = weighted_gradients + weight * loss_gradient.gradient
        weighted_losses += weight * loss_gradient.loss
        total_weight += weight
        deviation = loss_gradient.gradient - mean
        mean = mean + deviation / count
        squared_deviations += float(deviation @ (loss_gradient.gradient - mean))
    divisor = max(total_weight, 1.0)
    overall = LossGradient(weighted_gradients / divisor, weighted_losses / divisor, total_weight)
    offset = mean - overall.gradient
    return overall, squared_deviations / count + float(offset @ offset)
