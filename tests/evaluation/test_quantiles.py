import numpy as np
import pytest
from scipy import special, stats

from fedtailor.evaluation.quantiles import (
    compute_digamma,
    compute_t_quantile,
    compute_trigamma,
    invert_trigamma,
)

ARGUMENTS = np.geomspace(5e-4, 5e5, 500)


def test_digamma_and_trigamma_are_scipys() -> None:
    np.testing.assert_allclose(
        compute_digamma(ARGUMENTS), special.digamma(ARGUMENTS), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(
        compute_trigamma(ARGUMENTS), special.polygamma(1, ARGUMENTS), rtol=1e-9
    )


def test_trigamma_is_inverted() -> None:
    inverted = invert_trigamma(special.polygamma(1, ARGUMENTS))
    np.testing.assert_allclose(inverted, ARGUMENTS, rtol=1e-8)


def test_values_that_trigamma_has_beyond_the_range_give_its_ends() -> None:
    ends = invert_trigamma(np.array([-1.0, 0.0, 1e9, np.inf]))
    np.testing.assert_allclose(ends, [5e5, 5e5, 5e-4, 5e-4], rtol=1e-8)


@pytest.mark.parametrize("tail", [0.02, 0.05, 0.3])
def test_quantiles_of_student_are_scipys(tail: float) -> None:
    df = np.concatenate([[1.0, 2.0, 3.5], np.geomspace(1, 1e6, 200)])
    np.testing.assert_allclose(compute_t_quantile(tail, df), stats.t.isf(tail, df), rtol=1e-7)
    assert compute_t_quantile(tail, np.full((2, 3), 4.0)).shape == (2, 3)
    assert compute_t_quantile(tail, np.array(4.0)) == pytest.approx(stats.t.isf(tail, 4))
