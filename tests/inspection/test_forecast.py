"""Forecasts from scores of trials, against SciPy's intervals and cases worked out by hand."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from fedtailor.inspection.forecast import (
    Estimate,
    Verdict,
    extrapolate_gain,
    forecast_stage,
    select_contenders,
)
from fedtailor.inspection.workload import (
    MAX_TRIALS,
    MIN_ROUNDS,
    MIN_TRIALS,
    Work,
    plan_workload,
)

KINDS = (False, False, True, True)


def draw_scores(
    gains: tuple[float, ...], trials: int = 6, std: float = 0.01
) -> NDArray[np.float64]:
    """Scores around 0.7 whose trials have an effect of their own."""
    rng = np.random.default_rng(0)
    effects = rng.normal(0.7, 0.1, (trials, 1))
    return np.asarray(effects + gains + rng.normal(0, std, (trials, len(gains))))


def test_an_interval_of_one_pair_is_that_of_the_paired_t_test() -> None:
    scores = draw_scores((0.0, 0.02))
    estimate = forecast_stage(scores, (False, True), client_ratio=0.0).estimates[1]
    test = stats.ttest_rel(scores[:, 1], scores[:, 0]).confidence_interval(0.95)
    likely = stats.ttest_rel(scores[:, 1], scores[:, 0]).confidence_interval(0.6)
    assert estimate is not None
    assert estimate.gain == pytest.approx((scores[:, 1] - scores[:, 0]).mean())
    assert (estimate.low, estimate.high) == pytest.approx(tuple(test), abs=2e-4)
    assert (estimate.likely_low, estimate.likely_high) == pytest.approx(tuple(likely), abs=2e-4)


@pytest.mark.parametrize(("unseen", "ratio"), [(math.inf, 0.0), (2, 1.0), (8, 0.25)])
def test_the_interval_has_the_gain_of_unseen_clients_as_often_as_it_says(
    unseen: float, ratio: float
) -> None:
    rng = np.random.default_rng(1)
    hits = []
    for _ in range(400):
        # Trials of two clients, whose gains vary; unseen clients are others like them.
        scores = rng.normal(0.7, 0.02, (5, 4)) + np.array([0.0, -0.2, 0.03, 0.01])
        estimates = forecast_stage(scores, KINDS, client_ratio=ratio).estimates
        for gain, estimate in zip((0.03, 0.01), estimates[2:], strict=True):
            deviation = 0.02 * math.sqrt(2) * math.sqrt(2 / unseen)
            assert estimate is not None
            hits.append(estimate.low <= rng.normal(gain, deviation) <= estimate.high)
    assert 0.94 <= np.mean(hits) <= 0.995


def test_gains_are_over_the_best_setting_without_server_data() -> None:
    forecast = forecast_stage(draw_scores((0.0, 0.09, 0.05, 0.13)), KINDS)
    assert forecast.reference == 1
    assert forecast.best == 3
    assert forecast.verdict == Verdict.HELPS
    gains = [estimate.gain for estimate in forecast.estimates if estimate is not None]
    assert gains == pytest.approx([-0.09, 0, -0.04, 0.04], abs=0.02)


@pytest.mark.parametrize(
    ("gain", "std", "verdict"),
    [
        (0.05, 0.01, Verdict.HELPS),
        (-0.05, 0.01, Verdict.HARMS),
        (0.0, 0.001, Verdict.NO_DIFFERENCE),
    ],
)
def test_verdicts_follow_from_intervals(gain: float, std: float, verdict: Verdict) -> None:
    scores = draw_scores((0.0, gain), std=std)
    assert forecast_stage(scores, (False, True)).verdict == verdict


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (Estimate(0.7, 0.03, -0.01, 0.07, 0.01, 0.05), Verdict.PROBABLY_HELPS),
        (Estimate(0.7, -0.03, -0.07, 0.01, -0.05, -0.01), Verdict.PROBABLY_HARMS),
        (Estimate(0.7, 0.01, -0.05, 0.07, -0.01, 0.03), Verdict.CANNOT_TELL),
        (Estimate(0.7, 0.001, -0.009, 0.009, 0.0005, 0.002), Verdict.NO_DIFFERENCE),
        (Estimate(0.7, 0.001, -0.02, 0.02, 0.0005, 0.002), Verdict.PROBABLY_NO_DIFFERENCE),
    ],
)
def test_words_between_certain_ones(estimate: Estimate, verdict: Verdict) -> None:
    assert estimate.verdict == verdict


def test_a_model_that_diverges_is_never_the_best_and_ends_nothing() -> None:
    scores = draw_scores((0.0, 0.01, 0.05, 0.3))
    scores[4, 3] = -math.inf
    forecast = forecast_stage(scores, KINDS)
    assert forecast.best == 2
    assert forecast.estimates[3] is None
    scores[:, 2:] = -math.inf
    assert forecast_stage(scores, KINDS).best is None
    assert forecast_stage(scores, KINDS).verdict == Verdict.CANNOT_TELL
    scores[0] = -math.inf
    assert forecast_stage(scores, KINDS).reference is None


def test_settings_that_were_left_out_are_compared_on_the_trials_that_they_have() -> None:
    scores = draw_scores((0.0, 0.02, 0.05, 0.01))
    scores[3:, [0, 3]] = math.nan
    forecast = forecast_stage(scores, KINDS)
    assert (forecast.reference, forecast.best) == (1, 2)
    late = forecast.estimates[3]
    assert late is not None
    assert late.gain == pytest.approx((scores[:3, 3] - scores[:3, 1]).mean())
    assert select_contenders(forecast, KINDS) == {1, 2, 3}


def test_an_error_is_gained_in_parts_of_itself() -> None:
    scores = np.array([[-2.0, -1.0], [-2.1, -1.05], [-1.9, -0.95]])
    estimate = forecast_stage(scores, (False, True)).estimates[1]
    assert estimate is not None
    assert estimate.gain == pytest.approx(0.5)


def test_a_single_trial_tells_no_sign() -> None:
    forecast = forecast_stage(np.array([[0.7, 0.9]]), (False, True))
    assert forecast.verdict == Verdict.CANNOT_TELL


def test_after_a_part_of_a_run_gains_are_expected_to_shrink_and_losses_to_stay() -> None:
    assert extrapolate_gain(0.08, 0.25) == pytest.approx(0.02)
    assert extrapolate_gain(-0.08, 0.25) == -0.08
    scores = draw_scores((0.0, 0.04, -0.04), std=0.001)
    kinds = (False, True, True)
    whole = forecast_stage(scores, kinds).estimates
    part = forecast_stage(scores, kinds, run_share=0.5).estimates
    assert part[2] == whole[2]
    assert whole[1] is not None
    assert part[1] is not None
    assert part[1].gain == pytest.approx(whole[1].gain / 2)
    assert part[1].low == pytest.approx(whole[1].low - whole[1].gain / 2)
    assert part[1].high == pytest.approx(whole[1].high)


def test_a_short_run_is_tried_whole_and_a_long_one_in_part() -> None:
    quick = [Work(0.001, 0.01)] * 8
    short = plan_workload(quick, 50, 30.0)
    assert short.num_rounds == 50
    assert short.num_trials == MAX_TRIALS
    long = plan_workload(quick, 5000, 30.0)
    assert long.num_trials == MIN_TRIALS
    assert MIN_ROUNDS < long.num_rounds < 5000
    assert long.seconds == pytest.approx(30.0, rel=0.02)
    slow = plan_workload([Work(2.0, 5.0)] * 8, 500, 30.0)
    assert (slow.num_trials, slow.num_rounds) == (MIN_TRIALS, MIN_ROUNDS)
    assert slow.seconds > 600
    assert plan_workload([Work(2.0, 5.0)] * 8, 10, 30.0).num_rounds == 10
