"""How far the server's data are from the clients', put together for `fedtailor inspect`."""

from math import ceil, sqrt
from typing import NamedTuple

from fedtailor.core.types import Params
from fedtailor.data.label_table import subsample_evenly
from fedtailor.inspection.statistics.fsl_conditions import Conditions, check_fsl_conditions
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
from fedtailor.inspection.trials import TRIAL_ROUNDS, WARMUP_ROUNDS, Bench, sample_train_examples
from fedtailor.methods import make_hparams
from fedtailor.training.prepare import compute_run_facts

MAX_CLIENTS, MAX_EXAMPLES, NUM_PROJECTIONS = 20, 512, 32
"""Clients whose gradients and examples are looked at, examples for L, lines along which distances are measured."""


class Closeness(NamedTuple):
    """How far the server's data are from the clients'; None where it cannot be said."""

    label_distance: float | None  # total variation of its labels from the clients' together
    client_label_distance: float | None  # the same of a client's labels, mean
    image_similarity: float | None  # SSIM of its mean image and a client's, mean
    example_distance: float | None  # 1-Wasserstein of its examples from the clients' together
    client_example_distance: float | None  # the same of a client's examples, mean
    gradient_gaps: GradientGaps  # at the warm model
    smoothness: float  # L there
    conditions: Conditions | None  # FSL's with gamma = 1; None where the loss is flat

    @property
    def gradient_cosine(self) -> float:
        """Of the angle between the server's gradient and the clients'."""
        product, norm = self.gradient_gaps.product or 0.0, self.gradient_gaps.server_norm or 0.0
        return product / max(sqrt(self.gradient_gaps.overall_norm * norm), 1e-300)


def compute_closeness(bench: Bench, warm_params: Params) -> Closeness:
    """Distances between the server's data and training clients' train examples, and at the warm model gradients."""
    data, task, client_ids = (
        bench.data,
        bench.task,
        subsample_evenly(bench.data.groups["train"], MAX_CLIENTS),
    )
    labels, images = compute_label_distances(data, client_ids), mean_image_ssim(data, client_ids)
    examples = compute_example_distances(data, client_ids, projections=NUM_PROJECTIONS)
    gaps = compute_gradient_gaps(task, warm_params, data, client_ids)
    batch = make_batch(
        data.clients,
        sample_train_examples(data, "train", MAX_EXAMPLES),
        data.example_spec,
        next(iter(warm_params.values())),
    )
    steepness = estimate_smoothness(task, warm_params, batch)
    return Closeness(
        *_to_pair(labels),
        None if images is None else images.mean,
        *_to_pair(examples),
        gaps,
        steepness,
        _compute_conditions(bench, gaps, steepness) if steepness > 0 else None,
    )


def _to_pair(distances: Distances | None) -> tuple[float | None, float | None]:
    return (
        (None, None) if distances is None else (distances.server, float(distances.clients.mean()))
    )


def _compute_conditions(bench: Bench, gaps: GradientGaps, steepness: float) -> Conditions:
    """FSL's conditions for the rates that it would choose, but with 1 as the server's, as in the trials."""
    facts = compute_run_facts(
        bench.data,
        WARMUP_ROUNDS + TRIAL_ROUNDS,
        min(bench.config.cohort, len(bench.data.groups["train"])),
    )
    local_hparams = {
        key: value
        for key, value in bench.config.hparams.items()
        if key in ("lr", "epochs", "steps", "batch")
    }
    hparams = make_hparams("fsl", **local_hparams, server_lr=1.0).resolve(facts)
    steps_per_epoch = ceil(facts.num_server_examples / hparams.learn_batch)
    steps = hparams.steps or hparams.epochs * ceil(facts.examples_per_client / hparams.batch)
    return check_fsl_conditions(
        gaps,
        smoothness=steepness,
        gamma=1.0,
        lr=hparams.lr,
        steps=float(steps),
        server_lr=1.0,
        learn_lr=hparams.learn_lr,
        learn_steps=float(hparams.learn_epochs * steps_per_epoch),
    )
