"""What trials say of the gain by the server's data: estimates with intervals, and verdicts.

Settings are compared trial by trial with the best of those without server data. The variances of
these differences are moderated by those of all pairs of settings, as for the tables of
`fedtailor compare` (`evaluation/ranking.py`), since few trials tell little about a variance.

The interval is that of the run's own unseen clients, whose gain differs from the mean over all
clients like them. Trials differ by seeds and clients; taken as differing by clients alone, a group
of u clients has the variance of a trial times v / u, where trials are scored on v clients.

A trial of fewer rounds than the run has tells a gain at an earlier round. Training without server
data catches up, and gains have been found to shrink about as the number of rounds grows
(studies/inspect): the forecast is the gain times the part of the rounds that was run, and its
interval reaches up to that of the gain as it is. Losses are taken as they are.
"""

import math
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.evaluation.quantiles import compute_t_quantile
from fedtailor.evaluation.ranking import (
    PairedGaps,
    compute_gaps,
    fit_prior,
    moderate_variances,
)

TAIL = 0.025
"""Probability beyond each end of an interval."""

LIKELY_TAIL = 0.2
"""Probability, at most, that a likely gain is none."""

SMALL_GAIN = 0.01
"""A gain or loss that makes no difference: a point of accuracy, or 1 % of an error."""

NUM_CONTENDERS = 2
"""Settings with server data that all trials are run of; others are left out after a few."""

FloatArray = NDArray[np.float64]


class Verdict(Enum):
    """What the trials say about a setting in comparison with the best one without server data."""

    HELPS = "helps"
    PROBABLY_HELPS = "probably helps"
    NO_DIFFERENCE = "makes no difference"
    PROBABLY_NO_DIFFERENCE = "probably makes no difference"
    CANNOT_TELL = "cannot tell"
    PROBABLY_HARMS = "probably harms"
    HARMS = "harms"


class Estimate(NamedTuple):
    """The gain of a setting over the best one without server data, or of the latter over none."""

    score: float  # accuracy, or minus an error, mean over trials
    gain: float  # as a fraction: 0.01 is a point of accuracy, or 1 % of an error
    low: float  # ends of the 95 % interval of the gain of the run's own unseen clients
    high: float
    likely_low: float  # ends of the interval in which the gain of all clients like these likely is
    likely_high: float

    @property
    def verdict(self) -> Verdict:
        """What the interval says."""
        if self.low > 0:
            return Verdict.HELPS
        if self.high < 0:
            return Verdict.HARMS
        if self.low >= -SMALL_GAIN and self.high <= SMALL_GAIN:
            return Verdict.NO_DIFFERENCE
        if self.likely_low >= -SMALL_GAIN and self.likely_high <= SMALL_GAIN:
            return Verdict.PROBABLY_NO_DIFFERENCE
        if self.likely_low > 0:
            return Verdict.PROBABLY_HELPS
        if self.likely_high < 0:
            return Verdict.PROBABLY_HARMS
        return Verdict.CANNOT_TELL


class StageForecast(NamedTuple):
    """The forecast before or after personalizing."""

    reference: int | None  # the best setting without server data; None: all of these diverged
    best: int | None  # the setting with server data that gains most; None: all of these diverged
    estimates: tuple[Estimate | None, ...]  # by setting; None for one that diverged

    @property
    def verdict(self) -> Verdict:
        """What is said of the server's data: the verdict on the setting that gains most."""
        if self.best is None or self.reference is None:
            return Verdict.CANNOT_TELL
        estimate = self.estimates[self.best]
        assert estimate is not None
        return estimate.verdict


