"""Score the forecasts against the true gains, and make the tables of the study.

    python studies/inspect/score.py                  prints them
    python studies/inspect/score.py participating    prints those for participating clients
    python studies/inspect/score.py write            puts them into README.md

A true gain is the mean score of a setting over seeds, minus that of the best setting without
server data, for unseen clients. The recommended setting is the one that `inspect` finds best, also
where it says not to use it. A sign is right if a gain is said to be one ("helps", "probably helps")
and a loss a loss; "cannot tell" and "makes no difference" are wrong where there is a difference.
"""

import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))

from forecasting import HERE, Row, read_rows, read_scenarios

from fedtailor.inspection.forecast import StageForecast, Verdict, forecast_stage
from fedtailor.inspection.trials import STAGES

BEGIN = "<!-- made by studies/inspect/score.py -->"
END = "<!-- end of the tables -->"
CLEAR_GAIN = 0.02
"""A true gain or loss of more than this has a sign that a forecast must get right."""

TRUE_NAMES = {"fedavg server_lr": "fsl gamma=0", "fedprox lam": "fedsim beta=0"}
"""Settings without server data by their names in the file of gains, which measured the same."""

SIGNS = {
    Verdict.HELPS: 1,
    Verdict.PROBABLY_HELPS: 1,
    Verdict.PROBABLY_HARMS: -1,
    Verdict.HARMS: -1,
}


class Outcome(NamedTuple):
    """A forecast of a scenario and stage, with what was true."""

    scenario: str
    stage: str
    setting: str  # that was recommended
    verdict: Verdict
    gain: float  # forecast of the recommended setting
    low: float
    high: float
    true_gain: float
    true_error: float  # standard error of the true gain, from its seeds
    seed_gains: tuple[float, ...]  # true gain of each seed
    usual_gain: float  # forecast of FSL at its usual strength
    true_usual_gain: float
    is_part: bool  # whether trials were shorter than the run

    @property
    def is_right(self) -> bool:
        """Whether the sign that was said is that of the true gain."""
        return SIGNS.get(self.verdict, 0) == math.copysign(1, self.true_gain)


def find_true_name(label: str) -> str:
    """Return the name of a setting in the file of gains."""
    return TRUE_NAMES.get(label.partition("=")[0], label)


def forecast_row(row: Row, stage: str) -> StageForecast:
    """Return the forecast of a scenario from the scores of its trials."""
    scores = np.array(row["scores"][stage], dtype=float)
    run_share = row["trial_rounds"] / row["rounds"]
    return forecast_stage(scores, row["uses_server"], run_share, row["client_ratio"])


def read_true_scores(row: Row, stage: str, group: str) -> dict[str, NDArray[np.float64]]:
    """Return the true scores of settings that never diverged, one for each seed."""
    scores = {}
    for name, runs in row["figures"].items():
        if None not in runs:
            scores[name] = np.array([run[f"{group} {stage}"] for run in runs])
    return scores


def score_row(predicted: Row, truth: Row, stage: str, group: str = "unseen") -> Outcome:
    """Return the outcome of a scenario and stage."""
    forecast = forecast_row(predicted, stage)
    labels = predicted["settings"]
    assert forecast.best is not None
    best = forecast.estimates[forecast.best]
    usual = forecast.estimates[labels.index("fsl gamma=1")]
    assert best is not None
    assert usual is not None
    true_scores = read_true_scores(truth, stage, group)
    without = []
    for label, uses_server in zip(labels, predicted["uses_server"], strict=True):
        if not uses_server and find_true_name(label) in true_scores:
            without.append(find_true_name(label))
    reference = max(without, key=lambda name: float(true_scores[name].mean()))
    gains = true_scores[labels[forecast.best]] - true_scores[reference]
    usual_gains = true_scores["fsl gamma=1"] - true_scores[reference]
    return Outcome(
        scenario=predicted["scenario"],
        stage=stage,
        setting=labels[forecast.best],
        verdict=forecast.verdict,
        gain=best.gain,
        low=best.low,
        high=best.high,
        true_gain=float(gains.mean()),
        true_error=float(gains.std(ddof=1) / math.sqrt(len(gains))),
        seed_gains=tuple(gains.tolist()),
        usual_gain=usual.gain,
        true_usual_gain=float(usual_gains.mean()),
        is_part=predicted["trial_rounds"] < predicted["rounds"],
    )


