"""Data, model, method and context, made from a specification."""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fedtailor import data as sources
from fedtailor import methods, models
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.engines.context import EngineContext, allow_tf32, resolve_device
from fedtailor.errors import InputError, require, suggest_name, summarize_error
from fedtailor.ops.conv2d import has_kernels_for
from fedtailor.storage.manifest import ListedFolder
from fedtailor.storage.memory import require_memory
from fedtailor.storage.trusted_code import require_trusted_code, trust_code
from fedtailor.training.config import RunConfig
from fedtailor.training.context import compute_run_facts, infer_task, prepare_context
from fedtailor.training.early_stopping import check_patience
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
MODEL_COPIES = 4
"""Copies of a model that training holds at the least.

They are the server's, a client's, its gradient and its update.
"""
ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU, "tanh": nn.Tanh}


@dataclass(frozen=True)
class ModelFactory:
    """A function that makes a model, with its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Return a new model."""
        return self.function(*self.args, **self.keywords)

    def format_call(self) -> str:
        """Return the call as Python code; layers are written as members of `torch.nn`."""
        parts = [repr(arg) for arg in self.args]
        for name, value in self.keywords.items():
            code = f"torch.nn.{value.__name__}" if isinstance(value, type) else repr(value)
            parts.append(f"{name}={code}")
        return f"{self.function.__name__}({', '.join(parts)})"


def load_dataset(config: RunConfig) -> FederatedDataset:
    """Return the data set that a specification names."""
    return sources.load(config.data, **config.data_options)


def build_task(
    config: RunConfig,
    example_spec: ExampleSpec,
    run_path: Path | None = None,
    is_trusted: bool = False,
) -> Task:
    """Return the task that a specification names, with first weights drawn from the seed.

    Args:
        config: The specification.
        example_spec: The form of the examples.
        run_path: The folder of the run or of a model, whose copy of the user's model file is used.
        is_trusted: Whether that copy is run although this machine may not have run it before.
    """
    factory = get_model_factory(config, example_spec, run_path, is_trusted)
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    if ":" not in config.model:
        _check_model_size(factory, config, dtype)
    with seed_initialization(config.seed):
        if ":" in config.model:
            model = _make_custom_model(factory, config.model)
        else:
            model = _make_builtin_model(factory)
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
    config: RunConfig,
    example_spec: ExampleSpec,
    run_path: Path | None = None,
    is_trusted: bool = False,
) -> ModelFactory:
    """Return the function that makes the model, with its arguments.

    Args:
        config: The specification.
        example_spec: The form of the examples, which the model must fit.
        run_path: The folder of the run or of a model, whose copy of the user's model file is used.
        is_trusted: Whether that copy is run although this machine may not have run it before.
    """
    if ":" in config.model:
        file, _, name = config.model.rpartition(":")
        if run_path is None:
            return ModelFactory(_load_custom_function(Path(file), name))
        path = run_path / CUSTOM_MODEL_FILE
        source = ListedFolder(run_path).read(CUSTOM_MODEL_FILE)
        if not is_trusted:
            require_trusted_code(path, source)
        return ModelFactory(_import_function(path, source, name))
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
        return ModelFactory(IMAGE_MODELS[config.model], (example_spec.shape, classes))
    hidden = config.hidden if config.model == "mlp" else ()
    keywords = {}
    if config.activation != "relu":
        keywords["activation"] = ACTIVATIONS[config.activation]
    return ModelFactory(models.mlp, (prod(example_spec.shape), hidden, classes), keywords)


def _get_text_factory(config: RunConfig, example_spec: ExampleSpec) -> ModelFactory:
    require(
        example_spec.tokens,
        f"model: {config.model} is for texts, but data set '{config.data}' has none.",
    )
    args = (example_spec.classes or 1,)
    keywords: dict[str, Any] = {"last_only": not example_spec.label_shape}
    if config.model in TEXT_MODELS:
        return ModelFactory(TEXT_MODELS[config.model], args, keywords)
    require(
        len(config.hidden) > 0,
        f"model: {config.model} needs the width of its layers; name one (hidden=64, say).",
    )
    width = config.hidden[0]
    sizes = {"embedding": width, "hidden": width, "layers": len(config.hidden)}
    return ModelFactory(models.language_model, args, sizes | keywords)


