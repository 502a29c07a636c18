#!/usr/bin/env python3
"""Simulate tables with known truth: level and power of the rule that says which methods are best.

    python tools/simulate_ranking.py              measure, and write into docs/ranking.md
    python tools/simulate_ranking.py --calibrate  print FACTORS of fedtailor/evaluation/ranking.py

The first takes two minutes on one quiet core, the second about fifteen.

The *level* is the share of tables in which the true best is called behind. It is measured with all
means equal, where it is largest; of methods that differ in their noise, the kind that fares worst
counts. The *power* is the share called behind of the methods that are behind the best by three
standard deviations of the difference to it. All draws have fixed seeds.

Where all seeds score the same clients, clients are drawn anew for each table, and the best is that
of the population they come from.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedtailor.evaluation.ranking import (
    FACTOR_METHODS,
    FACTOR_SEEDS,
    LEVEL,
    T_TAIL,
    compute_client_noise,
    compute_gaps,
    compute_low_ends,
    compute_margins,
    interpolate_factor,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "ranking.md"
BEGIN = "<!-- simulation: begin -->"
END = "<!-- simulation: end -->"

MEASURED_SEED = 2025
CALIBRATED_SEED = 2024
"""Tables that set the factors are not those that measure them."""
SEEDS = (3, 5, 10)
METHODS = (2, 4, 8, 14, 20)
NUM_TABLES = 8000
DISTANCE = 3.0
"""How far methods are behind where power is measured, in standard deviations of the difference."""
CALIBRATED_LEVEL = 0.045
"""Level for which factors are set: below the one promised, as a reserve for other settings."""
CLIENTS = (5, 10, 30)
RATIOS = (0.3, 1.0, 3.0)
CHUNK = 1000
"""Tables simulated at a time."""


class Setting(NamedTuple):
    """Noise of the methods of a table; the first ones may differ from the rest."""

    name: str
    count_special: Callable[[int], int] = lambda _: 0  # from the number of all methods
    special_std: float = 1.0  # the rest have 1
    correlation: float = 0.0  # between special methods
    sigma: float = 0.0  # of log-normal standard deviations of all methods
    df: float = math.inf  # of Student's t
    rounding: float = 0.0  # distance of the values that scores can have
    min_methods: int = 2


class Noise(NamedTuple):
    """Scores of methods with equal means."""

    scores: np.ndarray  # [tables, seeds, methods]
    stds: np.ndarray  # [tables, methods]


class SameClientsRates(NamedTuple):
    """Levels in percent where all seeds score the same clients, and clients like these count."""

    level_with_clients: float  # of the rule that is given the scores of clients
    level_of_seeds_alone: float


class Rates(NamedTuple):
    """Level and power of a rule in a setting, in percent."""

    level: float
    power: float


EQUAL = Setting("equal")
MEASURED = (
    EQUAL,
    Setting("log-normal 0.5", sigma=0.5),
    Setting("log-normal 1", sigma=1.0),
    Setting("one wild, 5", lambda _: 1, special_std=5.0),
    Setting("one wild, 20", lambda _: 1, special_std=20.0),
    Setting("half alike", lambda methods: methods // 2, correlation=0.98, min_methods=4),
)
"""Settings of the document."""
CALIBRATED = (
    *MEASURED,
    Setting("one wild, 3", lambda _: 1, special_std=3.0),
    Setting("one wild, 8", lambda _: 1, special_std=8.0),
    Setting("one wild, 100", lambda _: 1, special_std=100.0),
    Setting("one quiet", lambda _: 1, special_std=0.1),
    Setting("two wild", lambda _: 2, special_std=10.0, min_methods=6),
    Setting("a quarter wild", lambda methods: methods // 4, special_std=5.0, min_methods=8),
    Setting("half wild", lambda methods: methods // 2, special_std=5.0, min_methods=4),
    Setting("two alike", lambda _: 2, correlation=0.99, min_methods=4),
    Setting("all but one alike", lambda methods: methods - 1, correlation=0.98, min_methods=4),
    Setting("rounded to 1", rounding=1.0),
    Setting("rounded to 2", rounding=2.0),
    Setting("heavy tails", df=3.0),
)
"""Settings in all of which the level has to hold."""


def simulate_noise(
    setting: Setting, num_methods: int, num_seeds: int, seed: int
) -> Iterator[Noise]:
    """Yield tables, some at a time.

    Args:
        setting: What their noise is like.
        num_methods: Methods of each table.
        num_seeds: Seeds of each table.
        seed: Of the simulation.
    """
    rng = np.random.default_rng([seed, num_methods, num_seeds, *setting.name.encode()])
    for start in range(0, NUM_TABLES, CHUNK):
        yield draw_noise(setting, rng, (min(CHUNK, NUM_TABLES - start), num_seeds, num_methods))


def draw_noise(setting: Setting, rng: np.random.Generator, shape: tuple[int, int, int]) -> Noise:
    """Return noise of shape (tables, seeds, methods)."""
    num_tables, num_seeds, num_methods = shape
    num_special = setting.count_special(num_methods)
    scores = rng.standard_normal(shape)
    if math.isfinite(setting.df):
        scores /= np.sqrt(rng.chisquare(setting.df, shape) / setting.df)
    if setting.correlation:
        common = rng.standard_normal((num_tables, num_seeds, 1))
        scores[..., :num_special] *= math.sqrt(1 - setting.correlation)
        scores[..., :num_special] += math.sqrt(setting.correlation) * common
    stds = np.exp(setting.sigma * rng.standard_normal((num_tables, num_methods)))
    stds[:, :num_special] *= setting.special_std
    scores *= stds[:, None, :]
    if setting.rounding:
        # Where the steps are in relation to the mean differs from table to table.
        scores += rng.uniform(0, setting.rounding, (num_tables, 1, 1))
        scores = np.round(scores / setting.rounding) * setting.rounding
    return Noise(scores, stds)


def split_kinds(setting: Setting, num_methods: int) -> list[slice]:
    """Return the methods of each kind of noise."""
    num_special = setting.count_special(num_methods)
    kinds = [slice(0, num_special), slice(num_special, num_methods)]
    return [kind for kind in kinds if kind.stop > kind.start]


def call_by_margins(scores: np.ndarray) -> np.ndarray:
    """Apply the rule of the library."""
    gaps = compute_gaps(scores)
    is_behind: np.ndarray = compute_low_ends(gaps, compute_margins(gaps)) > 0
    return is_behind


def call_by_overlap(scores: np.ndarray) -> np.ndarray:
    """Call behind what is apart from the best by mean and standard deviation."""
    means = scores.mean(axis=1)
    stds = scores.std(axis=1, ddof=1)
    leaders = means.argmax(axis=1)[:, None]
    ends = np.take_along_axis(means - stds, leaders, axis=1)
    return np.asarray(means + stds < ends)


def call_by_t_tests(scores: np.ndarray) -> np.ndarray:
    """Call behind what differs from the best in two-sided paired t-tests with Bonferroni."""
    num_seeds, num_methods = scores.shape[1:]
    leaders = scores.mean(axis=1).argmax(axis=1)[:, None, None]
    differences = np.take_along_axis(scores, leaders, axis=2) - scores
    errors = differences.std(axis=1, ddof=1) / math.sqrt(num_seeds)
    quantile = stats.t.isf(LEVEL / 2 / (num_methods - 1), num_seeds - 1)
    return np.asarray(differences.mean(axis=1) > quantile * errors)


def call_by_limma(scores: np.ndarray) -> np.ndarray:
    """Call behind by variances that are moderated both up and down, and Dunnett's quantile."""
    num_seeds, num_methods = scores.shape[1:]
    gaps = compute_gaps(scores)
    prior = compute_margins(gaps).prior
    df = num_seeds - 1
    prior_df = prior.df[:, None, None]
    total = prior_df * prior.variance[:, None, None] + df * gaps.variances
    variances = total / (prior_df + df)
    reciprocals, quantiles = simulate_dunnett_quantiles(num_methods)
    multiples = np.interp(1 / (prior.df + df), reciprocals, quantiles)
    margins = multiples[:, None, None] * np.sqrt(variances / num_seeds)
    return np.asarray((gaps.means > margins).any(axis=2))


