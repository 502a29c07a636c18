"""The 1-Wasserstein distance between empirical distributions: exact for small sets, sliced for large ones.

    W1(p, q) = min over couplings of p and q of E |a - b|                  Euclidean distance; p, q points with weights

On a line it is the area between the distribution functions, and that is all that slicing needs.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtailor.errors import import_extra, require

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_COPIES = 200
"""Unequal sets are matched one to one if at most so many points make them equal; a linear program is faster beyond."""
MAX_PAIRS = 4_000_000
"""Beyond so many pairs of points the exact distance is refused."""


def wasserstein(
    one: FloatArray,
    other: FloatArray,
    weights: FloatArray | None = None,
    other_weights: FloatArray | None = None,
) -> float:
    """W1(p, q) exactly, for p at the rows of `one` [n, d] and q at the rows of `other` [m, d].

    `weights` are p's and `to` q's, in any unit; without them the rows of a set weigh alike. On a line it is the area
    between the distribution functions. Sets of rows that weigh alike are copied to the least common multiple of their
    sizes and matched (by Birkhoff's theorem some coupling of least cost is a matching), if that is small; otherwise
    the coupling is found as a linear program, to the solver's relative tolerance of about 1e-7.
    """
    one, other = _validate_points("wasserstein", one, other)
    p_weights, q_weights = (
        _normalize_weights("wasserstein", one, weights),
        _normalize_weights("wasserstein", other, other_weights),
    )
    if one.shape[1] == 1:
        return float(
            wasserstein_1d(one[:, 0], p_weights, np.array([len(one)]), other[:, 0], q_weights)[0]
        )
    alike, copies = weights is None and other_weights is None, math.lcm(len(one), len(other))
    if alike and (len(one) == len(other) or copies <= MAX_COPIES):
        return _solve_matching(
            one.repeat(copies // len(one), axis=0), other.repeat(copies // len(other), axis=0)
        )
    return _solve_linear_program(one, other, p_weights, q_weights)


def sliced_wasserstein(
    one: FloatArray,
    other: FloatArray,
    weights: FloatArray | None = None,
    other_weights: FloatArray | None = None,
    *,
    projections: int = 128,
    seed: int = 0,
) -> float:
    """SW1(p, q) = mean over directions u of W1(p's points on u, q's points on u); see `directions` for these.

    A metric of its own, at most W1. For points in d dimensions it is about sqrt(2 / (pi d)) |t| if q is p moved by t.
    """
    one, other = _validate_points("sliced_wasserstein", one, other)
    p_weights, q_weights = (
        _normalize_weights("sliced_wasserstein", one, weights),
        _normalize_weights("sliced_wasserstein", other, other_weights),
    )
    size, lines = np.array([len(one)]), sample_directions(one.shape[1], projections, seed)
    return float(
        np.mean(
            [
                wasserstein_1d(one @ line, p_weights, size, other @ line, q_weights)[0]
                for line in lines
            ]
        )
    )


def sample_directions(dimensions: int, projections: int, seed: int = 0) -> FloatArray:
    """Unit vectors [projections, dimensions], uniform on the sphere: normal draws of the seed's own generator."""
    require(projections >= 1, f"directions: projections must be at least 1, got {projections}.")
    draws = np.random.Generator(np.random.Philox(seed)).standard_normal((projections, dimensions))
    return np.asarray(draws / np.linalg.norm(draws, axis=1, keepdims=True))


def wasserstein_1d(
    values: FloatArray,
    weights: FloatArray,
    sizes: IntArray,
    reference: FloatArray,
    mass: FloatArray,
) -> FloatArray:
    """W1 on a line from each of several distributions F_i to one reference F: the areas between F_i and F.

    `values` and `weights` hold the points of one after another, `sizes` how many each has; every one's weights sum to
    1, as does `mass`, the reference's. Between two neighboring points F_i is a constant c, and F, which rises, crosses
    c once, so |c - F| integrates to differences of the integral of F. For n points in all that is O(n log n), however
    many distributions they belong to.
    """
    owner, ends = np.repeat(np.arange(len(sizes)), sizes), np.append(0, np.cumsum(sizes))
    order = np.lexsort((values, owner))
    values, risen = values[order], np.append(0, np.cumsum(weights[order]))
    grid, grid_idx = np.unique(np.concatenate([reference, values]), return_inverse=True)
    heights = np.cumsum(np.bincount(grid_idx[: len(reference)], mass, minlength=len(grid)))
    areas = np.append(0, np.cumsum(heights[:-1] * np.diff(grid)))
    left, right = np.insert(values, ends[:-1], grid[0]), np.insert(values, ends[1:], grid[-1])
    level = np.insert(risen[1:] - risen[ends[owner]], ends[:-1], 0.0)
    crossing = grid[np.searchsorted(heights, level).clip(max=len(grid) - 1)].clip(left, right)
    below, turn, above = (np.interp(at, grid, areas) for at in (left, crossing, right))
    between = level * (2 * crossing - left - right) - 2 * turn + below + above
    return np.asarray(np.bincount(np.repeat(np.arange(len(sizes)), sizes + 1), between), np.float64)


def _solve_matching(one: FloatArray, other: FloatArray) -> float:
    """Equally many points of equal weight: the best matching."""
    costs = _pairwise_distances(one, other)
    return float(costs[_import_scipy("optimize").linear_sum_assignment(costs)].mean())


def _solve_linear_program(
    one: FloatArray, other: FloatArray, weights: FloatArray, other_weights: FloatArray
) -> float:
    """The linear program over couplings [n, m] with these margins; in units in which all numbers are about 1."""
    sparse = _import_scipy("sparse")
    n, m = len(one), len(other)
    costs, points = _pairwise_distances(one, other).ravel(), max(n, m)
    unit = float(costs.max()) or 1.0
    rows, columns = (
        sparse.kron(sparse.eye(n), np.ones((1, m))),
        sparse.kron(np.ones((1, n)), sparse.eye(m)),
    )
    margins, sums = (
        sparse.vstack([rows, columns], format="csr"),
        points * np.concatenate([weights, other_weights]),
    )
    found = _import_scipy("optimize").linprog(costs / unit, A_eq=margins, b_eq=sums, method="highs")
    require(
        found.success,
        f"wasserstein: the linear program must have a solution, but SciPy says: {found.message}",
    )
    return float(found.fun) * unit / points


def _pairwise_distances(one: FloatArray, other: FloatArray) -> FloatArray:
    pairs = len(one) * len(other)
    advice = "use sliced_wasserstein or fewer points"
    require(
        pairs <= MAX_PAIRS,
        f"wasserstein: at most {MAX_PAIRS} pairs of points, got {pairs}; {advice}.",
    )
    exactly = "donot_use_mm_for_euclid_dist"
    return np.asarray(
        torch.cdist(torch.from_numpy(one), torch.from_numpy(other), compute_mode=exactly)
    )


def _import_scipy(part: str) -> Any:
    return import_extra(f"scipy.{part}", "analysis", "The exact Wasserstein distance")


def _validate_points(
    function_name: str, one: FloatArray, other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    fits = one.ndim == other.ndim == 2 and one.shape[1] == other.shape[1]
    shapes = f"{list(one.shape)} and {list(other.shape)}"
    require(
        fits and one.size > 0 and other.size > 0,
        f"{function_name}: points must be [n, d] and [m, d], got {shapes}.",
    )
    return one, other


def _normalize_weights(
    function_name: str, points: FloatArray, weights: FloatArray | None
) -> FloatArray:
    """Weights that sum to 1."""
    if weights is None:
        return np.full(len(points), 1 / len(points))
    fits = (
        weights.shape == (len(points),)
        and bool((weights >= 0).all())
        and 0 < weights.sum() < np.inf
    )
    require(
        fits,
        f"{function_name}: weights must be one for each of {len(points)} points, none negative, some positive.",
    )
    return np.asarray(weights / weights.sum())
