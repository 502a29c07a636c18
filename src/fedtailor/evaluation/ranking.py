"""Comparison of the methods of a table with the best of them, over seeds (Hsu's MCB).

Every two methods are compared by the differences of their scores, seed by seed. The *margin* of a
pair is how large their mean difference can be by chance:

    margin = factor(methods, seeds) * t(0.02, prior df + seeds - 1) * sqrt(variance / seeds)

A method is *behind* if another's mean exceeds its own by more than their margin; the others are
*candidates*, and a candidate alone is the best. The true best is called behind in at most 5 % of
tables, also where variances differ between methods.

- The variance is the pair's own or, if larger, that moderated by empirical Bayes (Smyth 2004, known
  from limma): the mean, weighted by degrees of freedom, of the pair's own and of a prior variance,
  fitted to all pairs of the table with its prior degrees of freedom. A small variance, which three
  seeds give easily by chance, is so raised to what is usual in the table. A large one is kept, so
  that varying from seed to seed helps no method.
- Where variances differ much, the fitted prior degrees of freedom are few, and the quantile of
  Student's t grows. They are at most those of the residuals of methods and seeds together.
- The factor makes up for the number of comparisons, for the dependence of pairs and for taking the
  larger of two variances. `tools/simulate_ranking.py` sets it so that the level holds in all its
  settings, and measures level and power: docs/ranking.md.

Where all seeds score the same clients, the variance between seeds says nothing of other clients. To
speak of clients like these, the scores of each client are given too, and the margin is the root of
the sum of two squares: its own, and that of a mean over clients. The variance of the latter is what
resampling the clients has: that of the pair's differences, averaged over seeds, between clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from fedtailor.evaluation.quantiles import (
    compute_digamma,
    compute_t_quantile,
    compute_trigamma,
    invert_trigamma,
)

LEVEL = 0.05
"""The share of tables, at most, in which the true best is called behind."""
T_TAIL = 0.02
"""Probability above the quantile of Student's t in margins.

Smaller ones suit tables of equal variances better, larger ones tables with one wild method.
"""
MIN_SEEDS = 2
"""Seeds that two methods need in common to be compared."""
MIN_CLIENTS = 2
"""Clients with test examples that are needed to speak of clients like these."""
MAX_MORE_SEEDS = 1000

FACTOR_METHODS = (2, 3, 4, 5, 6, 8, 10, 14, 20)
FACTOR_SEEDS = (2, 3, 4, 5, 6, 8, 10, 15, 30, math.inf)
FACTORS = np.array(
    [
        (0.443, 0.641, 0.71, 0.743, 0.762, 0.782, 0.792, 0.805, 0.816, 0.826),
        (1.379, 1.051, 0.985, 0.954, 0.949, 0.947, 0.951, 0.938, 0.961, 0.974),
        (1.634, 1.256, 1.152, 1.109, 1.069, 1.043, 1.029, 1.038, 1.051, 1.054),
        (2.303, 1.369, 1.253, 1.19, 1.167, 1.112, 1.118, 1.105, 1.097, 1.108),
        (2.727, 1.455, 1.321, 1.238, 1.201, 1.181, 1.175, 1.151, 1.136, 1.149),
        (3.236, 1.637, 1.397, 1.323, 1.295, 1.271, 1.242, 1.23, 1.198, 1.208),
        (3.325, 1.729, 1.501, 1.428, 1.375, 1.351, 1.311, 1.271, 1.234, 1.251),
        (3.55, 1.834, 1.613, 1.511, 1.459, 1.43, 1.38, 1.347, 1.3, 1.312),
        (3.786, 2.084, 1.743, 1.64, 1.58, 1.516, 1.472, 1.422, 1.354, 1.372),
    ]
)
"""Factors of margins by numbers of methods (rows) and seeds (columns).

Output of `python tools/simulate_ranking.py --calibrate`.
"""

_ZERO_VARIANCE = 0.01
"""What stands for a variance of 0 in the fit of the prior, as a share of the median variance.

