"""FSL's conditions: sides by hand, what they promise on quadratics, and the paper's own rules for
step sizes.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.errors import InputError
from fedtailor.inspection.statistics import (
    Conditions,
    GradientGaps,
    StepSizes,
    check_fsl_conditions,
)

positive = st.floats(0.05, 20)


def gaps(overall: np.ndarray, own: np.ndarray) -> GradientGaps:
    """What is measured of two gradients."""
    away = own - overall
    return GradientGaps(
        0.0,
        float(away @ away),
        float(overall @ overall),
        float(own @ own),
        float(overall @ own),
        0,
        0,
    )


PAIR = gaps(np.array([3.0, 0.0]), np.array([2.0, 1.0]))


def conditions(measured: GradientGaps = PAIR, /, **given: float) -> Conditions:
    smoothness = given.pop("smoothness", 2.0)
    step_sizes = StepSizes(
        gamma=0.5, lr=0.01, steps=4.0, server_lr=2.0, learn_lr=0.02, learn_steps=4.0
    )
    return check_fsl_conditions(measured, smoothness, step_sizes._replace(**given))


def test_both_sides_by_hand() -> None:
    found = conditions()
    assert found.angle == pytest.approx((12, 2 * 0.5 * 0.02 * 5, True))
    assert found.distance == pytest.approx((9 + (1 - 0.02) * 5, 2, True))
    assert found.equal_steps == pytest.approx((0.08, 0.08, True))
    assert found.small_steps == pytest.approx((0.08, 8 / 9 / 8, True))
    # kappa = max(4/8, 2/4 + 3/4) = 5/4, so that (13) has 1/24 min(1, 2.25 / 2.5) on the right.
    assert found.progress == pytest.approx((0.08, 0.9 / 24, False))


def test_each_bound_of_the_step_matters_in_its_turn() -> None:
    assert conditions(server_lr=0.1).small_steps.right == pytest.approx(0.1 / 8)
    assert conditions(gamma=4).small_steps.right == pytest.approx(1 / 4 / 8)
    assert conditions(gamma=0).small_steps.right == pytest.approx(8 / 9 / 8)
    assert conditions(gamma=0, server_lr=10).progress.right == pytest.approx(1 / 16)
    assert conditions(gamma=3).progress.right == pytest.approx(
        16 / (2 * 108) / 64
    )  # kappa = 4 gamma^3
    assert not conditions(learn_steps=5).equal_steps.is_met
    assert not conditions(smoothness=200).small_steps.is_met
    assert conditions(smoothness=0.5).progress.is_met


vectors = st.lists(st.integers(-6, 6), min_size=3, max_size=3)


@given(vectors, vectors, positive, st.floats(0, 5), positive)
def test_the_two_forms_of_the_angle_condition_are_one(
    a: list[int], b: list[int], smoothness: float, gamma: float, learn_lr: float
) -> None:
    found = conditions(
        gaps(np.array(a), np.array(b)), smoothness=smoothness, gamma=gamma, learn_lr=learn_lr
    )
    by_angle, by_distance = (each.left - each.right for each in (found.angle, found.distance))
    size = 1 + abs(found.angle.right) + abs(found.distance.left)
    assert by_angle == pytest.approx(by_distance, abs=1e-12 * size)
    if abs(by_angle) > 1e-9 * size:
        assert found.angle.is_met == found.distance.is_met == (by_angle > 0)


@given(st.integers(0, 10_000), st.floats(0.01, 3), st.floats(0.1, 2))
def test_a_step_that_meets_the_angle_condition_decreases_the_loss(
    seed: int, learn_lr: float, gamma: float
) -> None:
    """F(w) = w' H w / 2 with L the largest eigenvalue of H, and any direction for the server's
    gradient.
    """
    draws = np.random.default_rng(seed)
    root, w, own = draws.normal(size=(3, 3)), draws.normal(size=3), draws.normal(size=3)
    hessian = root @ root.T
    overall, bend = hessian @ w, float(np.linalg.eigvalsh(hessian)[-1])
    found = conditions(gaps(overall, own), smoothness=bend, gamma=gamma, learn_lr=learn_lr)
    after = w - gamma * learn_lr * own
    if found.angle.is_met:
        assert after @ hessian @ after < w @ hessian @ w
    along = conditions(
        gaps(overall, overall), smoothness=bend, gamma=gamma, learn_lr=1.9 / gamma / bend
    )
    assert along.angle.is_met  # gradient descent at less than 2 / L
    assert not conditions(gaps(overall, -overall), gamma=0).angle.is_met


@given(positive, st.floats(0, 5), positive)
def test_a_step_that_meets_13_makes_theorem_1s_progress(
    smoothness: float, gamma: float, server_lr: float
) -> None:
    """The remark behind (13): then h >= (3 gamma + 1) / 4, h as in theorem 1."""
    bound = conditions(smoothness=smoothness, gamma=gamma, server_lr=server_lr).progress.right
    kappa, pace = max(4 * gamma**3, 2 * server_lr**-2 + 3 * gamma**2), bound * smoothness
    h = gamma + 0.5 - pace * (1 + gamma) / 2 * (3 * gamma + 3 + 16 * kappa * pace)
    assert h >= (3 * gamma + 1) / 4 - 1e-12
    rates = {"smoothness": smoothness, "gamma": gamma, "server_lr": server_lr, "learn_steps": 1.0}
    assert conditions(**rates, learn_lr=0.999 * bound).progress.is_met
    assert not conditions(**rates, learn_lr=1.001 * bound).progress.is_met


@given(st.integers(1, 50), st.integers(1, 90), st.integers(1, 90), st.floats(1e-4, 1))
def test_the_papers_rates_make_the_steps_equal(
    cohort: int, steps: int, learn_steps: int, lr: float
) -> None:
    rate = math.sqrt(cohort)
    learn_lr = rate * lr * steps / learn_steps
    found = conditions(
        lr=lr, steps=steps, server_lr=rate, learn_lr=learn_lr, learn_steps=learn_steps
    )
    assert found.equal_steps.is_met


def test_what_is_out_of_range_is_refused() -> None:
    for name in ("smoothness", "lr", "steps", "server_lr", "learn_lr", "learn_steps"):
        with pytest.raises(InputError, match=f"{name} must be positive"):
            conditions(**{name: 0})
    with pytest.raises(InputError, match="gamma"):
        conditions(gamma=-0.1)
    with pytest.raises(InputError, match="no examples"):
        conditions(GradientGaps(1.0, None, 1.0, None, None, 1.0, None))
