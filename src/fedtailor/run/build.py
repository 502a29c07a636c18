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
from fedtailor.convolution import works_on
from fedtailor.data.dataset import FederatedDataset, Units
from fedtailor.engines.base import Setting, calculate_in_tf32
from fedtailor.errors import InputError, nearest, require
from fedtailor.purity import drawn_from
from fedtailor.run.fitting import facts_of, prepare, task_for
from fedtailor.run.pretraining import Pretraining, refuse_pretraining
from fedtailor.run.record import OWN_MODEL
from fedtailor.run.spec import Spec
from fedtailor.task import Task

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


def dataset(spec: Spec) -> FederatedDataset:
    """The data set that a specification names."""
    return sources.load(spec.data, **spec.data_options)


def task(spec: Spec, units: Units, home: Path | None = None) -> Task:
    """The task that a specification names, with first weights drawn from the seed.

    A model of the user's own is made by the copy of its file in the run's folder `home`, if there is one.
    """
    make = maker(spec, units, home)
    with drawn_from(spec.seed):
        made = _own(make, spec.model) if ":" in spec.model else _known(make)
    task = task_for(made, units, spec.seed).to(dtype=torch.float64 if spec.precision == "float64" else torch.float32)
    if spec.precision in ("tf32", "bf16") and works_on(torch.device(spec.device)):
        task = task.stacking()
    return task.computing(torch.bfloat16) if spec.precision == "bf16" else task


def filled(spec: Spec, data: FederatedDataset) -> dict[str, Any]:
    """The hyper-parameters, with what was left open as it follows from the run."""
    known = facts_of(data, spec.rounds, spec.cohort)
    return asdict(methods.hyper_of(spec.method, **spec.hyper).for_run(known))


def maker(spec: Spec, units: Units, home: Path | None = None) -> Callable[[], Any]:
    """What makes the model."""
    if ":" in spec.model:
        file, _, name = spec.model.rpartition(":")
        copied = home is not None and (home / OWN_MODEL).exists()
        return _own_maker(home / OWN_MODEL if home and copied else Path(file), name)
    require(spec.model in MODELS[:-1], f"There is no model '{spec.model}'; {nearest(spec.model, MODELS)}")
    classes = units.classes or 1
    if spec.model in (*TEXT_MODELS, "lstm"):
        require(units.tokens, f"model: {spec.model} is for texts, but data set '{spec.data}' has none.")
        width = spec.hidden[0]
        own = partial(models.language_model, embedding=width, hidden=width, layers=len(spec.hidden))
        return partial(TEXT_MODELS.get(spec.model, own), classes, last=not units.label_shape)
    require(not units.tokens, f"model: {spec.model} is not for texts, as data set '{spec.data}' has; take shakespeare.")
    if spec.model in IMAGE_MODELS:
        return partial(IMAGE_MODELS[spec.model], units.shape, classes)
    hidden, other = spec.hidden if spec.model == "mlp" else (), spec.activation != "relu"
    activation = {"activation": ACTIVATIONS[spec.activation]} if other else {}
    return partial(models.mlp, prod(units.shape), hidden, classes, **activation)


def _known(make: Callable[[], nn.Module]) -> nn.Module:
    """A model of the list, or a sentence if the data does not fit it."""
    try:
        return make()
    except ValueError as problem:
        raise InputError(f"model: {problem}") from problem


def _own(make: Callable[[], Any], model: str) -> Any:
    """What the user's function makes, or a sentence."""
    try:
        made = make()
    except Exception as problem:
        raise InputError(f"model: '{model}' failed with {_said(problem)}") from problem
    fits = isinstance(made, nn.Module | Task)
    require(fits, f"model: '{model}' must make an nn.Module or a fedtailor Task, but made a {type(made).__name__}.")
    return made


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"


def _own_maker(path: Path, name: str) -> Callable[[], Any]:
    require(path.suffix == ".py" and path.is_file(), f"model: there is no Python file '{path}'.")
    described = importlib.util.spec_from_file_location(f"fedtailor_own_{path.stem}", path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[described.name] = module  # so that what the file defines can be pickled
    try:
        described.loader.exec_module(module)
    except Exception as problem:
        raise InputError(f"model: '{path}' failed with {_said(problem)}") from problem
    names = [known for known in vars(module) if not known.startswith("_")]
    require(hasattr(module, name), f"model: '{path}' has no '{name}'; {nearest(name, names)}")
    found: Callable[[], Any] = getattr(module, name)
    require(callable(found), f"model: '{name}' in '{path}' must be a class or function that makes a model.")
    return found


def pretraining(spec: Spec) -> Pretraining:
    """How the first model is made."""
    return Pretraining(spec.pretrain, spec.pretrain_lr, spec.pretrain_batch)


def setting(spec: Spec, data: FederatedDataset, home: Path | None = None, scratch: Path | None = None) -> Setting:
    """Method, model and data brought together as the specification says."""
    refuse_pretraining(pretraining(spec), data)
    calculate_in_tf32(spec.precision == "tf32")
    return prepare(
        spec.method,
        task(spec, data.units, home),
        data,
        rounds=spec.rounds,
        cohort=spec.cohort,
        seed=spec.seed,
        device=spec.device,
        memory=scratch,
        **spec.hyper,
    )