def _make_builtin_model(factory: Callable[[], nn.Module]) -> nn.Module:
    """Make a built-in model; raise an InputError if the data do not fit it."""
    try:
        return factory()
    except TypeError as problem:
        raise InputError(f"model: {summarize_error(problem)}.") from problem
    except ValueError as problem:
        raise InputError(f"model: {problem}") from problem


def _check_model_size(
    factory: Callable[[], nn.Module], config: RunConfig, dtype: torch.dtype
) -> None:
    """Raise an InputError if training a model takes more memory than there is."""
    subject = f"model: {config.model}"
    if config.model in ("mlp", "lstm"):
        subject += f" with hidden={','.join(map(str, config.hidden))}"
    try:
        with torch.device("meta"):
            model = _make_builtin_model(factory)
    except RuntimeError:  # more bytes than 64 bits can count
        raise InputError(f"{subject} is too large for any machine; choose a smaller one.") from None
    num_bytes = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    require_memory(subject, MODEL_COPIES * num_bytes, "choose a smaller model")


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


def _load_custom_function(path: Path, name: str) -> Callable[[], Any]:
    require(path.suffix == ".py" and path.is_file(), f"model: there is no Python file '{path}'.")
    return _import_function(path, path.read_bytes(), name)


def _import_function(path: Path, source: bytes, name: str) -> Callable[[], Any]:
    """Return the function of that name in a module.

    Args:
        path: Its file.
        source: The content of the file.
        name: The function, or class.
    """
    # The name depends on the content alone: other ranks load a copy and unpickle what it defines.
    digest = hashlib.sha256(source).hexdigest()[:16]
    module = ModuleType(f"fedtailor_custom_model_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # pickle looks for it there
    try:
        # Not by the import system, which may run a compiled copy beside the file instead.
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as problem:
        raise InputError(f"model: '{path}' failed with {summarize_error(problem)}.") from problem
    names = [attribute for attribute in vars(module) if not attribute.startswith("_")]
    require(hasattr(module, name), f"model: '{path}' has no '{name}'; {suggest_name(name, names)}")
    function: Callable[[], Any] = getattr(module, name)
    require(
        callable(function),
        f"model: '{name}' in '{path}' must be a class or function that makes a model.",
    )
    return function


def trust_folder(folder: Path) -> None:
    """Allow the copy of a model file in the folder of a run or of a model, if any, to be run."""
    path = folder / CUSTOM_MODEL_FILE
    if path.is_file():
        trust_code(path.read_bytes())


def trust_folders(folder: Path) -> None:
    """Allow the copies of model files in all folders of runs below a folder to be run."""
    for path in sorted(folder.rglob(CUSTOM_MODEL_FILE)):
        trust_folder(path.parent)


def trust_named_file(config: RunConfig) -> None:
    """Allow the file to be run that a specification names for its model, if there is one.

    Then copies of it in folders of runs are run too.
    """
    path = Path(config.model.rpartition(":")[0])
    if path.is_file():
        trust_code(path.read_bytes())


def get_pretraining_config(config: RunConfig) -> PretrainingConfig:
    """Return how the first weights are pre-trained."""
    return PretrainingConfig(config.pretrain, config.pretrain_lr, config.pretrain_batch)


def build_context(
    config: RunConfig,
    data: FederatedDataset,
    run_path: Path | None = None,
    client_state_dir: Path | None = None,
    is_trusted: bool = False,
) -> EngineContext:
    """Return method, model and data brought together as a specification says.

    Args:
        config: The specification.
        data: The data set that it names.
        run_path: The folder of the run, whose copy of the user's model file is used.
        client_state_dir: Where client states are kept; None keeps them in RAM.
        is_trusted: Whether that copy is run although this machine may not have run it before.
    """
    resolve_device(config.device)  # refuses one that is not there
    check_pretraining(get_pretraining_config(config), data)
    check_patience(config.patience, data)
    require(
        config.eval_groups != "validation" or len(data.groups["validation"]) > 0,
        f"eval_groups: validation clients alone are to be evaluated, but data set '{data.name}' "
        "has none; set some aside, for example with data.validation_clients=0.2.",
    )
    allow_tf32(config.precision == "tf32")
    return prepare_context(
        config.method,
        build_task(config, data.example_spec, run_path, is_trusted),
        data,
        rounds=config.rounds,
        cohort=config.cohort,
        seed=config.seed,
        device=config.device,
        client_state_dir=client_state_dir,
        **config.hparams,
    )
