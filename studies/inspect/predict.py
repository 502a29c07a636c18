"""Let `fedtailor inspect` forecast scenarios.

    python studies/inspect/predict.py SCENARIOS.toml FORECASTS.jsonl [START [SECONDS]]

A row has the scores of all trials, from which the forecasts follow. With SECONDS trials may take
other than the usual estimated time. Scenarios that the second file has are left out; a
second process may start with another one, by its number.
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from forecasting import SETTINGS, Row, Scenario, append_row, read_rows, read_scenarios

from fedtailor.inspection.inspect import inspect
from fedtailor.inspection.workload import MAX_SECONDS


def predict_scenario(scenario: Scenario, max_seconds: float) -> Row:
    """Return what `inspect` says, with the scores of its trials."""
    config = scenario.make_config(SETTINGS[0], seed=0)
    started_at = time.perf_counter()
    cpu_started_at = time.process_time()
    inspection = inspect(config, max_seconds=max_seconds, should_try_fractions=False)
    return {
        "scenario": scenario.name,
        "seconds": round(time.perf_counter() - started_at, 1),
        "cpu_seconds": round(time.process_time() - cpu_started_at, 1),
        "estimated_seconds": round(inspection.workload.seconds, 1),
        "trials": inspection.workload.num_trials,
        "trial_rounds": inspection.workload.num_rounds,
        "rounds": inspection.num_rounds,
        "judged": inspection.num_judged,
        "client_ratio": round(inspection.client_ratio, 4),
        "settings": [setting.label for setting in inspection.settings],
        "uses_server": [setting.uses_server for setting in inspection.settings],
        "scores": {stage: scores.round(5).tolist() for stage, scores in inspection.scores.items()},
    }


def main() -> None:
    """Forecast the scenarios that have not been forecast."""
    torch.set_num_threads(1)
    scenarios = read_scenarios(Path(sys.argv[1]))
    path = Path(sys.argv[2])
    start = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    scenarios = scenarios[start:] + scenarios[:start]
    max_seconds = float(sys.argv[4]) if len(sys.argv) > 4 else MAX_SECONDS
    for scenario in scenarios:
        if scenario.name in read_rows(path):
            continue
        row = predict_scenario(scenario, max_seconds)
        append_row(path, row)
        print(scenario.name, row["seconds"], row["estimated_seconds"], flush=True)


if __name__ == "__main__":
    main()