def forecast_stage(
    scores: FloatArray,
    uses_server: Sequence[bool],
    run_share: float = 1.0,
    client_ratio: float = 1.0,
) -> StageForecast:
    """Return the forecast from the scores of all trials.

    Args:
        scores: Scores [trials, settings], higher ones better; NaN for trials that a setting was
            left out of, and minus infinity if a model diverged.
        uses_server: Whether each setting uses the server's data.
        run_share: Share of the rounds of the run that trials have.
        client_ratio: Number of clients that a trial is scored on over that of unseen clients.
    """
    has_diverged: NDArray[np.bool_] = np.asarray(np.isneginf(scores).any(axis=0))
    usable = np.where(has_diverged, math.nan, scores)
    reference = _find_leader(usable, [not uses for uses in uses_server])
    best = _find_leader(usable, uses_server)
    if reference is None:
        return StageForecast(None, None, (None,) * len(uses_server))
    gaps = compute_gaps(usable)
    means = gaps.means[reference]
    errors, df = _compute_errors(gaps, reference)
    score = float(np.nanmean(usable[:, reference]))
    # An error, which is a negative score, is gained in parts of itself.
    scale = -score if score < 0 else 1.0
    estimates: list[Estimate | None] = []
    for index, is_lost in enumerate(has_diverged):
        if is_lost:
            estimates.append(None)
            continue
        gain = float(means[index])
        later_gain = extrapolate_gain(gain, run_share)
        error = float(errors[index])
        num_trials = float(gaps.num_seeds[reference, index])
        # Trials differ by their clients, too: other clients have a mean gain of their own.
        group_error = error * math.sqrt(1 + num_trials * client_ratio)
        wide = _compute_multiple(TAIL, df[index]) * group_error
        narrow = _compute_multiple(LIKELY_TAIL, df[index]) * error
        estimates.append(
            Estimate(
                score=score + gain,
                gain=later_gain / scale,
                low=(later_gain - wide) / scale,
                high=(gain + wide) / scale,
                likely_low=(later_gain - narrow) / scale,
                likely_high=(gain + narrow) / scale,
            )
        )
    return StageForecast(reference, best, tuple(estimates))


def select_contenders(forecast: StageForecast, uses_server: Sequence[bool]) -> set[int]:
    """Return the settings that are worth more trials: the leaders of both kinds.

    Args:
        forecast: What the trials so far say.
        uses_server: Whether each setting uses the server's data.
    """
    gains: dict[int, float] = {}
    for index, estimate in enumerate(forecast.estimates):
        if estimate is not None:
            gains[index] = estimate.gain
    contenders = {index for index in (forecast.reference, forecast.best) if index is not None}
    with_server = [index for index in gains if uses_server[index]]
    with_server.sort(key=lambda index: -gains[index])
    return contenders | set(with_server[:NUM_CONTENDERS])


def _find_leader(scores: FloatArray, is_candidate: Sequence[bool]) -> int | None:
    """Return the candidate of the best mean among those with the most trials; None without any."""
    num_trials = np.isfinite(scores).sum(axis=0)
    candidates = [index for index, is_one in enumerate(is_candidate) if is_one]
    most = max(num_trials[candidates])
    if most == 0:
        return None
    leaders = [index for index in candidates if num_trials[index] == most]
    return max(leaders, key=lambda index: float(np.nanmean(scores[:, index])))


def _compute_errors(gaps: PairedGaps, reference: int) -> tuple[FloatArray, FloatArray]:
    """Return standard errors of mean differences to the reference, and their degrees of freedom.

    Variances are moderated by those of the settings that all trials were run of, as others are
    often wild. With a single trial nothing is known of variances, and errors are infinite.
    """
    num_trials = gaps.num_seeds[reference]
    df = np.maximum(num_trials - 1, 0)
    contenders = np.flatnonzero(num_trials == num_trials.max())
    rows, columns = np.triu_indices(len(contenders), 1)
    pairs = (contenders[rows], contenders[columns])
    prior = fit_prior(gaps.variances[pairs], np.full(len(rows), df.max()))
    # Moderation of one table: arrays of the shape [methods, methods].
    variances = moderate_variances(gaps.variances, np.maximum(gaps.num_seeds - 1, 0), prior)
    finite = np.where(np.isfinite(variances[reference]), variances[reference], math.inf)
    errors = np.sqrt(finite / np.maximum(num_trials, 1))
    errors[reference] = 0.0
    # Pairs share their settings, so all of them together have no more degrees of freedom.
    pooled_df = (len(contenders) - 1) * df.max()
    total_df = np.maximum(np.minimum(float(prior.df) + df, pooled_df), df)
    return errors, np.maximum(total_df, 1.0)


def _compute_multiple(tail: float, df: float) -> float:
    """Return how many standard errors an interval reaches to each side."""
    return float(compute_t_quantile(tail, np.array(float(df))))


def extrapolate_gain(gain: float, run_share: float) -> float:
    """Return the gain at the end of the run after trials of a share of its rounds.

    >>> extrapolate_gain(0.08, 0.5), extrapolate_gain(-0.08, 0.5)
    (0.04, -0.08)
    """
    return gain * run_share if gain > 0 else gain
