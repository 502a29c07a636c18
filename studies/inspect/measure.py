"""Measure what server data gain in whole runs, on test examples.

    python studies/inspect/measure.py SCENARIOS.toml GAINS.jsonl [START]

Every setting is trained with every seed on the scenario's clients, as `fedtailor run` trains it.
The figures of a run are the accuracy of unseen and of participating clients, before and after
personalizing, mean over the evaluations in the last fifth of the rounds, as in the tables of
`run`. Scenarios that the second file has are left out; a second
process may start with another one, by its number.
"""

import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from forecasting import SETTINGS, Row, Scenario, append_row, read_rows, read_scenarios

from fedtailor.engines import factory
from fedtailor.errors import DivergedError
from fedtailor.evaluation.evaluate import TEST_GROUPS, evaluate
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.loop import run_rounds
from fedtailor.training.record.build import compute_group_means

SEEDS = (100, 101, 102)
"""Seeds of the runs, none of which is a seed of a trial of `inspect`."""


def measure_run(config: RunConfig) -> dict[str, float] | None:
    """Return a run's accuracy by group and stage; None if it diverged."""
    data = from_config.load_dataset(config)
    context = from_config.build_context(config, data)
    engine = factory.make_engine(context, config.engine, config.chunk)
    first_scored = config.rounds - config.rounds // 5
    sums: dict[str, list[float]] = {}
    rounds = run_rounds(context, engine, context.init_server_state(), config.cohort)
    try:
        for finished in islice(rounds, config.rounds):
            is_scored = finished.rounds_done > first_scored
            if is_scored and finished.rounds_done % (config.evaluate_every or 1) == 0:
                scores = evaluate(context, engine, finished.state, TEST_GROUPS)
                for group in TEST_GROUPS:
                    means = compute_group_means(scores[group], "accuracy")
                    for stage in ("before", "after"):
                        value = means[stage]["accuracy"]
                        assert value is not None
                        sums.setdefault(f"{group} {stage}", []).append(value)
    except DivergedError:
        return None
    return {name: round(float(np.mean(values)), 5) for name, values in sums.items()}


def measure_scenario(scenario: Scenario) -> Row:
    """Return a scenario's figures by setting, one of each for each seed."""
    started_at = time.perf_counter()
    figures = {}
    for setting in SETTINGS:
        figures[setting.name] = [measure_run(scenario.make_config(setting, seed)) for seed in SEEDS]
    seconds = round(time.perf_counter() - started_at, 1)
    return {"scenario": scenario.name, "seconds": seconds, "figures": figures}


def main() -> None:
    """Measure the scenarios that have not been measured."""
    torch.set_num_threads(1)
    scenarios = read_scenarios(Path(sys.argv[1]))
    path = Path(sys.argv[2])
    start = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    scenarios = scenarios[start:] + scenarios[:start]
    for scenario in scenarios:
        if scenario.name in read_rows(path):
            continue
        row = measure_scenario(scenario)
        append_row(path, row)
        print(scenario.name, row["seconds"], flush=True)


if __name__ == "__main__":
    main()
