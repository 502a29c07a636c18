import importlib.util
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import optimize, special, stats

from fedtailor.evaluation import ranking
from fedtailor.evaluation.ranking import (
    Standing,
    Verdict,
    compare_with_best,
    compute_client_noise,
    compute_gaps,
    compute_low_ends,
    compute_margins,
    describe_standing,
    fit_prior,
    interpolate_factor,
)

ROOT = Path(__file__).parents[2]
Scores = dict[str, dict[int, float]]


def as_scores(table: np.ndarray) -> Scores:
    """The scores [seeds, methods] as the library wants them; methods are named m0, m1, ..."""
    return {
        f"m{column}": {seed: float(value) for seed, value in enumerate(table[:, column])}
        for column in range(table.shape[1])
    }


def random_table(seeds: int, methods: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, seeds, methods])
    common = 10 * rng.standard_normal((seeds, 1))
    return 3 * rng.standard_normal(methods) + common + rng.standard_normal((seeds, methods))


def limma_by_hand(variances: list[float], df: int) -> tuple[float, float]:
    """Prior variance and degrees of freedom by Smyth (2004), section 6.2, of equal df."""
    e = [math.log(v) - special.digamma(df / 2) + math.log(df / 2) for v in variances]
    excess = float(np.var(e, ddof=1)) - float(special.polygamma(1, df / 2))
    if excess <= 0:
        return math.exp(np.mean(e)), math.inf
    prior_df = 2 * optimize.brentq(lambda x: special.polygamma(1, x) - excess, 1e-4, 1e6)
    log_scale = np.mean(e) + special.digamma(prior_df / 2) - math.log(prior_df / 2)
    return math.exp(log_scale), prior_df


def margins_by_hand(table: np.ndarray) -> np.ndarray:
    """Margins [methods, methods] of a complete table, by the formula in the module's docstring."""
    seeds, methods = table.shape
    df = seeds - 1
    own = np.array(
        [
            [np.var(table[:, j] - table[:, i], ddof=1) for j in range(methods)]
            for i in range(methods)
        ]
    )
    prior_variance, prior_df = 1.0, 0.0
    if methods > 2:
        pairs = [own[i, j] for i in range(methods) for j in range(i)]
        prior_variance, prior_df = limma_by_hand(pairs, df)
    weight = 1.0 if math.isinf(prior_df) else prior_df / (prior_df + df)
    variances = np.maximum(own, weight * prior_variance + (1 - weight) * own)
    t = stats.t.isf(0.02, min(prior_df + df, (methods - 1) * df))
    factor = interpolate_factor(methods, np.array(df))
    return np.asarray(factor * t * np.sqrt(variances / seeds))


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("distance", [0.0, 0.5, 100.0])
def test_two_methods_are_compared_by_a_paired_t_test(seeds: int, distance: float) -> None:
    table = random_table(seeds, 2)
    table[:, 0] += distance + table[:, 1].mean() - table[:, 0].mean()
    found = compare_with_best(as_scores(table))
    lead = np.sort(table.mean(0))[1] - np.sort(table.mean(0))[0]
    error = np.std(table[:, 1] - table[:, 0], ddof=1) / math.sqrt(seeds)
    margin = stats.t.isf(0.045, seeds - 1) * error
    worse = found[f"m{table.mean(0).argmin()}"]
    assert worse.difference == pytest.approx(lead)
    assert (lead > margin) == (distance == 100)
    if lead > margin:
        assert worse.verdict == Verdict.BEHIND
        assert worse.low == pytest.approx(lead - margin, abs=3e-3 * margin)
        assert worse.high == pytest.approx(lead + margin, abs=3e-3 * margin)
        assert found[f"m{table.mean(0).argmax()}"].verdict == Verdict.BEST
    else:
        assert {standing.verdict for standing in found.values()} == {Verdict.MAY_BE_BEST}
        assert worse.high == pytest.approx(lead + margin, abs=3e-3 * margin)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("methods", [2, 3, 4, 9])
@pytest.mark.parametrize("seed", [0, 1])
def test_margins_are_those_of_the_formula(seeds: int, methods: int, seed: int) -> None:
    table = random_table(seeds, methods, seed)
    if seed:
        table[:, 0] += 20 * np.random.default_rng(1).standard_normal(seeds)
    found = compute_margins(compute_gaps(table)).margins
    off = ~np.eye(methods, dtype=bool)
    np.testing.assert_allclose(found[off], margins_by_hand(table)[off], rtol=1e-5)