def rank_correlation(first: list[float], second: list[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""
    ranks = []
    for values in (first, second):
        array = np.array(values)
        below = (array[:, None] > array).sum(axis=1)
        equal = (array[:, None] == array).sum(axis=1)
        ranks.append(below + (equal - 1) / 2)
    return float(np.corrcoef(*ranks)[0, 1])


def correlate_seeds(outcomes: list[Outcome]) -> float:
    """Return the rank correlation of one seed's gain with the others' mean, mean over seeds.

    It is what a whole run would reach as a forecast of other seeds' runs on the same test examples.
    """
    num_seeds = min(len(outcome.seed_gains) for outcome in outcomes)
    correlations = []
    for seed in range(num_seeds):
        own = [outcome.seed_gains[seed] for outcome in outcomes]
        others = [float(np.delete(outcome.seed_gains, seed).mean()) for outcome in outcomes]
        correlations.append(rank_correlation(own, others))
    return float(np.mean(correlations))


def summarize(name: str, outcomes: list[Outcome]) -> str:
    """Return a row of the summary."""
    clear = [outcome for outcome in outcomes if abs(outcome.true_gain) > CLEAR_GAIN]
    num_right = sum(outcome.is_right for outcome in clear)
    num_inside = sum(outcome.low <= outcome.true_gain <= outcome.high for outcome in outcomes)
    gains = [outcome.gain for outcome in outcomes]
    true_gains = [outcome.true_gain for outcome in outcomes]
    usual_gains = [outcome.usual_gain for outcome in outcomes]
    true_usual_gains = [outcome.true_usual_gain for outcome in outcomes]
    errors = np.abs(np.array(gains) - np.array(true_gains))
    cells = [
        name,
        str(len(outcomes)),
        f"{num_right} of {len(clear)}",
        f"{rank_correlation(gains, true_gains):.2f}",
        f"{correlate_seeds(outcomes):.2f}",
        f"{rank_correlation(usual_gains, true_usual_gains):.2f}",
        f"{num_inside} of {len(outcomes)}",
        f"{100 * float(np.median(errors)):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def make_tables(outcomes: list[Outcome], predicted: dict[str, Row]) -> str:
    """Return the summary and a row for each scenario."""
    lines = [
        "| forecasts | number | sign right | rank correlation | of one whole run | "
        "of FSL at gamma=1 | true gain in the interval | median error |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for stage in STAGES:
        chosen = [outcome for outcome in outcomes if outcome.stage == stage]
        lines.append(summarize(f"{stage} personalizing", chosen))
    lines.append(summarize("both", outcomes))
    is_new = ("posts", "verses")
    lines.append(
        summarize("sets never used before", [o for o in outcomes if o.scenario.startswith(is_new)])
    )
    lines.append(summarize("model never used before", [o for o in outcomes if "cnn" in o.scenario]))
    lines.append(summarize("runs tried in part", [o for o in outcomes if o.is_part]))
    for stage in STAGES:
        lines += [
            "",
            f"**{stage.capitalize()} personalizing**",
            "",
            "| scenario | trials x rounds | recommended | verdict | forecast | true | gamma=1 | "
            "true | s |",
            "|---|---|---|---|---:|---:|---:|---:|---:|",
        ]
        for outcome in sorted(outcomes, key=lambda outcome: -outcome.true_gain):
            if outcome.stage == stage:
                lines.append(format_outcome(outcome, predicted[outcome.scenario]))
    return "\n".join(lines)


def format_outcome(outcome: Outcome, row: Row) -> str:
    """Return the row of a scenario."""
    is_clear = abs(outcome.true_gain) > CLEAR_GAIN
    mark = " (wrong)" if is_clear and not outcome.is_right else ""
    rounds = str(row["rounds"])
    if outcome.is_part:
        rounds = f"{row['trial_rounds']} of {rounds}"
    cells = [
        outcome.scenario,
        f"{row['trials']} x {rounds}",
        outcome.setting,
        f"{outcome.verdict.value}{mark}",
        f"{100 * outcome.gain:+.1f} ({100 * outcome.low:+.1f} to {100 * outcome.high:+.1f})",
        f"{100 * outcome.true_gain:+.1f} ± {100 * outcome.true_error:.1f}",
        f"{100 * outcome.usual_gain:+.1f}",
        f"{100 * outcome.true_usual_gain:+.1f}",
        f"{row['cpu_seconds']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the tables, or write them."""
    predicted = read_rows(HERE / "forecasts.jsonl")
    gains = read_rows(HERE / "gains.jsonl")
    group = "participating" if sys.argv[1:] == ["participating"] else "unseen"
    outcomes = []
    for scenario in read_scenarios(HERE / "scenarios.toml"):
        if scenario.name in predicted and scenario.name in gains:
            for stage in STAGES:
                forecast_of = predicted[scenario.name]
                outcomes.append(score_row(forecast_of, gains[scenario.name], stage, group))
    tables = make_tables(outcomes, predicted)
    if sys.argv[1:] != ["write"]:
        print(tables)
        return
    path = HERE / "README.md"
    before, begin, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{begin}\n\n{tables}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
