"""How close the server's data is to the clients': labels, images, examples and gradients.

These are possible reasons for what the trials show; the verdict of an inspection does not depend on
them.
"""

from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.task import Task
from fedtailor.core.types import Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import subsample_evenly
from fedtailor.inspection.statistics.fsl_conditions import (
    Conditions,
    StepSizes,
    check_fsl_conditions,
)
from fedtailor.inspection.statistics.gradients import (
    GradientGaps,
    compute_gradient_gaps,
    make_batch,
)
from fedtailor.inspection.statistics.heterogeneity import (
    Distances,
    compute_example_distances,
    compute_label_distances,
)
from fedtailor.inspection.statistics.image_similarity import mean_image_ssim
from fedtailor.inspection.statistics.smoothness import estimate_smoothness
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig

MAX_CLIENTS = 20
"""Maximum number of training clients that the server is compared with."""

MAX_EXAMPLES = 512
"""Maximum number of examples from which the smoothness L is estimated."""

NUM_PROJECTIONS = 32
"""Number of directions of the sliced distances between examples."""

_MIN_NORM = 1e-300
"""Divisor of the cosine of gradients that are 0."""


class Closeness(NamedTuple):
    """Measures of how close the server's data is to the clients'; None where one is not defined.

    Distances are from the mean of the clients' distributions, in which clients count alike.
    """

    label_distance: float | None  # total variation of the server's labels
    client_label_distance: float | None  # the same of a client's labels, mean over clients
    image_similarity: float | None  # SSIM of the server's and a client's mean image, mean
    example_distance: float | None  # sliced 1-Wasserstein distance of the server's examples
    client_example_distance: float | None  # the same of a client's examples, mean over clients
    gradient_gaps: GradientGaps  # at a trained model
    smoothness: float  # L, estimated at that model
    conditions: Conditions | None  # FSL's; None where the loss is flat, or FSL is not tried

    @property
    def gradient_cosine(self) -> float:
        """The cosine of the angle between the server's gradient and the clients'."""
        gaps = self.gradient_gaps
        if gaps.product is None or gaps.server_norm is None:
            return 0.0
        norms = sqrt(gaps.overall_norm * gaps.server_norm)
        return gaps.product / max(norms, _MIN_NORM)


def compute_closeness(
    data: FederatedDataset, task: Task, params: Params, learner: RunConfig | None
) -> Closeness:
    """Compare the server's examples with training clients' train examples.

    Args:
        data: The data set.
        task: The model's task.
        params: A model, at which gradients are compared.
        learner: The specification of FSL whose conditions are checked, if any is.
    """
    client_ids = subsample_evenly(data.groups["train"], MAX_CLIENTS)
    labels = compute_label_distances(data, client_ids)
    images = mean_image_ssim(data, client_ids)
    examples = compute_example_distances(data, client_ids, projections=NUM_PROJECTIONS)
    gaps = compute_gradient_gaps(task, params, data, client_ids)
    rows = sample_train_examples(data, "train", MAX_EXAMPLES)
    like = next(iter(params.values()))
    batch = make_batch(data.clients, rows, data.example_spec, like)
    smoothness = estimate_smoothness(task, params, batch)
    conditions = None
    if smoothness > 0 and learner is not None:
        conditions = _check_conditions(data, learner, gaps, smoothness)
    return Closeness(
        label_distance=None if labels is None else labels.server,
        client_label_distance=_mean_over_clients(labels),
        image_similarity=None if images is None else images.mean,
        example_distance=None if examples is None else examples.server,
        client_example_distance=_mean_over_clients(examples),
        gradient_gaps=gaps,
        smoothness=smoothness,
        conditions=conditions,
    )


def _mean_over_clients(distances: Distances | None) -> float | None:
    return None if distances is None else float(distances.clients.mean())


def sample_train_examples(
    data: FederatedDataset, group: str, max_examples: int
) -> NDArray[np.int64]:
    """Return rows of the train examples of a group's clients.

    Args:
        data: The data set.
        group: Name of the group.
        max_examples: Maximum number of rows; of more, evenly spaced ones are returned.
    """
    train = data.clients.splits["train"]
    rows = np.concatenate([train.get_rows(int(client)) for client in data.groups[group]])
    return subsample_evenly(rows, max_examples)


def _check_conditions(
    data: FederatedDataset, learner: RunConfig, gaps: GradientGaps, smoothness: float
) -> Conditions:
    """Check FSL's conditions for the step sizes that it trains with."""
    hparams = from_config.resolve_hparams(learner, data)
    sizes = data.clients.splits["train"].compute_sizes()
    assert data.server is not None
    client_steps = hparams["steps"]
    if not client_steps:
        mean_size = float(sizes[data.groups["train"]].mean())
        client_steps = hparams["epochs"] * ceil(mean_size / hparams["batch"])
    server_steps = hparams["learn_epochs"] * ceil(len(data.server.x) / hparams["learn_batch"])
    step_sizes = StepSizes(
        gamma=hparams["gamma"],
        lr=hparams["lr"],
        steps=float(client_steps),
        server_lr=hparams["server_lr"],
        learn_lr=hparams["learn_lr"],
        learn_steps=float(server_steps),
    )
    return check_fsl_conditions(gaps, smoothness, step_sizes)