def test_gaps_of_tables_with_missing_scores_are_of_common_seeds() -> None:
    table = random_table(6, 5)
    is_missing = np.random.default_rng(3).random(table.shape) < 0.4
    table[is_missing] = math.nan
    found = compute_gaps(table)
    for i in range(5):
        for j in range(5):
            differences = [b - a for a, b in table[:, [i, j]] if math.isfinite(b - a)]
            assert found.num_seeds[i, j] == len(differences)
            if differences:
                assert found.means[i, j] == pytest.approx(np.mean(differences))
            if len(differences) > 1:
                assert found.variances[i, j] == pytest.approx(np.var(differences, ddof=1))
            else:
                assert math.isnan(found.variances[i, j])


def test_several_tables_at_once_are_each_by_itself() -> None:
    tables = np.stack([random_table(4, 5, seed) for seed in range(3)])
    tables[1, 2, 3] = math.nan
    found = compute_margins(compute_gaps(tables)).margins
    for number in range(3):
        alone = compute_margins(compute_gaps(tables[number])).margins
        np.testing.assert_allclose(found[number], alone, rtol=1e-9)


@pytest.mark.parametrize("prior_df", [3.0, 10.0])
def test_the_prior_of_many_variances_is_what_they_were_drawn_from(prior_df: float) -> None:
    rng = np.random.default_rng(5)
    true = 7 * prior_df / rng.chisquare(prior_df, 100_000)
    df = rng.integers(1, 6, len(true))
    found = fit_prior(true * rng.chisquare(df) / df, df)
    assert found.df == pytest.approx(prior_df, rel=0.1)
    assert found.variance == pytest.approx(7, rel=0.05)


def test_equal_variances_have_a_prior_of_many_degrees_of_freedom() -> None:
    df = np.full(100_000, 2)
    found = fit_prior(7 * np.random.default_rng(0).chisquare(2, len(df)) / 2, df)
    assert found.df > 100
    assert found.variance == pytest.approx(7, rel=0.05)


def test_the_own_variance_of_a_wild_method_is_kept() -> None:
    table = random_table(3, 8)
    table[:, 0] += [0.0, 40.0, -30.0]
    gaps = compute_gaps(table)
    variances = compute_margins(gaps).variances
    np.testing.assert_array_equal(variances[0, 1:], gaps.variances[0, 1:])
    assert (variances >= gaps.variances).all()
    assert (variances[1:, 1:] > gaps.variances[1:, 1:]).sum() > 20


def test_standings_are_coherent() -> None:
    verdicts = set()
    for seed in range(60):
        table = random_table(3 + seed % 4, 2 + seed % 7, seed)
        table[:, 0] += (seed % 3) * 8
        found = compare_with_best(as_scores(table))
        means = table.mean(0)
        is_candidate = [found[name].verdict != Verdict.BEHIND for name in found]
        assert is_candidate[means.argmax()]
        for column, standing in enumerate(found.values()):
            verdicts.add(standing.verdict)
            assert standing.difference == pytest.approx(means.max() - means[column])
            assert 0 <= standing.low <= standing.difference + 1e-12
            assert standing.difference <= standing.high + 1e-12
            assert (standing.low > 0) == (standing.verdict == Verdict.BEHIND)
            if standing.verdict == Verdict.BEST:
                assert sum(is_candidate) == 1
                assert standing.high == 0
            if standing.verdict == Verdict.MAY_BE_BEST:
                assert sum(is_candidate) > 1
                assert standing.high > 0
    assert verdicts == set(Verdict)


def test_what_all_scores_have_in_common_does_not_matter() -> None:
    table = random_table(4, 6)
    moved = 100 * (table + np.array([[3.0], [-20.0], [0.5], [7.0]]))
    before = compare_with_best(as_scores(table))
    after = compare_with_best(as_scores(moved))
    for name, standing in before.items():
        assert after[name].verdict == standing.verdict
        assert after[name].more_seeds == standing.more_seeds
        assert after[name][1:4] == pytest.approx([100 * value for value in standing[1:4]])


def test_lower_can_be_better() -> None:
    table = random_table(4, 6)
    found = compare_with_best(as_scores(-table), higher_is_better=False)
    assert found == compare_with_best(as_scores(table))


