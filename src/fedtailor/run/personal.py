"""A model for one person: tailored to their examples, and ready to predict."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import keyed, trees
from fedtailor.data.arrays import numbers
from fedtailor.data.dataset import FederatedDataset, Split, Units, sole_holder
from fedtailor.data.decoding import decoded
from fedtailor.engines.base import Site, alone, best_memory, telling
from fedtailor.errors import DivergedError, require
from fedtailor.task import Task
from fedtailor.types import Method, Params, State, Tree

_ONE_AT_A_TIME = threading.Lock()  # a task's module serves one caller at a time


@dataclass(frozen=True)
class Personal:
    """A model that has been tailored to one person. Inputs are in the units of the data that it was trained on."""

    task: Task
    units: Units
    params: Params

    def outputs(self, x: Any) -> Tensor:
        """The model's raw outputs."""
        inputs = torch.as_tensor(_inputs("predict", self.units, x)).to(next(iter(self.params.values())).device)
        with torch.no_grad(), _ONE_AT_A_TIME:
            return self.task.outputs(self.params, decoded(inputs, self.units, self.task.dtype))

    def predict(self, x: Any) -> np.ndarray:
        """Classes, tokens, labels of 0 and 1, or numbers, as the task has it."""
        outputs = self.outputs(x)
        if self.task.kind == "multilabel":
            outputs = outputs > 0
        elif self.task.kind != "regression":
            outputs = outputs.argmax(class_axis(self.task))
        predicted: np.ndarray = outputs.cpu().numpy()
        return predicted

    def module(self) -> nn.Module:
        """The model as an ordinary `nn.Module` in evaluation mode, which takes decoded inputs."""
        return self.task.module(self.params)


def tailored(
    method: Method, task: Task, state: State, units: Units, seed: int, x: Any, y: Any, offered: Tree | None = None
) -> Personal:
    """A trained method's model, tailored to somebody who is not in the data; `offered` memories are tried, if any."""
    person = _person(units, x, y)
    device = next(iter(state.params.values())).device
    site = Site(person.clients, units, task.dtype, device)
    key = keyed.key(seed, "personalise", "newcomer")
    given, own = method.broadcast(state), method.new_memory(state)
    with telling(f"{method.name}: personalise work", int(state.round), "the newcomer"), _ONE_AT_A_TIME:
        if offered is not None:
            own = best_memory(method, task, given, offered, site, 0, key)
        params: Params = alone(method.personalise, given, own, site, 0, key)
    if not trees.all_finite(params):
        raise DivergedError(f"{method.name}: the newcomer's model is no longer finite; train with a smaller tune_lr.")
    return Personal(task, units, params)


def class_axis(task: Task) -> int:
    """Which dimension of the outputs tells classes apart."""
    return 1 if task.kind == "classification" else -1


def _inputs(who: str, units: Units, x: Any) -> np.ndarray:
    """Inputs in the units of the training data, or a sentence."""
    array = numbers(who, "x", x)
    require(
        array.ndim == len(units.shape) + 1 and array.shape[1:] == units.shape,
        f"{who}: x must hold examples of shape {units.shape}, as in training, got an array of shape {array.shape}.",
    )
    whole = array.dtype.kind in "iu"
    require(whole or not units.tokens, f"{who}: x must be integers, as in training, got {array.dtype}.")
    require(
        whole or units.scale == 1.0,
        f"{who}: the training data were integers, which are scaled for the model; give x like them, got {array.dtype}.",
    )
    require(bool(np.isfinite(array).all()), f"{who}: x holds NaN or infinite numbers.")
    return array


def _person(units: Units, x: Any, y: Any) -> FederatedDataset:
    """One person's examples as a data set, so that the same promises are checked."""
    x, y = _inputs("personalise", units, x), numbers("personalise", "y", y)
    require(
        y.shape[1:] == units.label_shape and y.ndim > 0,
        f"personalise: y must hold labels of shape {units.label_shape}, as in training, got shape {y.shape}.",
    )
    nobody = np.array([], dtype=np.int64)
    holders = sole_holder(x, y)
    return FederatedDataset(
        name="newcomer",
        clients=holders._replace(splits={**holders.splits, "test": Split(nobody, np.array([0, 0]))}),
        ids=np.array(["newcomer"]),
        groups={"train": np.array([0]), "local": np.array([0]), "validation": nobody, "new": nobody},
        server=None,
        classes=units.classes,
        scale=units.scale,
        tokens=units.tokens,
        padding=units.padding,
        uncounted=units.uncounted,
    )
