"""A run that begins with the weights of another one, and is a run of its own for the rest.

It has its own rounds from the first one on, and its own states of server, optimizers and clients.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedtailor.core.task import Task
from fedtailor.core.types import Params
from fedtailor.engines.context import EngineContext
from fedtailor.errors import require
from fedtailor.storage.trusted_code import require_trusted_code
from fedtailor.training.checkpoint import CheckpointManager
from fedtailor.training.config import RunConfig, compute_evaluation_interval
from fedtailor.training.record.build import hash_params
from fedtailor.training.record.schema import Checksums, StartWeights
from fedtailor.training.run_dir import CUSTOM_MODEL_FILE, RunDir
from fedtailor.training.trained_model import load_trained_model

_NOT_INHERITED = {"start_from", "pretrain", "pretrain_lr", "pretrain_batch", "budget"}
"""Keys of the other run that concern its own first weights, or the comparison that it was in."""


def make_branch_values(out: Path, args: list[str]) -> dict[str, Any]:
    """Return the values of a specification for a run that begins with the weights of another one.

    They are those of the other run. Hyper-parameters and the label are left out if the arguments
    name another method, options of the data if they name other data; evaluations are spread over
    the rounds anew unless the other run had them elsewhere.

    Args:
        out: The folder of the other run; its copy of the user's model file, if any, must be
            trusted.
        args: The arguments that override the values.
    """
    for arg in args:
        require(
            "=" in arg,
            f"run: '{arg}' has a specification of its own, and so has the run in '{out}'; leave "
            f"out either, or put start_from={out} for --from {out}.",
        )
    config = RunDir(out).read_config()
    values = config.model_dump(exclude=_NOT_INHERITED) | {"start_from": str(out)}
    overrides = dict(arg.split("=", 1) for arg in args)
    if overrides.get("method", config.method) != config.method:
        values |= {"hparams": {}, "tuned": (), "label": ""}
    if overrides.get("data", config.data) != config.data:
        values["data_options"] = {}
    if config.evaluate_every == compute_evaluation_interval(config.rounds):
        values["evaluate_every"] = None
    values["tuned"] = [name for name in values["tuned"] if name not in overrides]
    if ":" in config.model and "model" not in overrides:
        path = out / CUSTOM_MODEL_FILE
        require(path.is_file(), f"'{path}' is missing; put back the file, which makes the model.")
        require_trusted_code(path, path.read_bytes())
        values["model"] = f"{path}:{config.model.rpartition(':')[2]}"
    return values


def read_start_params(config: RunConfig, context: EngineContext) -> Params:
    """Return the weights of the run that a specification names, which must fit its model.

    They are those of its last checkpoint.
    """
    trained = load_trained_model(Path(config.start_from))
    source_task = trained.task
    task = context.task
    _check_shapes(config, task.params, trained.state.params)
    _check_constants(config, task, source_task)
    return {
        name: trained.state.params[name].to(value.device, value.dtype)
        for name, value in task.params.items()
    }


def _check_shapes(config: RunConfig, expected: Params, weights: Params) -> None:
    for name in (*expected, *weights):
        expected_shape = _describe_shape(expected, name)
        shape = _describe_shape(weights, name)
        require(
            shape == expected_shape,
            f"start_from: the model {config.model} has {expected_shape} for {name}, but the run in "
            f"'{config.start_from}' has {shape}; use the model of that run, or leave out "
            "start_from.",
        )


def _describe_shape(params: Params, name: str) -> str:
    if name not in params:
        return "no weights"
    return f"weights of shape {tuple(params[name].shape)}"


def _check_constants(config: RunConfig, task: Task, source_task: Task) -> None:
    """Raise an InputError if what is not trained differs: weights belong to what they met."""
    for name, value in task.constants.items():
        other = source_task.constants.get(name)
        is_same = other is not None and torch.equal(
            value.cpu(), other.to(device="cpu", dtype=value.dtype)
        )
        require(
            is_same,
            f"start_from: {name}, which is not trained, is not the same in the model "
            f"{config.model} as in the run in '{config.start_from}'; use the model of that run and "
            "its seed, or leave out start_from.",
        )


class StartDescription(NamedTuple):
    """What a record says of the run that first weights were taken from."""

    started_from: StartWeights
    note: str  # "" if there is nothing to note


def describe_start(start_from: str, checksums: Checksums) -> StartDescription:
    """Return what the record of a run says of the run that its first weights were taken from.

    Args:
        start_from: The folder of that run.
        checksums: Of the data and of the first weights of the run that begins.
    """
    run_dir = RunDir(start_from)
    source = run_dir.read_stored_record()
    checkpoints = CheckpointManager(run_dir.path, None)
    started_from = StartWeights(
        path=start_from,
        name=source.name,
        seed=source.config.seed,
        rounds=checkpoints.find_last_round(),
        weights=checksums.weights,
    )
    note = ""
    if source.checksums.data != checksums.data:
        note = (
            "the first weights were trained on other data, or with other clients, perhaps on "
            "examples that are for testing here"
        )
    return StartDescription(started_from, note)


def check_same_start(started_from: StartWeights, params: Params) -> None:
    """Raise an InputError if first weights are not those that a run began with.

    Args:
        started_from: Where they were taken from when the run began.
        params: The weights that are there now.
    """
    require(
        hash_params(params) == started_from.weights,
        f"The run in '{started_from.path}', whose weights this run began with, has trained since, "
        "and no checkpoint of this run is there; start it again in another folder.",
    )