def test_a_method_is_not_marked_because_its_seeds_vary() -> None:
    """97.7 +- 0.2 stands above 96.9 +- 1.4; varying more makes a method no better than others."""
    steady = np.array([97.5, 97.7, 97.9])
    others = {f"m{i}": 95 + 0.2 * np.roll([-1.0, 0.0, 1.0], i) for i in range(5)}

    def judge(last: np.ndarray) -> Standing:
        columns = np.stack([steady, *others.values(), last], axis=1)
        return compare_with_best(as_scores(columns))["m6"]

    wild = judge(96.9 + 1.4 * np.array([1.0, -1.0, 0.0]))
    assert wild.verdict == Verdict.MAY_BE_BEST
    assert wild.more_seeds is not None
    assert describe_standing(wild, "{:.1f}".format).startswith("cannot tell: about ")
    assert judge(96.9 + 0.1 * np.array([1.0, -1.0, 0.0])).verdict == Verdict.BEHIND


@pytest.mark.parametrize("methods", [2, 4, 7])
@pytest.mark.parametrize("seed", range(4))
def test_more_seeds_would_decide_if_nothing_else_changed(methods: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((3, methods)) + 0.9 * np.arange(methods)
    found = compare_with_best(as_scores(table))
    leader = int(table.mean(0).argmax())
    margins = compute_margins(compute_gaps(table))
    prior_df = 0.0 if methods == 2 else float(margins.prior.df)

    def is_decided(method: int, seeds: int) -> bool:
        t = stats.t.isf(0.02, min(prior_df + seeds - 1, (methods - 1) * (seeds - 1)))
        factor = interpolate_factor(methods, np.array(seeds - 1))
        error = math.sqrt(margins.variances[method, leader] / seeds)
        return bool(np.ptp(table.mean(0)[[method, leader]]) > factor * t * error)

    needed = []
    for method in range(methods):
        standing = found[f"m{method}"]
        if standing.verdict == Verdict.BEHIND or method == leader:
            continue
        assert standing.more_seeds is not None
        needed.append(standing.more_seeds)
        assert is_decided(method, 3 + standing.more_seeds)
        assert not is_decided(method, 3 + int(0.9 * standing.more_seeds))
    assert found[f"m{leader}"].more_seeds == max(needed, default=None)


def test_a_hopeless_difference_names_no_seeds() -> None:
    table = np.array([[0.0, 1.0001], [1.0, 0.0], [0.0, 0.0]])
    found = compare_with_best(as_scores(table))
    assert {standing.more_seeds for standing in found.values()} == {None}
    assert {standing.verdict for standing in found.values()} == {Verdict.MAY_BE_BEST}


@pytest.mark.parametrize("value", [100.0, 0.1, 0.0])
@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_a_tie_is_no_evidence_of_equality(value: float, seeds: int) -> None:
    found = compare_with_best(as_scores(np.full((seeds, 3), value)))
    expected = Standing(Verdict.MAY_BE_BEST, 0.0, 0.0, math.inf, None)
    assert list(found.values()) == [expected] * 3
    assert describe_standing(expected, "{:.1f}".format) == "cannot tell"


def test_saturated_methods_are_told_from_worse_ones_but_not_from_each_other() -> None:
    table = np.array([[100.0, 100.0, 98.0, 97.0], [100, 100, 98.4, 97], [100, 100, 98.2, 97]])
    found = compare_with_best(as_scores(table))
    verdicts = [standing.verdict for standing in found.values()]
    assert verdicts == [Verdict.MAY_BE_BEST] * 2 + [Verdict.BEHIND] * 2
    assert 0 < found["m0"].high < 1
    assert found["m0"].more_seeds is None


def test_differences_that_never_vary_are_believed() -> None:
    """In binary 0.3 - 0.1 and 0.7 - 0.5 differ, which is no variance between seeds."""
    table = np.array([[0.3, 0.1], [0.7, 0.5], [0.9, 0.7]])
    found = compare_with_best(as_scores(table))
    assert found["m0"] == Standing(Verdict.BEST, 0.0, 0.0, 0.0, None)
    assert found["m1"].verdict == Verdict.BEHIND
    assert found["m1"][1:4] == pytest.approx((0.2, 0.2, 0.2))
    # Neither do 0.3 and 0.1 + 0.2 differ.
    near = compare_with_best(as_scores(np.array([[0.3, 0.1 + 0.2], [0.6, 0.6], [0.9, 0.9]])))
    assert {standing.verdict for standing in near.values()} == {Verdict.MAY_BE_BEST}
    assert {standing.high for standing in near.values()} == {math.inf}


def test_one_seed_says_nothing() -> None:
    found = compare_with_best(as_scores(np.array([[1.0, 2.0, 5.0]])))
    assert [standing.difference for standing in found.values()] == [4.0, 3.0, 0.0]
    for standing in found.values():
        assert standing.verdict == Verdict.MAY_BE_BEST
        assert standing[2:] == (0.0, math.inf, None, False)


def test_there_is_no_best_of_fewer_than_two() -> None:
    assert compare_with_best({}) == {}
    assert compare_with_best({"a": {0: 1.0, 1: 2.0}}) == {}
    assert compare_with_best({"a": {0: 1.0, 1: 2.0}, "b": {}, "c": {0: math.nan}}) == {}


def test_scores_that_are_not_finite_are_missing() -> None:
    table = random_table(5, 4)
    scores = as_scores(table)
    del scores["m1"][2]
    scores["m3"].pop(0)
    other = as_scores(table)
    other["m1"][2] = math.nan
    other["m3"][0] = -math.inf
    other["diverged"] = dict.fromkeys(range(5), math.nan)
    assert compare_with_best(other) == compare_with_best(scores)


def test_a_method_without_common_seeds_stays_open() -> None:
    steady = np.array([[5.0, 1.0], [5.1, 1.0], [5.0, 1.1], [5.1, 1.2]])
    scores = as_scores(steady)
    scores["other"] = {7: 9.0, 8: 9.0}
    scores["short"] = {0: 3.0}
    found = compare_with_best(scores)
    for name in ("m0", "other", "short"):
        assert found[name].verdict == Verdict.MAY_BE_BEST
        assert found[name].high == math.inf
    assert found["m0"].difference == 0
    assert math.isnan(found["other"].difference)
    assert found["short"].difference == pytest.approx(2.0)
    assert found["m1"].verdict == Verdict.BEHIND
    assert found["m1"].low > 0
    assert describe_standing(found["m1"], "{:.0f}".format) == "behind the best by 4 (4 or more)"


def test_beating_each_other_in_a_circle_decides_nothing() -> None:
    scores: Scores = {"a": {}, "b": {}, "c": {}}
    for start, (better, worse) in enumerate([("a", "b"), ("b", "c"), ("c", "a")]):
        for seed in range(5):
            scores[better][10 * start + seed] = 5.0 + 0.01 * seed
            scores[worse][10 * start + seed] = 1.0 - 0.01 * seed
    found = compare_with_best(scores)
    assert {standing.verdict for standing in found.values()} == {Verdict.MAY_BE_BEST}
    assert {standing.low for standing in found.values()} == {0.0}


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (Standing(Verdict.BEST, 0.0, 0.0, 0.0, None), "best"),
        (
            Standing(Verdict.BEHIND, 0.012, 0.004, 0.02, None),
            "behind the best by 1.2 (0.4 to 2.0)",
        ),
        (
            Standing(Verdict.BEHIND, math.nan, 0.004, math.inf, None),
            "behind the best (0.4 or more)",
        ),
        (
            Standing(Verdict.MAY_BE_BEST, 0.01, 0.0, 0.02, 4),
            "cannot tell: about 4 more seeds would",
        ),
        (Standing(Verdict.MAY_BE_BEST, 0.01, 0.0, 0.02, 1), "cannot tell: about 1 more seed would"),
        (Standing(Verdict.MAY_BE_BEST, 0.0, 0.0, 0.02, None), "cannot tell"),
    ],
)
def test_standings_in_words(standing: Standing, words: str) -> None:
    assert describe_standing(standing, lambda score: f"{100 * score:.1f}") == words