@lru_cache
def simulate_dunnett_quantiles(num_methods: int) -> tuple[np.ndarray, np.ndarray]:
    """Return reciprocals of degrees of freedom, and quantiles of one-sided comparisons with one."""
    rng = np.random.default_rng([MEASURED_SEED, num_methods])
    normal = rng.standard_normal((100_000, num_methods))
    largest = (normal[:, 1:].max(axis=1) - normal[:, 0]) / math.sqrt(2)
    reciprocals = np.linspace(0, 1, 41)
    quantiles = [np.quantile(largest, 1 - LEVEL)]
    for reciprocal in reciprocals[1:]:
        scales = np.sqrt(rng.chisquare(1 / reciprocal, len(largest)) * reciprocal)
        quantiles.append(np.quantile(largest / scales, 1 - LEVEL))
    return reciprocals, np.array(quantiles)


RULES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "this rule": call_by_margins,
    "mean ± std apart": call_by_overlap,
    "paired t, Bonferroni": call_by_t_tests,
    "limma, Dunnett": call_by_limma,
}
"""Which methods are behind [tables, methods], from scores [tables, seeds, methods]."""
OWN_RULE = "this rule"


def measure(rule: str, setting: Setting, num_methods: int, num_seeds: int) -> Rates:
    """Measure a rule in a setting."""
    levels = []
    powers = []
    kinds = split_kinds(setting, num_methods)
    for noise in simulate_noise(setting, num_methods, num_seeds, MEASURED_SEED):
        is_behind = RULES[rule](noise.scores)
        levels.append([is_behind[:, kind].mean() for kind in kinds])
        # The last method is the best; where some methods are special, it is not one of them.
        shifts = DISTANCE * np.hypot(noise.stds, noise.stds[:, -1:])
        shifts[:, -1] = 0
        is_behind = RULES[rule](noise.scores - shifts[:, None, :])
        powers.append(is_behind[:, :-1].mean())
    level = np.average(levels, axis=0).max()
    return Rates(100 * float(level), 100 * float(np.mean(powers)))