Scores that are rounded or saturated have such variances. Their logarithms must be neither infinite
nor outweigh those of all others.
"""
_RESOLUTION = 1e-12
"""Differences below this share of the largest score are rounding errors of arithmetic."""


class Verdict(Enum):
    """What can be said of a method in comparison with the best of its table."""

    BEST = "best"  # all others are behind
    MAY_BE_BEST = "may be best"  # it cannot be told from the best
    BEHIND = "behind"


class Standing(NamedTuple):
    """Distance of a method to the best of its table; each end of the interval is wrong in 5 %."""

    verdict: Verdict
    difference: float  # to the leader, on common seeds, positive if worse; NaN without such
    low: float  # the method is at least this far behind the best; 0 for candidates
    high: float  # at most this far; infinite if unknown, 0 for the best
    more_seeds: int | None  # that would decide if differences and variances stayed; None if unknown
    needs_clients: bool = False  # no number of seeds would decide, as the clients are too few


class PairedGaps(NamedTuple):
    """Differences between methods, paired by seed; all arrays are [..., methods, methods]."""

    means: np.ndarray  # how much better the second method is than the first; NaN without seeds
    variances: np.ndarray  # between seeds; NaN with fewer than two
    num_seeds: np.ndarray  # that both methods have


class ClientNoise(NamedTuple):
    """Noise of the mean differences between methods that the sample of clients brings."""

    variances: np.ndarray  # of a mean over clients, [..., methods, methods]; 0 where unknown
    num_clients: int


class Prior(NamedTuple):
    """Distribution of the variances of the pairs of a table: scaled inverse chi-squared; [...]."""

    variance: np.ndarray
    df: np.ndarray


class Margins(NamedTuple):
    """Largest mean differences to be expected by chance, and what they come from."""

    margins: np.ndarray  # [..., methods, methods]; infinite for pairs that cannot be compared
    variances: np.ndarray  # [..., methods, methods] moderated, never below the pair's own
    prior: Prior
    client_margins: np.ndarray | float = 0.0  # the part of the clients, [..., methods, methods]


def compare_with_best(
    scores: Mapping[str, Mapping[int, float]],
    higher_is_better: bool = True,
    client_scores: Mapping[str, Mapping[int, np.ndarray]] | None = None,
) -> dict[str, Standing]:
    """Return the standing of each method; empty for fewer than two.

    Scores that are not finite count as missing, and methods without any are left out. Methods are
    compared on the seeds that they have in common.

    Args:
        scores: Score of each seed, by method.
        higher_is_better: Whether a higher score is better.
        client_scores: Score of each client [clients], by method and seed, if all seeds score the
            same clients and the standing is to hold for clients like these; NaN for clients without
            test examples.
    """
    names = []
    for name, by_seed in scores.items():
        if np.isfinite(list(by_seed.values())).any():
            names.append(name)
    if len(names) < 2:
        return {}
    seeds = sorted({seed for name in names for seed in scores[name]})
    table = np.full((len(seeds), len(names)), math.nan)
    for column, name in enumerate(names):
        for row, seed in enumerate(seeds):
            table[row, column] = scores[name].get(seed, math.nan)
    if not higher_is_better:
        table = -table
    noise = None
    if client_scores is not None:
        noise = compute_client_noise(_stack_client_scores(client_scores, names, seeds))
    return dict(zip(names, _judge_table(table, noise), strict=True))


def describe_standing(standing: Standing, format_score: Callable[[float], str]) -> str:
    """Return the standing in words.

    >>> standing = Standing(Verdict.BEHIND, 1.25, 0.5, 2.0, None)
    >>> describe_standing(standing, "{:.1f}".format)
    'behind the best by 1.2 (0.5 to 2.0)'
    """
    if standing.verdict == Verdict.BEST:
        return "best"
    if standing.verdict == Verdict.MAY_BE_BEST:
        if standing.needs_clients:
            return "cannot tell: more clients would, more seeds would not"
        if standing.more_seeds is None:
            return "cannot tell"
        noun = "seed" if standing.more_seeds == 1 else "seeds"
        return f"cannot tell: about {standing.more_seeds} more {noun} would"
    low = format_score(standing.low)
    interval = f"{low} or more"
    if math.isfinite(standing.high):
        interval = f"{low} to {format_score(standing.high)}"
    if math.isnan(standing.difference):
        return f"behind the best ({interval})"
    return f"behind the best by {format_score(standing.difference)} ({interval})"


def compute_gaps(scores: np.ndarray) -> PairedGaps:
    """Return the differences between methods; `scores` is [..., seeds, methods], NaN if missing."""
    is_present = np.isfinite(scores)
    values = np.where(is_present, scores, 0.0)
    tolerance = _RESOLUTION * np.abs(values).max(axis=(-2, -1))[..., None]
    num_methods = scores.shape[-1]
    shape = (*scores.shape[:-2], num_methods, num_methods)
    gaps = PairedGaps(np.empty(shape), np.empty(shape), np.empty(shape, dtype=int))
    with np.errstate(divide="ignore", invalid="ignore"):
        for method in range(num_methods):
            is_common = is_present & is_present[..., method : method + 1]
            num_common = is_common.sum(axis=-2)
            differences = np.where(is_common, values - values[..., method : method + 1], 0.0)
            means = differences.sum(axis=-2) / num_common
            deviations = np.where(is_common, differences - means[..., None, :], 0.0)
            deviations[np.abs(deviations) <= tolerance[..., None, :]] = 0
            gaps.means[..., method, :] = np.where(np.abs(means) <= tolerance, 0.0, means)
            gaps.variances[..., method, :] = (deviations**2).sum(axis=-2) / (num_common - 1)
            gaps.num_seeds[..., method, :] = num_common
    is_unknown = gaps.num_seeds < MIN_SEEDS
    gaps.variances[is_unknown] = math.nan
    return gaps


def compute_client_noise(scores: np.ndarray) -> ClientNoise:
    """Return the noise that the sample of clients brings to differences between methods.

    Args:
        scores: Scores [..., seeds, methods, clients]; NaN for clients without test examples, and
            for seeds that a method lacks.
    """
    num_methods = scores.shape[-2]
    is_tested = np.isfinite(scores).any(axis=(-3, -2))
    num_clients = int(is_tested.sum(axis=-1).min())
    variances = np.zeros((*scores.shape[:-3], num_methods, num_methods))
    if num_clients < MIN_CLIENTS:
        return ClientNoise(np.full_like(variances, math.inf), num_clients)
    with np.errstate(invalid="ignore"):
        for method in range(num_methods):
            differences = scores - scores[..., method : method + 1, :]
            is_common = np.isfinite(differences)
            num_seeds = is_common.sum(axis=-3)
            sums = np.where(is_common, differences, 0.0).sum(axis=-3)
            has_seeds = num_seeds > 0
            means = sums / np.maximum(num_seeds, 1)
            counts = has_seeds.sum(axis=-1)
            center = np.where(has_seeds, means, 0.0).sum(axis=-1) / np.maximum(counts, 1)
            deviations = np.where(has_seeds, means - center[..., None], 0.0)
            squares = (deviations**2).sum(axis=-1)
            between_clients = squares / np.maximum(counts - 1, 1)
            variances[..., method, :] = between_clients / np.maximum(counts, 1)
    return ClientNoise(variances, num_clients)


def compute_margins(gaps: PairedGaps, noise: ClientNoise | None = None) -> Margins:
    """Return the margins of all pairs of methods.

    Args:
        gaps: Differences between methods.
        noise: Of the sample of clients, if all seeds have the same one.
    """
    num_methods = gaps.means.shape[-1]
    rows, columns = np.triu_indices(num_methods, 1)
    df = gaps.num_seeds - 1
    pair_df = df[..., rows, columns]
    prior = fit_prior(gaps.variances[..., rows, columns], pair_df)
    variances = moderate_variances(gaps.variances, df, prior)
    pooled_df = (num_methods - 1) * np.maximum(pair_df, 0).mean(axis=-1)
    margins = np.full(df.shape, math.inf)
    for num_seeds in np.unique(gaps.num_seeds):
        if num_seeds < MIN_SEEDS:
            continue
        multiples = compute_margin_multiple(num_methods, num_seeds, prior.df, pooled_df)
        pair_margins = multiples[..., None, None] * np.sqrt(variances / num_seeds)
        margins = np.where(gaps.num_seeds == num_seeds, pair_margins, margins)
    if noise is None:
        return Margins(margins, variances, prior)
    client_margins = compute_client_margins(noise)
    return Margins(np.hypot(margins, client_margins), variances, prior, client_margins)


def compute_client_margins(noise: ClientNoise) -> np.ndarray:
    """Return the part of the margins that the sample of clients has, [..., methods, methods].

    With n clients in place of seeds it is the margin of unmoderated variances.
    """
    num_methods = noise.variances.shape[-1]
    df = np.asarray(max(noise.num_clients, MIN_CLIENTS) - 1.0)
    multiple = interpolate_factor(num_methods, df) * compute_t_quantile(T_TAIL, df)
    margins: np.ndarray = multiple * np.sqrt(noise.variances)
    return margins


def compute_low_ends(gaps: PairedGaps, margins: Margins) -> np.ndarray:
    """Return lower bounds of how far methods are behind the best, [..., methods].

    A method with a positive bound is behind.
    """
    bounds = np.where(np.isfinite(margins.margins), gaps.means - margins.margins, -math.inf)
    low_ends: np.ndarray = bounds.max(axis=-1)
    return low_ends


def fit_prior(variances: np.ndarray, df: np.ndarray) -> Prior:
    """Fit the prior of variances to the moments of their logarithms, as limma does.

    With a single variance there is nothing to fit, and the prior has next to no weight.

    Args:
        variances: Sample variances, [..., pairs]; NaN if unknown.
        df: Their degrees of freedom, [..., pairs].
    """
    is_known = np.isfinite(variances)
    scale = _compute_positive_median(variances)
    # Without any variance above 0 all are equal, and the prior has variance 0.
    divisor = np.where(scale > 0, scale, 1.0)[..., None]
    ratios = np.where(variances > 0, variances / divisor, _ZERO_VARIANCE)
    ratios = np.where(is_known & (scale > 0)[..., None], ratios, 1.0)
    half_df = np.where(is_known, df, 1) / 2
    logs = np.log(ratios) - compute_digamma(half_df) + np.log(half_df)
    num_known = np.maximum(is_known.sum(axis=-1), 1)
    means = np.where(is_known, logs, 0.0).sum(axis=-1) / num_known
    squares = np.where(is_known, (logs - means[..., None]) ** 2, 0.0).sum(axis=-1)
    expected = np.where(is_known, compute_trigamma(half_df), 0.0).sum(axis=-1) / num_known
    excess = np.where(num_known > 1, squares / np.maximum(num_known - 1, 1) - expected, math.inf)
    half_prior_df = invert_trigamma(excess)
    log_scale = means + compute_digamma(half_prior_df) - np.log(half_prior_df)
    return Prior(scale * np.exp(log_scale), 2 * half_prior_df)


def moderate_variances(variances: np.ndarray, df: np.ndarray, prior: Prior) -> np.ndarray:
    """Return the variances moderated by the prior, never below themselves.

    Args:
        variances: Sample variances, [..., methods, methods]; NaN if unknown.
        df: Their degrees of freedom, [..., methods, methods].
        prior: Prior of each table.
    """
    prior_df = prior.df[..., None, None]
    total = prior_df * prior.variance[..., None, None] + df * variances
    moderated: np.ndarray = np.fmax(variances, total / (prior_df + df))
    return moderated


def compute_margin_multiple(
    num_methods: int,
    num_seeds: int | np.ndarray,
    prior_df: np.ndarray,
    pooled_df: int | np.ndarray,
) -> np.ndarray:
    """Return how many standard errors the margin of a pair has.

    Args:
        num_methods: Methods in the table.
        num_seeds: Seeds that both methods have, at least 2.
        prior_df: Degrees of freedom of the prior of variances.
        pooled_df: Degrees of freedom of the residuals of methods and seeds. Pairs share their
            methods, so all of them together have no more.
    """
    df = np.asarray(num_seeds) - 1.0
    total_df = np.maximum(np.minimum(prior_df + df, pooled_df), df)
    multiples: np.ndarray = interpolate_factor(num_methods, df) * compute_t_quantile(
        T_TAIL, total_df
    )
    return multiples


def interpolate_factor(num_methods: int, df: np.ndarray) -> np.ndarray:
    """Return factors of margins for pairs with these degrees of freedom, of any shape.

    They are interpolated in the logarithm of the number of methods, extrapolated beyond the last,
    and in the reciprocal of the degrees of freedom.
    """
    logs = np.log(FACTOR_METHODS)
    upper = int(np.clip(np.searchsorted(logs, math.log(num_methods)), 1, len(logs) - 1))
    share = (math.log(num_methods) - logs[upper - 1]) / (logs[upper] - logs[upper - 1])
    factors = (1 - share) * FACTORS[upper - 1] + share * FACTORS[upper]
    # np.interp wants ascending abscissas, and reciprocals of ascending numbers descend.
    reciprocals = 1 / (np.array(FACTOR_SEEDS) - 1)
    return np.asarray(np.interp(1 / df, reciprocals[::-1], factors[::-1]))


def _stack_client_scores(
    client_scores: Mapping[str, Mapping[int, np.ndarray]],
    names: Sequence[str],
    seeds: Sequence[int],
) -> np.ndarray:
    """Return scores [seeds, methods, clients], NaN where a method lacks a seed."""
    all_scores = [values for name in names for values in client_scores[name].values()]
    num_clients = len(all_scores[0])
    stacked = np.full((len(seeds), len(names), num_clients), math.nan)
    for row, seed in enumerate(seeds):
        for column, name in enumerate(names):
            if seed in client_scores[name]:
                stacked[row, column] = client_scores[name][seed]
    return stacked


def _judge_table(scores: np.ndarray, noise: ClientNoise | None) -> list[Standing]:
    """Return the standing of each method from scores [seeds, methods], higher ones better."""
    gaps = compute_gaps(scores)
    margins = compute_margins(gaps, noise)
    low_ends = compute_low_ends(gaps, margins)
    is_behind = low_ends > 0
    if is_behind.all():
        # Methods with different seeds can beat each other in a circle; that decides nothing.
        is_behind[:] = False
    candidates = np.flatnonzero(~is_behind).tolist()
    leader = _find_leader(gaps, candidates)
    more_seeds: dict[int, int | None] = {
        method: _estimate_more_seeds(gaps, margins, method, leader)
        for method in candidates
        if method != leader
    }
    more_seeds[leader] = _take_largest(list(more_seeds.values()))
    needs_clients = {
        method: _is_decided_by_clients(gaps, margins, method, leader)
        for method in candidates
        if method != leader
    }
    needs_clients[leader] = any(needs_clients.values())
    standings = []
    for method in range(scores.shape[1]):
        verdict = Verdict.MAY_BE_BEST
        if is_behind[method]:
            verdict = Verdict.BEHIND
        elif len(candidates) == 1:
            verdict = Verdict.BEST
        standings.append(
            Standing(
                verdict=verdict,
                difference=float(gaps.means[method, leader]),
                low=float(low_ends[method]) if is_behind[method] else 0.0,
                high=_compute_high_end(gaps, margins, method, candidates),
                more_seeds=more_seeds.get(method),
                needs_clients=needs_clients.get(method, False),
            )
        )
    return standings


def _find_leader(gaps: PairedGaps, candidates: list[int]) -> int:
    """Return the candidate that others exceed least: with equal seeds, the one of best mean."""
    largest = np.where(np.isfinite(gaps.means), gaps.means, -math.inf)
    np.fill_diagonal(largest, -math.inf)
    excess = largest.max(axis=1)[candidates]
    # A method without a seed in common with any other leads only if all are like it.
    excess[np.isneginf(excess)] = math.inf
    return candidates[int(np.argmin(excess))]


def _compute_high_end(
    gaps: PairedGaps, margins: Margins, method: int, candidates: list[int]
) -> float:
    """Return an upper bound of how far a method is behind the best, which is a candidate."""
    others = [candidate for candidate in candidates if candidate != method]
    if not others:
        return 0.0
    means = gaps.means[method, others]
    bounds = np.where(np.isfinite(means), means + margins.margins[method, others], math.inf)
    # Scores that agree without any variance are no evidence that the methods do.
    bounds[(means == 0) & (margins.margins[method, others] == 0)] = math.inf
    return max(float(bounds.max()), 0.0)


def _estimate_more_seeds(
    gaps: PairedGaps, margins: Margins, method: int, leader: int
) -> int | None:
    """Return the number of further seeds with which a difference would exceed its margin."""
    num_seeds = int(gaps.num_seeds[method, leader])
    difference = abs(float(gaps.means[method, leader]))
    if num_seeds < MIN_SEEDS or difference == 0:
        return None
    more_seeds = np.unique(np.geomspace(1, MAX_MORE_SEEDS, 100).round())
    num_methods = len(gaps.means)
    totals = num_seeds + more_seeds
    pooled_df = (num_methods - 1) * (totals - 1)
    multiples = compute_margin_multiple(num_methods, totals, margins.prior.df, pooled_df)
    errors = np.sqrt(margins.variances[method, leader] / totals)
    client_margin = _get_client_margin(margins, method, leader)
    decisive = np.flatnonzero(difference > np.hypot(multiples * errors, client_margin))
    if not len(decisive):
        return None
    return int(more_seeds[decisive[0]])


def _is_decided_by_clients(gaps: PairedGaps, margins: Margins, method: int, leader: int) -> bool:
    """Return whether a difference is within the margin of the clients alone."""
    difference = abs(float(gaps.means[method, leader]))
    return 0 < difference <= _get_client_margin(margins, method, leader)


def _get_client_margin(margins: Margins, method: int, leader: int) -> float:
    if isinstance(margins.client_margins, float):
        return margins.client_margins
    return float(margins.client_margins[method, leader])


def _take_largest(numbers: list[int | None]) -> int | None:
    """Return the largest number; None if any is unknown or there are none."""
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    return max(known)


def _compute_positive_median(values: np.ndarray) -> np.ndarray:
    """Return the medians of the positive values along the last axis; 0 where there are none."""
    positives = np.where(values > 0, values, math.nan)
    positives[np.isnan(positives).all(axis=-1)] = 0
    return np.asarray(np.nanmedian(positives, axis=-1))