def test_factors_of_two_methods_and_of_known_variances_are_scipys() -> None:
    df = np.array(ranking.FACTOR_SEEDS[:-1]) - 1
    expected = [*stats.t.isf(0.045, df) / stats.t.isf(0.02, df), special.ndtri(0.955)]
    expected[-1] /= special.ndtri(0.98)
    np.testing.assert_allclose(ranking.FACTORS[0], expected, atol=1.01e-3)
    sidak = special.ndtri(0.955 ** (1 / (np.array(ranking.FACTOR_METHODS) - 1)))
    np.testing.assert_allclose(ranking.FACTORS[:, -1], sidak / special.ndtri(0.98), atol=1.01e-3)


def test_factors_are_interpolated() -> None:
    for row, methods in enumerate(ranking.FACTOR_METHODS):
        found = interpolate_factor(methods, np.array(ranking.FACTOR_SEEDS) - 1)
        np.testing.assert_allclose(found, ranking.FACTORS[row])
    between = interpolate_factor(7, np.array([2.0, 3.0]))
    assert (between > interpolate_factor(6, np.array([2.0, 3.0]))).all()
    assert (between < interpolate_factor(8, np.array([2.0, 3.0]))).all()
    beyond = interpolate_factor(60, np.array([4.0, 40.0]))
    assert (beyond > interpolate_factor(40, np.array([4.0, 40.0]))).all()


