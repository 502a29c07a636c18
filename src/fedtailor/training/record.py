"""The record of a run: what was asked for, what was chosen, what came out.

OUT/config.json    the whole specification, written before anything slow begins
OUT/record.json    everything; written before the first round, when the run is stopped and at the end
OUT/rounds.jsonl   a line per round, as they end
OUT/model.safetensors, OUT/report.html    at the end
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedtailor import methods
from fedtailor.core.types import Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.client_statistics import Scores, compute_micro_mean
from fedtailor.evaluation.costs import WORK_KEYS
from fedtailor.evaluation.evaluate import FinalScores
from fedtailor.training.config import RunConfig
from fedtailor.training.dataset_summary import compute_fingerprint, summarize_dataset
from fedtailor.training.provenance import collect_versions, get_commit, get_machine_name
from fedtailor.training.run_dir import FORMAT

COST_KEYS = ("bytes_down", "bytes_up", "steps", "seconds", *WORK_KEYS)
"""What a round's entry says that it cost."""


def make_initial_record(
    config: RunConfig,
    hparams: Mapping[str, Any],
    context: EngineContext,
    checksums: Mapping[str, str],
    choices: Mapping[str, Any],
    command: str,
) -> dict[str, Any]:
    """The record before the first round; `checksums` are of what all methods of a comparison have in common."""
    metric = context.task.metrics[0]
    return {
        "format": FORMAT,
        "status": "running",
        "name": config.label or context.method.name,
        "config": config.model_dump(mode="json"),
        "hparams": dict(hparams),
        "origins": find_hparam_origins(config, hparams),
        "command": command,
        "versions": collect_versions(),
        "machine": get_machine_name(context.device),
        "commit": get_commit(),
        "choices": dict(choices),
        "metric": {"name": metric.name, "higher_is_better": metric.higher_is_better},
        "data": summarize_dataset(context.data),
        "checksums": dict(checksums),
        "rounds": [],
        "scores": None,
        "summary": None,
        "final_window": None,
        "convergence": None,
        "cost": None,
    }


def has_same_data(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether runs had the same clients with the same examples, whatever their seeds."""
    sums = {record.get("checksums", {}).get("data") for record in records}
    return len(sums) == 1 and None not in sums


def compute_checksums(data: FederatedDataset, params: Params) -> dict[str, str]:
    """Checksums of the data as they are before any method's view of them, and of the first weights."""
    return {"data": compute_fingerprint(data), "weights": _hash_params(params)}


def _hash_params(params: Params) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(params.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def find_hparam_origins(config: RunConfig, hparams: Mapping[str, Any]) -> dict[str, str]:
    """Where every hyper-parameter's value comes from.

    validation: validation clients chose it in trials that scored nobody else; given: it was asked for; run: it follows
    from the size of the run; default: nobody said anything.
    """
    default = asdict(methods.make_hparams(config.method))
    found = {}
    for name, value in hparams.items():
        requested = config.hparams.get(name, default[name])
        origin = (
            "validation"
            if name in config.tuned
            else "given"
            if requested != default[name]
            else "default"
        )
        found[name] = "run" if origin == "default" and value != requested else origin
    return found


def scores_to_json(final: FinalScores) -> dict[str, Any]:
    """Every client's figures as JSON; None for a client that could not be tested."""
    scores = final.scores
    return {
        "ids": scores.ids.tolist(),
        "before": {name: _to_json_list(values) for name, values in scores.before.items()},
        "after": {name: _to_json_list(values) for name, values in scores.after.items()},
        "after_passes": {
            num_passes: {name: _to_json_list(values) for name, values in found.items()}
            for num_passes, found in final.after_passes.items()
        },
        "weights": _to_json_list(next(reversed(scores.weights.values()))),
    }


def compute_means(scores: Scores, headline: str) -> dict[str, Any]:
    """Means over the clients that could be tested; of the headline figure also that over all their examples."""
    return {
        stage: {name: _average_finite(values) for name, values in found.items()}
        | {
            "acc_micro": _to_json_number(
                compute_micro_mean(found[headline], scores.weights[headline])
            )
        }
        for stage, found in (("before", scores.before), ("after", scores.after))
    }


def _average_finite(values: np.ndarray) -> float | None:
    tested = values[np.isfinite(values)]
    return float(tested.mean()) if len(tested) else None


def _to_json_list(values: np.ndarray) -> list[float | None]:
    return [_to_json_number(float(value)) for value in values]


def _to_json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