def measure_all(rule: str, num_seeds: int, num_methods: int) -> dict[str, Rates]:
    """Measure a rule in the settings of the document that tables of this size can have."""
    return {
        setting.name: measure(rule, setting, num_methods, num_seeds)
        for setting in MEASURED
        if num_methods >= setting.min_methods
    }


def measure_same_clients(
    num_seeds: int,
    num_methods: int,
    num_clients: int,
    ratio: float,
    num_tables: int = NUM_TABLES,
) -> SameClientsRates:
    """Measure the rule where all seeds score the same clients.

    Args:
        num_seeds: Seeds of each table.
        num_methods: Methods of each table, all with equal means over the population.
        num_clients: Clients of each table.
        ratio: How much a mean over clients varies from sample to sample, in standard deviations of
            a mean over seeds.
        num_tables: Tables.
    """
    rng = np.random.default_rng([MEASURED_SEED, num_seeds, num_methods, num_clients])
    calls_with_clients = []
    calls_of_seeds = []
    for start in range(0, num_tables, CHUNK):
        count = min(CHUNK, num_tables - start)
        seed_noise = rng.standard_normal((count, num_seeds, num_methods, 1))
        client_std = ratio * math.sqrt(num_clients / num_seeds)
        client_noise = client_std * rng.standard_normal((count, 1, num_methods, num_clients))
        scores = seed_noise + client_noise
        gaps = compute_gaps(scores.mean(axis=3))
        noise = compute_client_noise(scores)
        calls_with_clients.append(compute_low_ends(gaps, compute_margins(gaps, noise)) > 0)
        calls_of_seeds.append(compute_low_ends(gaps, compute_margins(gaps)) > 0)
    return SameClientsRates(
        100 * float(np.concatenate(calls_with_clients).mean()),
        100 * float(np.concatenate(calls_of_seeds).mean()),
    )


def build_same_clients_rows() -> list[str]:
    """Measure levels where all seeds score the same clients, and return a table."""
    headings = [f"{ratio:g}" for ratio in RATIOS]
    rows = [build_row("seeds", "methods", ["clients", *headings])]
    rows.append("|---:" * rows[0].count(" | ") + "|---:|")
    for num_seeds in SEEDS:
        for num_methods in (2, 8):
            for num_clients in CLIENTS:
                cells = [str(num_clients)]
                for ratio in RATIOS:
                    rates = measure_same_clients(num_seeds, num_methods, num_clients, ratio)
                    cells.append(
                        f"{rates.level_with_clients:.1f} / {rates.level_of_seeds_alone:.1f}"
                    )
                rows.append(build_row(num_seeds, num_methods, cells))
                print(rows[-1], flush=True)
    return rows


