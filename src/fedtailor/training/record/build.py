"""Build the parts of a record from what a run computes with."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedtailor.core.types import Params
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.client_statistics import (
    Scores,
    compute_micro_mean,
    compute_spread,
)
from fedtailor.evaluation.evaluate import FinalScores
from fedtailor.training.config import CommonConfig, RunConfig, get_default_hparams
from fedtailor.training.record.dataset_summary import compute_fingerprint, summarize_dataset
from fedtailor.training.record.provenance import collect_versions, get_commit, get_machine_name
from fedtailor.training.record.schema import (
    Checksums,
    Choices,
    ClientFigures,
    Figures,
    GroupScores,
    MetricInfo,
    Origin,
    RoundEntry,
    RunCost,
    RunRecord,
    Work,
)


def make_initial_record(
    config: RunConfig,
    hparams: Mapping[str, Any],
    context: EngineContext,
    checksums: Checksums,
    choices: Choices,
    command: str,
) -> RunRecord:
    """Return the record before the first round.

    Args:
        config: What was asked for.
        hparams: The method's hyper-parameters, with those left open filled in.
        context: The method, task and data of the run.
        checksums: Of what the run begins with.
        choices: What was decided before the first round.
        command: The command that makes this run again.
    """
    metric = context.task.metrics[0]
    return RunRecord(
        status="running",
        name=config.label or context.method.name,
        config=config,
        hparams=dict(hparams),
        origins=find_hparam_origins(config, hparams),
        command=command,
        versions=collect_versions(),
        machine=get_machine_name(context.device),
        commit=get_commit(),
        choices=choices,
        metric=MetricInfo(name=metric.name, higher_is_better=metric.higher_is_better),
        data=summarize_dataset(context.data),
        checksums=checksums,
    )


def compute_checksums(config: bytes, data: FederatedDataset, params: Params) -> Checksums:
    """Return checksums of what a run begins with.

    Args:
        config: The content of the specification's file.
        data: The data, before any method's view of them.
        params: The first weights.
    """
    return Checksums(
        config=hashlib.sha256(config).hexdigest(),
        data=compute_fingerprint(data),
        weights=hash_params(params),
    )


def hash_params(params: Params) -> str:
    """Return the SHA-256 of named weights, with their dtypes and shapes."""
    digest = hashlib.sha256()
    for name, value in sorted(params.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def find_hparam_origins(config: RunConfig, hparams: Mapping[str, Any]) -> dict[str, Origin]:
    """Return where the value of every hyper-parameter comes from."""
    defaults = get_default_hparams(config.method, CommonConfig().finetune)
    origins: dict[str, Origin] = {}
    for name, value in hparams.items():
        requested = config.hparams.get(name, defaults[name])
        if name in config.tuned:
            origins[name] = "validation"
        elif requested != defaults[name]:
            origins[name] = "given"
        elif value != requested:
            origins[name] = "run"
        else:
            origins[name] = "default"
    return origins


def make_group_scores(final: FinalScores) -> GroupScores:
    """Return the final scores of a group's clients as they are recorded."""
    scores = final.scores
    weights = next(reversed(scores.weights.values()))
    return GroupScores(
        ids=scores.ids.tolist(),
        before=_to_client_figures(scores.before),
        after=_to_client_figures(scores.after),
        weights=_to_json_list(weights),
        after_passes={
            num_passes: _to_client_figures(figures)
            for num_passes, figures in final.after_passes.items()
        },
    )


def compute_group_means(scores: Scores, headline: str) -> dict[str, Figures]:
    """Return means over the clients that could be tested, by stage.

    A mean is None if a client's model has diverged, so that no mean leaves it out. `acc_micro` is
    the mean of the `headline` metric over all examples of these clients.
    """
    means: dict[str, Figures] = {}
    for stage, figures in (("before", scores.before), ("after", scores.after)):
        micro = compute_micro_mean(figures[headline], scores.weights[headline])
        means[stage] = {name: _average_tested(values) for name, values in figures.items()}
        means[stage]["acc_micro"] = _to_json_number(micro)
    return means


def sum_costs(rounds: Iterable[RoundEntry]) -> RunCost:
    """Return what rounds cost together."""
    entries = list(rounds)
    totals = {name: sum(getattr(entry, name) for entry in entries) for name in Work.model_fields}
    return RunCost(**totals)


def _average_tested(values: np.ndarray) -> float | None:
    """Return the mean over tested clients; None without any, or if the model of one diverged."""
    return _to_json_number(compute_spread(values).mean)


def _to_client_figures(figures: Mapping[str, np.ndarray]) -> ClientFigures:
    return {name: _to_json_list(values) for name, values in figures.items()}


def _to_json_list(values: np.ndarray) -> list[float | None]:
    return [_to_json_number(float(value)) for value in values]


def _to_json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None