Rule = Callable[[np.ndarray], np.ndarray]
"""Which methods are behind [tables, methods], from scores [tables, seeds, methods]."""
NUM_TABLES = 1500
WILD = (1.0, 5.0, 20.0)
"""Standard deviations of the first method; the others have 1."""


def rule_of_the_library(scores: np.ndarray) -> np.ndarray:
    gaps = compute_gaps(scores)
    return np.asarray(compute_low_ends(gaps, compute_margins(gaps)) > 0)


def rule_that_marks_nothing(scores: np.ndarray) -> np.ndarray:
    return np.zeros((len(scores), scores.shape[2]), dtype=bool)


def rule_of_limma_and_dunnett(scores: np.ndarray) -> np.ndarray:
    """One-sided Dunnett with known variances, which suits equal variances of many methods."""
    _, seeds, methods = scores.shape
    rows, columns = np.triu_indices(methods, 1)
    differences = scores[:, :, columns] - scores[:, :, rows]
    own = differences.var(axis=1, ddof=1)
    normal = np.random.default_rng(0).standard_normal((50_000, methods))
    contrasts = (normal[:, 1:].max(axis=1) - normal[:, 0]) / math.sqrt(2)
    quantile = np.quantile(contrasts, 0.95)
    is_behind = np.zeros((len(scores), methods), dtype=bool)
    for table, variances in enumerate(own):
        prior_variance, prior_df = limma_by_hand(variances.tolist(), seeds - 1)
        weight = 1.0 if math.isinf(prior_df) else prior_df / (prior_df + seeds - 1)
        moderated = weight * prior_variance + (1 - weight) * variances
        leads = differences[table].mean(axis=0) / np.sqrt(moderated / seeds)
        is_behind[table, rows[leads > quantile]] = True
        is_behind[table, columns[leads < -quantile]] = True
    return is_behind


def check_level(rule: Rule, seeds: int, methods: int, wild: float) -> None:
    """The true best, wild or not, is called behind in 5 % of tables, or little more by chance."""
    rng = np.random.default_rng([seeds, methods, int(wild)])
    scores = rng.standard_normal((NUM_TABLES, seeds, methods))
    scores[:, :, 0] *= wild
    scores += 10 * rng.standard_normal((NUM_TABLES, seeds, 1))
    is_behind = rule(scores)
    bound = int(stats.binom.isf(1e-3, NUM_TABLES, 0.05))
    assert is_behind[:, 0].sum() <= bound
    assert is_behind[:, -1].sum() <= bound


def check_power(rule: Rule, seeds: int, methods: int, least: float) -> None:
    """Of the methods behind by three standard deviations of the difference, this share is called.

    One of them in each table counts, so that those counted are independent.
    """
    rng = np.random.default_rng([seeds, methods])
    scores = rng.standard_normal((NUM_TABLES, seeds, methods))
    scores[:, :, 0] += 3 * math.sqrt(2)
    bound = int(stats.binom.ppf(1e-3, NUM_TABLES, least))
    assert rule(scores)[:, -1].sum() >= bound


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize(("seeds", "methods"), [(3, 2), (3, 8), (3, 20), (5, 4), (5, 8), (10, 8)])
def test_the_true_best_is_rarely_called_behind(seeds: int, methods: int, wild: float) -> None:
    check_level(rule_of_the_library, seeds, methods, wild)


def test_the_true_best_is_rarely_called_behind_where_scores_are_missing() -> None:
    rng = np.random.default_rng(7)
    scores = rng.standard_normal((NUM_TABLES, 5, 8))
    scores[:, :, 0] *= 5
    scores[rng.random(scores.shape) < 0.2] = math.nan
    is_behind = rule_of_the_library(scores)
    bound = stats.binom.isf(1e-3, NUM_TABLES, 0.05)
    assert is_behind[:, 0].sum() <= bound
    assert is_behind[:, -1].sum() <= bound


