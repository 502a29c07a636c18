"""Data, model, method and context, made from a specification."""

import hashlib
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
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.engines.context import EngineContext, allow_tf32
from fedtailor.errors import InputError, require, suggest_name, summarize_error
from fedtailor.ops.conv2d import has_kernels_for
from fedtailor.storage.memory import require_memory
from fedtailor.training.config import RunConfig
from fedtailor.training.context import compute_run_facts, infer_task, prepare_context
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
"""Models that are made for the shape of an image and a number of classes."""
TEXT_MODELS = {"shakespeare": models.shakespeare, "stackoverflow": models.stackoverflow}
"""Models that are made for the size of a vocabulary."""
MODELS = ("mlp", "linear", *IMAGE_MODELS, *TEXT_MODELS, "lstm", "FILE.py:NAME")
ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}


def load_dataset(config: RunConfig) -> FederatedDataset:
    """Return the data set that a specification names."""
    return sources.load(config.data, **config.data_options)


def build_task(config: RunConfig, example_spec: ExampleSpec, run_path: Path | None = None) -> Task:
    """Return the task that a specification names, with first weights drawn from the seed.

    Args:
        config: The specification.
        example_spec: The form of the examples.
        run_path: The folder of the run; its copy of the user's model file is used if it is there.
    """
    factory = get_model_factory(config, example_spec, run_path)
    with seed_initialization(config.seed):
        if ":" in config.model:
            model = _make_custom_model(factory, config.model)
        else:
            model = _make_builtin_model(factory)
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    task = infer_task(model, example_spec, config.seed).to(dtype=dtype)
    if config.precision in ("tf32", "bf16") and has_kernels_for(torch.device(config.device)):
        task = task.with_stacked_ops()
    if config.precision == "bf16":
        task = task.with_compute_dtype(torch.bfloat16)
    return task


def resolve_hparams(config: RunConfig, data: FederatedDataset) -> dict[str, Any]:
    """Return the hyper-parameters, with those left open computed from the size of the run."""
    facts = compute_run_facts(data, config.rounds, config.cohort)
    return asdict(methods.make_hparams(config.method, **config.hparams).resolve(facts))


def get_model_factory(
    config: RunConfig, example_spec: ExampleSpec, run_path: Path | None = None
) -> Callable[[], Any]:
    """Return the function that makes the model.

    Args:
        config: The specification.
        example_spec: The form of the examples, which the model must fit.
        run_path: The folder of the run; its copy of the user's model file is used if it is there.
    """
    if ":" in config.model:
        file, _, name = config.model.rpartition(":")
        path = Path(file)
        if run_path is not None and (run_path / CUSTOM_MODEL_FILE).exists():
            path = run_path / CUSTOM_MODEL_FILE
        return _load_custom_factory(path, name)
    require(
        config.model in MODELS[:-1],
        f"There is no model '{config.model}'; {suggest_name(config.model, MODELS)}",
    )
    if config.model in (*TEXT_MODELS, "lstm"):
        return _get_text_factory(config, example_spec)
    require(
        not example_spec.tokens,
        f"model: {config.model} is not for texts, as data set '{config.data}' has; use "
        "shakespeare.",
    )
    classes = example_spec.classes or 1
    if config.model in IMAGE_MODELS:
        return partial(IMAGE_MODELS[config.model], example_spec.shape, classes)
    hidden = config.hidden if config.model == "mlp" else ()
    factory = partial(models.mlp, prod(example_spec.shape), hidden, classes)
    if config.activation == "relu":
        return factory
    return partial(factory, activation=ACTIVATIONS[config.activation])


def _get_text_factory(config: RunConfig, example_spec: ExampleSpec) -> Callable[[], Any]:
    require(
        example_spec.tokens,
        f"model: {config.model} is for texts, but data set '{config.data}' has none.",
    )
    width = config.hidden[0]
    lstm_factory = partial(
        models.language_model, embedding=width, hidden=width, layers=len(config.hidden)
    )
    factory = TEXT_MODELS.get(config.model, lstm_factory)
    return partial(factory, example_spec.classes or 1, last_only=not example_spec.label_shape)


def _make_builtin_model(factory: Callable[[], nn.Module]) -> nn.Module:
    """Make a built-in model; raise an InputError if the data or memory do not fit it."""
    try:
        with torch.device("meta"):
            num_bytes = sum(parameter.nbytes for parameter in factory().parameters())
        require_memory("model: its parameters", num_bytes, "choose fewer classes or smaller layers")
        return factory()
    except (RuntimeError, TypeError) as problem:
        raise InputError(f"model: {summarize_error(problem)}.") from problem
    except ValueError as problem:
        raise InputError(f"model: {problem}") from problem


def _make_custom_model(factory: Callable[[], Any], model: str) -> Any:
    """Make the user's model; raise an InputError if that fails or it is no model."""
    try:
        result = factory()
    except Exception as problem:
        raise InputError(f"model: '{model}' failed with {summarize_error(problem)}.") from problem
    require(
        isinstance(result, nn.Module | Task),
        f"model: '{model}' must make an nn.Module or a fedtailor Task, but made a "
        f"{type(result).__name__}.",
    )
    return result


def _load_custom_factory(path: Path, name: str) -> Callable[[], Any]:
    require(path.suffix == ".py" and path.is_file(), f"model: there is no Python file '{path}'.")
    # The name depends on the content alone: other ranks load a copy and unpickle what it defines.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    module_spec = importlib.util.spec_from_file_location(f"fedtailor_custom_model_{digest}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # pickle looks for it there
    try:
        module_spec.loader.exec_module(module)
    except Exception as problem:
        raise InputError(f"model: '{path}' failed with {summarize_error(problem)}.") from problem
    names = [attribute for attribute in vars(module) if not attribute.startswith("_")]
    require(hasattr(module, name), f"model: '{path}' has no '{name}'; {suggest_name(name, names)}")
    factory: Callable[[], Any] = getattr(module, name)
    require(
        callable(factory),
        f"model: '{name}' in '{path}' must be a class or function that makes a model.",
    )
    return factory


def get_pretraining_config(config: RunConfig) -> PretrainingConfig:
    """Return how the first weights are pre-trained."""
    return PretrainingConfig(config.pretrain, config.pretrain_lr, config.pretrain_batch)


def build_context(
    config: RunConfig,
    data: FederatedDataset,
    run_path: Path | None = None,
    client_state_dir: Path | None = None,
) -> EngineContext:
    """Return method, model and data brought together as a specification says.

    Args:
        config: The specification.
        data: The data set that it names.
        run_path: The folder of the run; its copy of the user's model file is used if it is there.
        client_state_dir: Where client states are kept; None keeps them in RAM.
    """
    check_pretraining(get_pretraining_config(config), data)
    require(
        config.eval_groups != "validation" or len(data.groups["validation"]) > 0,
        f"eval_groups: validation clients alone are to be evaluated, but data set '{data.name}' "
        "has none; set some aside, for example with data.validation_clients=0.2.",
    )
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
