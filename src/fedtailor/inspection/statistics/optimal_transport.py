"""The 1-Wasserstein distance between empirical distributions: exact, and sliced for large sets.

    W1(p, q) = min over couplings of p and q of E |a - b|     Euclidean; p, q: points with weights

On a line it is the area between the distribution functions, and slicing needs no more than that.
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
"""Maximum number of points to which unequal sets are copied to match them one to one.

Beyond it a linear program is faster.
"""

MAX_PAIRS = 4_000_000
"""Maximum number of pairs of points of exact distances."""


def wasserstein(
    one: FloatArray,
    other: FloatArray,
    weights: FloatArray | None = None,
    other_weights: FloatArray | None = None,
) -> float:
    """Return W1(p, q) between two weighted sets of points.

    On a line it is the area between the distribution functions. Sets without weights are copied to
    the least common multiple of their sizes, if that is small, and matched: by Birkhoff's theorem
    some coupling of least cost is a matching. Otherwise the coupling comes from a linear program,
    to the solver's relative tolerance of about 1e-7.

    Args:
        one: The points of p, [n, d].
        other: The points of q, [m, d].
        weights: Weights of p's points, [n], in any unit; None: equal ones.
        other_weights: Weights of q's points, [m].
    """
    one, other = _validate_points("wasserstein", one, other)
    one_weights = _normalize_weights("wasserstein", one, weights)
    other_shares = _normalize_weights("wasserstein", other, other_weights)
    if one.shape[1] == 1:
        size = np.array([len(one)])
        distances = wasserstein_1d(one[:, 0], one_weights, size, other[:, 0], other_shares)
        return float(distances[0])
    num_copies = math.lcm(len(one), len(other))
    can_match = len(one) == len(other) or num_copies <= MAX_COPIES
    if weights is None and other_weights is None and can_match:
        return _solve_matching(
            one.repeat(num_copies // len(one), axis=0),
            other.repeat(num_copies // len(other), axis=0),
        )
    return _solve_linear_program(one, other, one_weights, other_shares)


def sliced_wasserstein(
    one: FloatArray,
    other: FloatArray,
    weights: FloatArray | None = None,
    other_weights: FloatArray | None = None,
    *,
    projections: int = 128,
    seed: int = 0,
) -> float:
    """Return SW1(p, q) = mean over directions u of W1(p's points on u, q's points on u).

    It is a metric of its own and at most W1. For points in d dimensions it is about
    sqrt(2 / (pi d)) |t| if q is p moved by t.

    Args:
        one: The points of p, [n, d].
        other: The points of q, [m, d].
        weights: Weights of p's points, [n], in any unit; None: equal ones.
        other_weights: Weights of q's points, [m].
        projections: Number of directions; see `sample_directions`.
        seed: Seed of the directions.
    """
    one, other = _validate_points("sliced_wasserstein", one, other)
    one_weights = _normalize_weights("sliced_wasserstein", one, weights)
    other_shares = _normalize_weights("sliced_wasserstein", other, other_weights)
    size = np.array([len(one)])
    directions = sample_directions(one.shape[1], projections, seed)
    distances = [
        wasserstein_1d(one @ direction, one_weights, size, other @ direction, other_shares)[0]
        for direction in directions
    ]
    return float(np.mean(distances))


def sample_directions(dimensions: int, projections: int, seed: int = 0) -> FloatArray:
    """Draw random unit vectors, uniform on the sphere.

    Args:
        dimensions: Dimensions of the space.
        projections: Number of vectors.
        seed: Seed of a generator of their own.

    Returns:
        The vectors, [projections, dimensions].
    """
    require(
        projections >= 1,
        f"sample_directions: projections must be at least 1, got {projections}.",
    )
    draws = np.random.Generator(np.random.Philox(seed)).standard_normal((projections, dimensions))
    return np.asarray(draws / np.linalg.norm(draws, axis=1, keepdims=True))


def wasserstein_1d(
    values: FloatArray,
    weights: FloatArray,
    sizes: IntArray,
    reference: FloatArray,
    mass: FloatArray,
) -> FloatArray:
    """Return W1 on a line from each of several distributions F_i to one reference F.

    That is the area between F_i and F. Between two neighboring points F_i is a constant c, and F,
    which rises, crosses c at most once, so |c - F| integrates to differences of the integral of F.
    For n points in all this takes O(n log n), however many distributions they belong to.

    Args:
        values: The points of all distributions, one distribution after another, [points].
        weights: Their weights, which sum to 1 for each distribution, [points].
        sizes: Number of points of each distribution, [distributions].
        reference: The points of the reference.
        mass: Their weights, which sum to 1.

    Returns:
        The distances, [distributions].
    """
    offsets = np.append(0, np.cumsum(sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((values, owner))
    values = values[order]
    cumulative_weights = np.append(0, np.cumsum(weights[order]))

    # The reference's distribution function and its integral, on the grid of all points.
    grid, grid_idx = np.unique(np.concatenate([reference, values]), return_inverse=True)
    grid_mass = np.bincount(grid_idx[: len(reference)], mass, minlength=len(grid))
    reference_cdf = np.cumsum(grid_mass)
    integral = np.append(0, np.cumsum(reference_cdf[:-1] * np.diff(grid)))

    # The size + 1 intervals between a distribution's points, and its constant value on each.
    left = np.insert(values, offsets[:-1], grid[0])
    right = np.insert(values, offsets[1:], grid[-1])
    cdf = cumulative_weights[1:] - cumulative_weights[offsets[owner]]
    level = np.insert(cdf, offsets[:-1], 0.0)

    # The reference is below the level left of the crossing, and not below it right of it.
    crossing_idx = np.searchsorted(reference_cdf, level).clip(max=len(grid) - 1)
    crossing = grid[crossing_idx].clip(left, right)
    left_integral = np.interp(left, grid, integral)
    crossing_integral = np.interp(crossing, grid, integral)
    right_integral = np.interp(right, grid, integral)
    level_area = level * (2 * crossing - left - right)
    area = level_area - 2 * crossing_integral + left_integral + right_integral
    interval_owner = np.repeat(np.arange(len(sizes)), sizes + 1)
    return np.asarray(np.bincount(interval_owner, area), np.float64)


def _solve_matching(one: FloatArray, other: FloatArray) -> float:
    """Return the mean distance of the best matching of two sets of equally many points."""
    costs = _pairwise_distances(one, other)
    rows, columns = _import_scipy("optimize").linear_sum_assignment(costs)
    return float(costs[rows, columns].mean())


def _solve_linear_program(
    one: FloatArray, other: FloatArray, weights: FloatArray, other_weights: FloatArray
) -> float:
    """Return the least cost of a coupling [n, m] whose margins are the two sets' weights."""
    sparse = _import_scipy("sparse")
    n = len(one)
    m = len(other)
    costs = _pairwise_distances(one, other).ravel()
    # The solver's tolerances are absolute, so costs and margins are scaled to about 1.
    cost_unit = float(costs.max())
    if cost_unit == 0:
        cost_unit = 1.0
    mass_scale = max(n, m)
    row_sums = sparse.kron(sparse.eye(n), np.ones((1, m)))
    column_sums = sparse.kron(np.ones((1, n)), sparse.eye(m))
    result = _import_scipy("optimize").linprog(
        costs / cost_unit,
        A_eq=sparse.vstack([row_sums, column_sums], format="csr"),
        b_eq=mass_scale * np.concatenate([weights, other_weights]),
        method="highs",
    )
    require(
        result.success,
        "wasserstein: the linear program must have a solution, but SciPy reports: "
        f"{result.message}",
    )
    return float(result.fun) * cost_unit / mass_scale