@pytest.mark.parametrize("rounding", [1.0, 2.0])
def test_rounding_makes_no_method_seem_behind(rounding: float) -> None:
    """Zero variances, which rounding gives, are neither believed nor the measure of others."""
    rng = np.random.default_rng(6)
    scores = rng.standard_normal((NUM_TABLES, 3, 20)) + rng.uniform(0, 2, (NUM_TABLES, 1, 1))
    is_behind = rule_of_the_library(np.round(scores / rounding))
    assert is_behind[:, 0].sum() <= stats.binom.isf(1e-3, NUM_TABLES, 0.05)


@pytest.mark.parametrize(
    ("seeds", "methods", "least"),
    [
        (3, 2, 0.8),
        (3, 4, 0.75),
        (3, 8, 0.7),
        (3, 20, 0.5),
        (5, 2, 0.95),
        (5, 4, 0.95),
        (5, 8, 0.95),
        (5, 20, 0.9),
    ],
)
def test_methods_three_deviations_behind_are_called_so(
    seeds: int, methods: int, least: float
) -> None:
    check_power(rule_of_the_library, seeds, methods, least)


def test_other_rules_do_not_pass() -> None:
    with pytest.raises(AssertionError):
        check_level(rule_of_limma_and_dunnett, 3, 8, 20.0)
    with pytest.raises(AssertionError):
        check_power(rule_that_marks_nothing, 5, 8, 0.8)


def test_each_end_of_intervals_is_rarely_wrong() -> None:
    """Means differ from table to table, so that the best is sometimes clear and sometimes not."""
    rng = np.random.default_rng(12)
    num_tables = 400
    methods = 5
    is_low_wrong = np.zeros((num_tables, methods), dtype=bool)
    is_high_wrong = np.zeros(num_tables, dtype=bool)
    is_best_wrong = np.zeros(num_tables, dtype=bool)
    for table in range(num_tables):
        means = rng.choice([0.0, 0.5, 3.0]) * rng.standard_normal(methods)
        stds = np.exp(0.5 * rng.standard_normal(methods))
        scores = means + stds * rng.standard_normal((3 + table % 3, methods))
        distances = means.max() - means
        found = list(compare_with_best(as_scores(scores)).values())
        is_low_wrong[table] = [s.low > d for s, d in zip(found, distances, strict=True)]
        is_high_wrong[table] = any(s.high < d for s, d in zip(found, distances, strict=True))
        is_best_wrong[table] = any(
            s.verdict == Verdict.BEST and d > 0 for s, d in zip(found, distances, strict=True)
        )
    bound = int(stats.binom.isf(1e-3, num_tables, 0.05))
    assert is_low_wrong.sum(axis=0).max() <= bound
    assert is_high_wrong.sum() <= bound
    assert is_best_wrong.sum() <= bound


def document_rows(title: str) -> dict[tuple[int, int], list[str]]:
    """Cells by seeds and methods of the table below this title."""
    text = (ROOT / "docs" / "ranking.md").read_text()
    rows = text.partition(title)[2].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    cells = [re.split(r" *\| *", row)[1:-1] for row in rows]
    return {(int(row[0]), int(row[1])): row[2:] for row in cells[2:]}


def test_the_document_has_the_level_and_the_power_that_are_promised() -> None:
    levels = document_rows("Level in %")
    powers = document_rows("Power in %")
    assert len(levels) == len(powers) == 15
    # 0.6 is two and a half standard errors with the 8,000 tables of the document.
    assert max(float(cell) for row in levels.values() for cell in row if cell) <= 5.6
    assert min(float(powers[5, methods][0]) for methods in (2, 4, 8)) >= 80


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "simulate_ranking", ROOT / "tools" / "simulate_ranking.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_document_has_what_the_tool_measures(simulation: ModuleType) -> None:
    rates = simulation.measure(simulation.OWN_RULE, simulation.EQUAL, 4, 3)
    assert document_rows("Level in %")[3, 4][0] == f"{rates.level:.1f}"
    assert document_rows("Power in %")[3, 4][0] == f"{rates.power:.0f}"


