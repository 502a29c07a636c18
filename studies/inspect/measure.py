"""For all server data what `fedtailor inspect` predicts, and what FSL then gains over FedAvg in a
long run.

python studies/inspect/measure.py [FILE]      does what is not in FILE yet (default: records.json
here)
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from server_kinds import RUNS, SCENARIOS, SERVER_DATA

from fedtailor.inspection.inspect import inspect
from fedtailor.inspection.statistics.gradients import make_batch
from fedtailor.inspection.trials import Bench, build_bench, compute_score
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_run_config

HERE = Path(__file__).parent
ROUNDS, SCORED = 100, range(60, 101, 10)


def long_run(place: Bench, gamma: float) -> float:
    """Accuracy on new clients' test examples, mean over five evaluations in the last part of a
    run from first weights.
    """
    data, like = place.data, next(iter(place.task.params.values()))
    rows = np.concatenate(
        [data.clients.splits["test"].get_rows(int(one)) for one in data.groups["unseen"]]
    )
    judges = make_batch(data.clients, rows, data.example_spec, like)
    models = place.iter_rounds("fsl", place.task.params, 0, ROUNDS, gamma=gamma, server_lr=1.0)
    found = [
        compute_score(place.task, model, judges)
        for number, model in enumerate(models, 1)
        if number in SCORED
    ]
    return float(np.mean(found))


def figures(spec: RunConfig) -> dict[str, Any]:
    """What is predicted first, then what is measured."""
    began = time.perf_counter()
    found = inspect(spec, betas=(), fractions=())
    seconds = time.perf_counter() - began
    place = build_bench(spec, from_config.load_dataset(spec))
    near, gamma = found.closeness, found.best_gamma.value
    learned = long_run(place, 1.0)
    advised = found.verdict == "helps" and gamma != 1
    return {
        "server": found.examples,
        "predicted": found.predicted_gain,
        "verdict": found.verdict,
        "gamma": gamma,
        "agreement": found.server_score,
        "warm": found.warm_score,
        "labels": near.label_distance,
        "images": near.image_similarity,
        "examples apart": near.example_distance,
        "cosine": near.gradient_cosine,
        "seconds": round(seconds, 1),
        "fedavg": long_run(place, 0.0),
        "fsl": learned,
        "advised": long_run(place, gamma) if advised else learned,
    }


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "records.json"
    records: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    done = {(each["scenario"], each["seed"], each["server_data"]) for each in records}
    for scenario, seed in RUNS:
        for server_data, words in SERVER_DATA[scenario].items():
            if (scenario, seed, server_data) in done:
                continue
            given = [
                *SCENARIOS[scenario].split(),
                *words.split(),
                f"seed={seed}",
                f"data.seed={seed}",
                "method=fedavg",
            ]
            head = {"scenario": scenario, "seed": seed, "server_data": server_data}
            records.append(head | figures(read_run_config(given)))
            path.write_text(json.dumps(records, indent=1) + "\n")
            print(records[-1], flush=True)


if __name__ == "__main__":
    main()
