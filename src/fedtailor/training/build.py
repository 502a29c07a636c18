"""From a specification to the things themselves: data, model, method."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedtailor import data as sources
from fedtailor import methods, models
from fedtailor.core.functionalize import seeded_init
from fedtailor.core.task import Task
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.engines.context import EngineContext, allow_tf32
from fedtailor.errors import InputError, require, suggest_name
from fedtailor.ops.conv2d import has_kernels_for
from fedtailor.training.config import RunConfig
from fedtailor.training.prepare import compute_run_facts, infer_task, prepare_context
from fedtailor.training.pretraining import PretrainingConfig, check_pretraining
from fedtailor.training.run_dir import CUSTOM_MODEL_FILE

IMAGE_MODELS = {
    "lenet": models.lenet,
    "conv4": models.conv4,
    "fsl-emnist": models.fsl_emnist,
    "fsl-cifar": models.fsl_cifar,
    "fedsim-femnist": models.fedsim_femnist,
    "resnet18": models.resnet18,
}
"""Models that are made for images of a shape and a number of classes."""
TEXT_MODELS = {"shakespeare": models.shakespeare, "stackoverflow": models.stackoverflow}
"""Models that are made for texts of a vocabulary."""
MODELS = ("mlp", "linear", *IMAGE_MODELS, *TEXT_MODELS, "lstm", "FILE.py:NAME")
ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}


def load_dataset(config: RunConfig) -> FederatedDataset:
    """The data set that a specification names."""
    return sources.load(config.data, **config.data_options)


def build_task(config: RunConfig, example_spec: ExampleSpec, run_path: Path | None = None) -> Task:
    """The task that a specification names, with first weights drawn from the seed.

    A model of the user's own is made by the copy of its file in the run's folder `home`, if there is one.
    """
    factory = get_model_factory(config, example_spec, run_path)
    with seeded_init(config.seed):
        model = (
            _make_custom_model(factory, config.model)
            if ":" in config.model
            else _make_builtin_model(factory)
        )
    task = infer_task(model, example_spec, config.seed).to(
        dtype=torch.float64 if config.precision == "float64" else torch.float32
    )
    if config.precision in ("tf32", "bf16") and has_kernels_for(torch.device(config.device)):
        task = task.with_stacked_ops()
    return task.with_compute_dtype(torch.bfloat16) if config.precision == "bf16" else task


def resolve_hparams(config: RunConfig, data: FederatedDataset) -> dict[str, Any]:
    """The hyper-parameters, with what was left open as it follows from the run."""
    facts = compute_run_facts(data, config.rounds, config.cohort)
    return asdict(methods.make_hparams(config.method, **config.hparams).resolve(facts))


def get_model_factory(
    config: RunConfig, example_spec: ExampleSpec, run_path: Path | None = None
) -> Callable[[], Any]:
    """What makes the model."""
    if ":" in config.model:
        file, _, name = config.model.rpartition(":")
        has_copy = run_path is not None and (run_path / CUSTOM_MODEL_FILE).exists()
        return _load_custom_factory(
            run_path / CUSTOM_MODEL_FILE if run_path and has_copy else Path(file), name
        )
    require(
        config.model in MODELS[:-1],
        f"There is no model '{config.model}'; {suggest_name(config.model, MODELS)}",
    )
    classes = example_spec.classes or 1
    if config.model in (*TEXT_MODELS, "lstm"):
        require(
            example_spec.tokens,
            f"model: {config.model} is for texts, but data set '{config.data}' has none.",
        )
        width = config.hidden[0]
        lstm_factory = partial(
            models.language_model, embedding=width, hidden=width, layers=len(config.hidden)
        )
        return partial(
            TEXT_MODELS.get(config.model, lstm_factory),
            classes,
            last_only=not example_spec.label_shape,
        )
    require(
        not example_spec.tokens,
        f"model: {config.model} is not for texts, as data set '{config.data}' has; take shakespeare.",
    )
    if config.model in IMAGE_MODELS:
        return partial(IMAGE_MODELS[config.model], example_spec.shape, classes)
    hidden, has_other_activation = (
        config.hidden if config.model == "mlp" else (),
        config.activation != "relu",
    )
    activation = {"activation": ACTIVATIONS[config.activation]} if has_other_activation else {}
    return partial(models.mlp, prod(example_spec.shape), hidden, classes, **activation)


def _make_builtin_model(factory: Callable[[], nn.Module]) -> nn.Module:
    """A model of the list, or a sentence if the data does not fit it."""
    try:
        return factory()
    except ValueError as problem:
        raise InputError(f"model: {problem}") from problem


def _make_custom_model(factory: Callable[[], Any], model: str) -> Any:
    """What the user's function makes, or a sentence."""
    try:
        result = factory()
    except Exception as problem:
        raise InputError(f"model: '{model}' failed with {_describe_error(problem)}") from problem
    is_model = isinstance(result, nn.Module | Task)
    require(
        is_model,
        f"model: '{model}' must make an nn.Module or a fedtailor Task, but made a {type(result).__name__}.",
    )
    return result


def _describe_error(problem: Exception) -> str:
    return f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"


def _load_custom_factory(path: Path, name: str) -> Callable[[], Any]:
    require(path.suffix == ".py" and path.is_file(), f"model: there is no Python file '{path}'.")
    module_spec = importlib.util.spec_from_file_location(f"fedtailor_own_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # so that what the file defines can be pickled
    try:
        module_spec.loader.exec_module(module)
    except Exception as problem:
        raise InputError(f"model: '{path}' failed with {_describe_error(problem)}") from problem
    names = [attribute for attribute in vars(module) if not attribute.startswith("_")]
    require(hasattr(module, name), f"model: '{path}' has no '{name}'; {suggest_name(name, names)}")
    factory: Callable[[], Any] = getattr(module, name)
    require(
        callable(factory),
        f"model: '{name}' in '{path}' must be a class or function that makes a model.",
    )
    return factory


def get_pretraining_config(config: RunConfig) -> PretrainingConfig:
    """How the first model is made."""
    return PretrainingConfig(config.pretrain, config.pretrain_lr, config.pretrain_batch)


def build_context(
    config: RunConfig,
    data: FederatedDataset,
    run_path: Path | None = None,
    client_state_dir: Path | None = None,
) -> EngineContext:
    """Method, model and data brought together as the specification says."""
    check_pretraining(get_pretraining_config(config), data)
    allow_tf32(config.precision == "tf32")
    return prepare_context(
        config.method,
        build_task(config, data.example_spec, run_path),
        data,
        rounds=config.rounds,
        cohort=config.cohort,
        seed=config.seed,
        device=config.device,
        client_state_dir=client_state_dir,
        **config.hparams,
    )