def build_tables() -> str:
    """Measure all rules, and return the tables of the document."""
    names = [setting.name for setting in MEASURED]
    other_rules = [rule for rule in RULES if rule != OWN_RULE]
    levels = [build_row("seeds", "methods", names)]
    powers = [build_row("seeds", "methods", names)]
    others = [build_row("seeds", "methods", other_rules)]
    for rows in (levels, powers, others):
        rows.append("|---:" * rows[0].count(" | ") + "|---:|")
    for num_seeds in SEEDS:
        for num_methods in METHODS:
            own = measure_all(OWN_RULE, num_seeds, num_methods)
            own_levels = [f"{own[name].level:.1f}" if name in own else "" for name in names]
            own_powers = [f"{own[name].power:.0f}" if name in own else "" for name in names]
            levels.append(build_row(num_seeds, num_methods, own_levels))
            powers.append(build_row(num_seeds, num_methods, own_powers))
            cells = []
            for rule in other_rules:
                rates = measure_all(rule, num_seeds, num_methods)
                worst = max(rate.level for rate in rates.values())
                cells.append(f"{worst:.1f} / {rates[EQUAL.name].power:.0f}")
            others.append(build_row(num_seeds, num_methods, cells))
            print(levels[-1], powers[-1], others[-1], sep="\n", flush=True)
    error = 100 * math.sqrt(LEVEL * (1 - LEVEL) / NUM_TABLES)
    return "\n".join(
        [
            f"{NUM_TABLES:,} tables a cell, seed {MEASURED_SEED}; a level of {100 * LEVEL:.0f} % "
            f"has a standard error of at most {error:.1f}.",
            "",
            "Level in %, where at most 5 are promised:",
            "",
            *levels,
            "",
            "Power in %, at a distance of three standard deviations of the difference:",
            "",
            *powers,
            "",
            "Other rules, highest level of all settings / power with equal variances:",
            "",
            *others,
            "",
            "Level in % where all seeds score the same clients, and the true best is that of the "
            "clients' population: with the scores of clients / of seeds alone. Columns are how "
            "much a mean over clients varies from sample to sample, in standard deviations of a "
            "mean over seeds:",
            "",
            *build_same_clients_rows(),
        ]
    )


def build_row(num_seeds: int | str, num_methods: int | str, cells: Sequence[str]) -> str:
    """Return a row of a table in Markdown."""
    return "| " + " | ".join([str(num_seeds), str(num_methods), *cells]) + " |"


def calibrate_factor(num_methods: int, num_seeds: float) -> float:
    """Return the smallest factor that keeps the level in all settings, rounded up."""
    if math.isinf(num_seeds):
        # The variances are known then, and no dependence makes it worse than independence.
        normal = NormalDist()
        quantile = normal.inv_cdf((1 - CALIBRATED_LEVEL) ** (1 / (num_methods - 1)))
        factor = quantile / normal.inv_cdf(1 - T_TAIL)
    elif num_methods == 2:
        df = num_seeds - 1
        factor = float(stats.t.isf(CALIBRATED_LEVEL, df) / stats.t.isf(T_TAIL, df))
    else:
        settings = [setting for setting in CALIBRATED if num_methods >= setting.min_methods]
        factor = max(
            find_least_factor(setting, num_methods, int(num_seeds)) for setting in settings
        )
    return math.ceil(1000 * factor) / 1000


def find_least_factor(setting: Setting, num_methods: int, num_seeds: int) -> float:
    """Return the smallest factor with which no kind of method exceeds the calibrated level."""
    factor = interpolate_factor(num_methods, np.array(num_seeds - 1))
    ratios = []
    for noise in simulate_noise(setting, num_methods, num_seeds, CALIBRATED_SEED):
        gaps = compute_gaps(noise.scores)
        unscaled = compute_margins(gaps).margins / factor
        with np.errstate(divide="ignore", invalid="ignore"):
            table_ratios = np.where(gaps.means > 0, gaps.means / unscaled, 0.0)
        ratios.append(table_ratios.max(axis=2))
    largest = np.concatenate(ratios)
    return max(
        float(np.quantile(largest[:, kind], 1 - CALIBRATED_LEVEL, method="higher"))
        for kind in split_kinds(setting, num_methods)
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calibrate", action="store_true", help="print factors of margins")
    arguments = parser.parse_args()
    if arguments.calibrate:
        for num_methods in FACTOR_METHODS:
            factors = [calibrate_factor(num_methods, num_seeds) for num_seeds in FACTOR_SEEDS]
            print(f"    ({', '.join(map(str, factors))}),", flush=True)
        return
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{build_tables()}\n{END}{after}")


if __name__ == "__main__":
    main()