def _pairwise_distances(one: FloatArray, other: FloatArray) -> FloatArray:
    num_pairs = len(one) * len(other)
    require(
        num_pairs <= MAX_PAIRS,
        f"wasserstein: there may be at most {MAX_PAIRS} pairs of points, got {num_pairs}; "
        "use sliced_wasserstein or fewer points.",
    )
    # By default torch multiplies matrices for large sets, which loses digits of small distances.
    exact_mode = "donot_use_mm_for_euclid_dist"
    distances = torch.cdist(torch.from_numpy(one), torch.from_numpy(other), compute_mode=exact_mode)
    return np.asarray(distances)


def _import_scipy(part: str) -> Any:
    return import_extra(f"scipy.{part}", "analysis", "The exact Wasserstein distance")


def _validate_points(
    function_name: str, one: FloatArray, other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return both sets in double precision; raise an InputError if they cannot be compared."""
    one = np.asarray(one, np.float64)
    other = np.asarray(other, np.float64)
    is_valid = (
        one.ndim == 2
        and other.ndim == 2
        and one.shape[1] == other.shape[1]
        and one.size > 0
        and other.size > 0
    )
    require(
        is_valid,
        f"{function_name}: points must be [n, d] and [m, d], "
        f"got {list(one.shape)} and {list(other.shape)}.",
    )
    return one, other


def _normalize_weights(
    function_name: str, points: FloatArray, weights: FloatArray | None
) -> FloatArray:
    """Return weights that sum to 1; equal ones if there are none."""
    if weights is None:
        return np.full(len(points), 1 / len(points))
    total = weights.sum()
    is_valid = weights.shape == (len(points),) and bool((weights >= 0).all()) and 0 < total < np.inf
    require(
        is_valid,
        f"{function_name}: weights must be {len(points)} finite numbers, one for each point, "
        "none of them negative and some of them positive.",
    )
    return np.asarray(weights / total)
