"""How far the server's data are from the clients', put together for `fedtailor inspect`."""

from math import ceil, sqrt
from typing import NamedTuple

from fedtailor.analysis.conditions import Conditions, fsl_conditions
from fedtailor.analysis.gradients import GradientGaps, batch_of, gradient_gaps
from fedtailor.analysis.heterogeneity import Distances, example_distances, label_distances
from fedtailor.analysis.similarity import mean_image_ssim
from fedtailor.analysis.smoothness import smoothness
from fedtailor.data.picture import spaced
from fedtailor.methods import hyper_of
from fedtailor.run.fitting import facts_of
from fedtailor.run.inspecting_trials import ROUNDS, WARM, Bench, of_people
from fedtailor.types import Params

PEOPLE, EXAMPLES, PROJECTIONS = 20, 512, 32
"""Clients whose gradients and examples are looked at, examples for L, lines along which distances are measured."""


class Closeness(NamedTuple):
    """How far the server's data are from the clients'; None where it cannot be said."""

    labels: float | None  # total variation of its labels from the clients' together
    client_labels: float | None  # the same of a client's labels, mean
    images: float | None  # SSIM of its mean image and a client's, mean
    examples: float | None  # 1-Wasserstein of its examples from the clients' together
    client_examples: float | None  # the same of a client's examples, mean
    gaps: GradientGaps  # at the warm model
    smoothness: float  # L there
    conditions: Conditions | None  # FSL's with gamma = 1; None where the loss is flat

    @property
    def cosine(self) -> float:
        """Of the angle between the server's gradient and the clients'."""
        product, norm = self.gaps.product or 0.0, self.gaps.server_norm or 0.0
        return product / max(sqrt(self.gaps.overall_norm * norm), 1e-300)


def closeness(place: Bench, warm: Params) -> Closeness:
    """Distances between the server's data and training clients' train examples, and at the warm model gradients."""
    data, task, some = place.data, place.task, spaced(place.data.groups["train"], PEOPLE)
    labels, images = label_distances(data, some), mean_image_ssim(data, some)
    examples = example_distances(data, some, projections=PROJECTIONS)
    gaps = gradient_gaps(task, warm, data, some)
    batch = batch_of(data.clients, of_people(data, "train", EXAMPLES), data.units, next(iter(warm.values())))
    steepness = smoothness(task, warm, batch)
    return Closeness(
        *_pair(labels),
        None if images is None else images.mean,
        *_pair(examples),
        gaps,
        steepness,
        _conditions(place, gaps, steepness) if steepness > 0 else None,
    )


def _pair(found: Distances | None) -> tuple[float | None, float | None]:
    return (None, None) if found is None else (found.server, float(found.clients.mean()))


def _conditions(place: Bench, gaps: GradientGaps, steepness: float) -> Conditions:
    """FSL's conditions for the rates that it would choose, but with 1 as the server's, as in the trials."""
    facts = facts_of(place.data, WARM + ROUNDS, min(place.spec.cohort, len(place.data.groups["train"])))
    local = {key: value for key, value in place.spec.hyper.items() if key in ("lr", "epochs", "steps", "batch")}
    hyper = hyper_of("fsl", **local, server_lr=1.0).for_run(facts)
    a_pass = ceil(facts.server / hyper.learn_batch)
    steps = hyper.steps or hyper.epochs * ceil(facts.examples / hyper.batch)
    return fsl_conditions(
        gaps,
        smoothness=steepness,
        gamma=1.0,
        lr=hyper.lr,
        steps=float(steps),
        server_lr=1.0,
        learn_lr=hyper.learn_lr,
        learn_steps=float(hyper.learn_epochs * a_pass),
    )
