"""Digamma, trigamma and its inverse, and quantiles of Student's t, on arrays, in NumPy alone.

SciPy, which has all of them, is no requirement of the package; the tests compare with it.
"""

import math
from statistics import NormalDist

import numpy as np

_SHIFT = 8
"""The recurrences raise arguments by this much before their asymptotic series are used."""
_NUM_BISECTIONS = 60
_MIN_ARGUMENT = 5e-4
_MAX_ARGUMENT = 5e5
_NUM_NEWTON_STEPS = 12
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)

_lgamma = np.vectorize(math.lgamma, otypes=[float])


def compute_digamma(x: np.ndarray) -> np.ndarray:
    """Return the derivative of log gamma at positive arguments."""
    reciprocals = np.zeros_like(x, dtype=float)
    for step in range(_SHIFT):
        reciprocals += 1 / (x + step)
    shifted = x + _SHIFT
    inverse = shifted**-2.0
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse / 252))
    digamma: np.ndarray = np.log(shifted) - 0.5 / shifted - series - reciprocals
    return digamma


def compute_trigamma(x: np.ndarray) -> np.ndarray:
    """Return the second derivative of log gamma at positive arguments."""
    squares = np.zeros_like(x, dtype=float)
    for step in range(_SHIFT):
        squares += (x + step) ** -2.0
    shifted = x + _SHIFT
    inverse = shifted**-2.0
    series = inverse * (1 / 6 - inverse * (1 / 30 - inverse / 42)) / shifted
    trigamma: np.ndarray = 1 / shifted + 0.5 * inverse + series + squares
    return trigamma


def invert_trigamma(values: np.ndarray) -> np.ndarray:
    """Return the arguments, within [5e-4, 5e5], at which trigamma has these values.

    A value that trigamma has only beyond the range gives its nearer end: one that is not positive
    gives 5e5.
    """
    low = np.full(np.shape(values), math.log(_MIN_ARGUMENT))
    high = np.full(np.shape(values), math.log(_MAX_ARGUMENT))
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2
        is_above = compute_trigamma(np.exp(middle)) > values
        low = np.where(is_above, middle, low)
        high = np.where(is_above, high, middle)
    return np.asarray(np.exp((low + high) / 2))


def compute_t_quantile(tail: float, df: np.ndarray) -> np.ndarray:
    """Return what Student's t exceeds with probability `tail`, from 0.02 to 0.5.

    The distribution function is integrated by Gauss-Legendre quadrature. It is concave for positive
    t, so Newton's steps rise to the quantile from the normal distribution's, which is below it.

    Args:
        tail: Probability above the quantile.
        df: Degrees of freedom, at least 1 and finite, of any shape.
    """
    log_norm = _lgamma((df + 1) / 2) - _lgamma(df / 2) - 0.5 * np.log(df * math.pi)
    t = np.full(np.shape(df), NormalDist().inv_cdf(1 - tail))
    for _ in range(_NUM_NEWTON_STEPS):
        points = t[..., None] * (_NODES + 1) / 2
        densities = _compute_t_density(points, df[..., None], log_norm[..., None])
        area = t / 2 * (densities @ _WEIGHTS)
        t = t + (0.5 - tail - area) / _compute_t_density(t, df, log_norm)
    return t


def _compute_t_density(t: np.ndarray, df: np.ndarray, log_norm: np.ndarray) -> np.ndarray:
    density: np.ndarray = np.exp(log_norm - (df + 1) / 2 * np.log1p(t**2 / df))
    return density
