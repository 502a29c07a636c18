"""A model for one person: tailored to their examples, and ready to predict."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task, get_class_axis
from fedtailor.core.types import Method, Params, ServerState, Tree
from fedtailor.data.arguments import to_numeric_array
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.data.examples import Split, single_client
from fedtailor.engines.base import error_context
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.sequential import choose_best_state, run_single_client
from fedtailor.errors import DivergedError, require
from fedtailor.ops.decode import decode_inputs
from fedtailor.prng.streams import Stream

_MODULE_LOCK = threading.Lock()  # a task's module serves one caller at a time


@dataclass(frozen=True)
class PersonalModel:
    """A model that has been tailored to one person. Inputs are in the units of the data that it was trained on."""

    task: Task
    example_spec: ExampleSpec
    params: Params

    def compute_outputs(self, x: Any) -> Tensor:
        """The model's raw outputs."""
        inputs = torch.as_tensor(_check_inputs("predict", self.example_spec, x)).to(
            next(iter(self.params.values())).device
        )
        with torch.no_grad(), _MODULE_LOCK:
            return self.task.compute_outputs(
                self.params, decode_inputs(inputs, self.example_spec, self.task.dtype)
            )

    def predict(self, x: Any) -> np.ndarray:
        """Classes, tokens, labels of 0 and 1, or numbers, as the task has it."""
        outputs = self.compute_outputs(x)
        if self.task.kind == "multilabel":
            outputs = outputs > 0
        elif self.task.kind != "regression":
            outputs = outputs.argmax(get_class_axis(self.task))
        predicted: np.ndarray = outputs.cpu().numpy()
        return predicted

    def to_module(self) -> nn.Module:
        """The model as an ordinary `nn.Module` in evaluation mode, which takes decoded inputs."""
        return self.task.to_module(self.params)


def personalize_model(
    method: Method,
    task: Task,
    state: ServerState,
    example_spec: ExampleSpec,
    seed: int,
    x: Any,
    y: Any,
    offered_states: Tree | None = None,
) -> PersonalModel:
    """A trained method's model, tailored to somebody who is not in the data; `offered` memories are tried, if any."""
    newcomer = _make_newcomer_dataset(example_spec, x, y)
    device = next(iter(state.params.values())).device
    dataset = DeviceDataset(newcomer.clients, example_spec, task.dtype, device)
    key = prng.key(seed, Stream.PERSONALIZE, Stream.UNSEEN_CLIENT)
    shared_input, client_input = method.broadcast(state), method.init_client_state(state)
    with (
        error_context(f"{method.name}: personalize work", int(state.round), "the newcomer"),
        _MODULE_LOCK,
    ):
        if offered_states is not None:
            client_input = choose_best_state(
                method, task, shared_input, offered_states, dataset, 0, key
            )
        params: Params = run_single_client(
            method.personalize, shared_input, client_input, dataset, 0, key
        )
    if not trees.is_finite(params):
        raise DivergedError(
            f"{method.name}: the newcomer's model is no longer finite; train with a smaller finetune_lr."
        )
    return PersonalModel(task, example_spec, params)


def _check_inputs(caller: str, example_spec: ExampleSpec, x: Any) -> np.ndarray:
    """Inputs in the units of the training data, or a sentence."""
    array = to_numeric_array(caller, "x", x)
    require(
        array.ndim == len(example_spec.shape) + 1 and array.shape[1:] == example_spec.shape,
        f"{caller}: x must hold examples of shape {example_spec.shape}, as in training, "
        f"got an array of shape {array.shape}.",
    )
    is_integer = array.dtype.kind in "iu"
    require(
        is_integer or not example_spec.tokens,
        f"{caller}: x must be integers, as in training, got {array.dtype}.",
    )
    require(
        is_integer or example_spec.scale == 1.0,
        f"{caller}: the training data were integers, which are scaled for the model; "
        f"give x like them, got {array.dtype}.",
    )
    require(bool(np.isfinite(array).all()), f"{caller}: x holds NaN or infinite numbers.")
    return array


def _make_newcomer_dataset(example_spec: ExampleSpec, x: Any, y: Any) -> FederatedDataset:
    """One person's examples as a data set, so that the same promises are checked."""
    x, y = _check_inputs("personalize", example_spec, x), to_numeric_array("personalize", "y", y)
    require(
        y.shape[1:] == example_spec.label_shape and y.ndim > 0,
        f"personalize: y must hold labels of shape {example_spec.label_shape}, as in training, got shape {y.shape}.",
    )
    no_clients = np.array([], dtype=np.int64)
    examples = single_client(x, y)
    return FederatedDataset(
        name="newcomer",
        clients=examples._replace(
            splits={**examples.splits, "test": Split(no_clients, np.array([0, 0]))}
        ),
        client_names=np.array(["newcomer"]),
        groups={
            "train": np.array([0]),
            "participating": np.array([0]),
            "validation": no_clients,
            "unseen": no_clients,
        },
        server=None,
        classes=example_spec.classes,
        scale=example_spec.scale,
        tokens=example_spec.tokens,
        padding=example_spec.padding,
        unscored_tokens=example_spec.unscored_tokens,
    )