def make_client_table(seeds: int, methods: int, clients: int, seed: int = 0) -> np.ndarray:
    """Scores [seeds, methods, clients] with effects of methods, clients, seeds and all pairs."""
    rng = np.random.default_rng([seed, seeds, methods, clients])
    table = rng.normal(size=(1, methods, 1)) + rng.normal(size=(1, 1, clients))
    table = table + 0.3 * rng.normal(size=(seeds, methods, 1))
    table = table + 2 * rng.normal(size=(1, methods, clients))
    return np.asarray(table + 0.5 * rng.normal(size=(seeds, methods, clients)))


def as_client_scores(table: np.ndarray) -> dict[str, dict[int, np.ndarray]]:
    return {
        f"m{method}": {seed: table[seed, method] for seed in range(len(table))}
        for method in range(table.shape[1])
    }


def test_the_noise_of_clients_is_what_resampling_them_gives() -> None:
    table = make_client_table(4, 3, 12)
    noise = compute_client_noise(table)
    rng = np.random.default_rng(1)
    samples = rng.integers(0, 12, (20_000, 12))
    for one in range(3):
        for other in range(3):
            differences = (table[:, other] - table[:, one]).mean(axis=0)
            resampled = differences[samples].mean(axis=1).var()
            # A bootstrap divides by the number of clients, an unbiased variance by one less.
            assert noise.variances[one, other] == pytest.approx(resampled * 12 / 11, rel=0.05)
    assert noise.num_clients == 12


def test_clients_without_test_examples_and_missing_seeds_are_left_out_of_the_noise() -> None:
    table = make_client_table(4, 3, 12)
    padded = np.concatenate([table, np.full((4, 3, 2), math.nan)], axis=2)
    assert compute_client_noise(padded).num_clients == 12
    expected = compute_client_noise(table).variances
    assert compute_client_noise(padded).variances == pytest.approx(expected)
    lacking = table.copy()
    lacking[3, 1] = math.nan
    pair = [0, 2]
    found = compute_client_noise(lacking).variances[np.ix_(pair, pair)]
    assert found == pytest.approx(expected[np.ix_(pair, pair)])
    by_hand = (table[:3, 1] - table[:3, 0]).mean(axis=0).var(ddof=1) / 12
    assert compute_client_noise(lacking).variances[0, 1] == pytest.approx(by_hand)


def test_few_clients_widen_intervals_and_no_seed_makes_up_for_them() -> None:
    table = make_client_table(5, 2, 8)
    # The seeds agree that the second method is better by 1, the clients differ by 2.
    table[:, 1] += 1 - (table[:, 1] - table[:, 0]).mean(axis=1, keepdims=True)
    scores = as_scores(table.mean(axis=2))
    for_these = compare_with_best(scores)
    assert for_these["m0"].verdict == Verdict.BEHIND
    like_these = compare_with_best(scores, client_scores=as_client_scores(table))
    assert like_these["m0"].verdict == Verdict.MAY_BE_BEST
    assert like_these["m0"].needs_clients
    assert like_these["m0"].high > for_these["m0"].high
    assert like_these["m0"].more_seeds is None
    assert describe_standing(like_these["m0"], "{:.1f}".format) == (
        "cannot tell: more clients would, more seeds would not"
    )


def test_many_clients_change_little() -> None:
    table = make_client_table(5, 3, 4000)
    scores = as_scores(table.mean(axis=2))
    for_these = compare_with_best(scores)
    like_these = compare_with_best(scores, client_scores=as_client_scores(table))
    for name, standing in like_these.items():
        assert standing.verdict == for_these[name].verdict
        assert standing.low == pytest.approx(for_these[name].low, abs=0.05)


def test_one_client_says_nothing_of_others() -> None:
    table = make_client_table(5, 2, 1)
    table[:, 1] += 100
    found = compare_with_best(as_scores(table.mean(axis=2)), client_scores=as_client_scores(table))
    assert {standing.verdict for standing in found.values()} == {Verdict.MAY_BE_BEST}
    assert found["m0"].needs_clients


@pytest.mark.parametrize("num_clients", [5, 20])
def test_the_level_holds_where_all_seeds_score_the_same_clients(
    num_clients: int, simulation: ModuleType
) -> None:
    rates = simulation.measure_same_clients(5, 4, num_clients, ratio=3.0, num_tables=2000)
    assert rates.level_with_clients <= 6.5  # of 5, with three standard errors
    assert rates.level_of_seeds_alone > 15
