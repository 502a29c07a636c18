"""A model for one client: personalized on its examples, and ready to predict."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import Task, get_class_axis
from fedtailor.core.types import Params
from fedtailor.data.arguments import to_numeric_array
from fedtailor.data.dataset import ExampleSpec, FederatedDataset
from fedtailor.data.examples import Split, single_client
from fedtailor.engines.base import ClientWork, error_context
from fedtailor.engines.device_data import DeviceDataset
from fedtailor.engines.offered_states import choose_best_state
from fedtailor.engines.single_client import run_single_client
from fedtailor.errors import DivergedError, InputError, require
from fedtailor.ops.decode import decode_inputs
from fedtailor.prng.streams import Stream
from fedtailor.training.trained_model import TrainedModel

_MODULE_LOCK = threading.Lock()  # a task's module serves one thread at a time


@dataclass(frozen=True)
class PersonalModel:
    """A personalized model. Its inputs are in the units of the data that it was trained on."""

    task: Task
    example_spec: ExampleSpec
    params: Params

    def compute_outputs(self, x: Any, first_example: int = 0) -> Tensor:
        """Return the model's raw outputs for a batch of inputs.

        Inputs that overflow the model's type, and outputs that are not finite, raise `InputError`.

        Args:
            x: The inputs.
            first_example: Number of the first one, from which errors count.
        """
        array = _check_inputs("predict", self.example_spec, x)
        device = next(iter(self.params.values())).device
        stored = torch.as_tensor(array).to(device)
        inputs = decode_inputs(stored, self.example_spec, self.task.dtype)
        if not self.example_spec.tokens:
            reason = f"x overflows the model's {self.task.dtype}"
            _require_finite(inputs, reason, first_example)
        with torch.no_grad(), _MODULE_LOCK:
            outputs = self.task.compute_outputs(self.params, inputs)
        _require_finite(outputs, "the model's output is not finite", first_example)
        return outputs

    def predict(self, x: Any, first_example: int = 0) -> np.ndarray:
        """Return predictions for a batch of inputs, by the kind of task.

        These are classes, tokens, 0 or 1 for each label of a multilabel task, or the numbers of a
        regression. `first_example` is the number of the first input, from which errors count.
        """
        outputs = self.compute_outputs(x, first_example)
        if self.task.kind == "multilabel":
            outputs = outputs > 0
        elif self.task.kind != "regression":
            outputs = outputs.argmax(get_class_axis(self.task))
        predictions: np.ndarray = outputs.cpu().numpy()
        return predictions

    def to_module(self) -> nn.Module:
        """Return an ordinary `nn.Module` in evaluation mode, which takes decoded inputs."""
        return self.task.to_module(self.params)


def personalize_model(model: TrainedModel, x: Any, y: Any) -> PersonalModel:
    """Personalize a trained model on the examples of an unseen client.

    The client starts from the offered state with which it personalizes best, or from an initial
    state if none are offered.

    Args:
        model: The trained model.
        x: The client's inputs, in the units of the training data.
        y: The client's targets.
    """
    method = model.method
    task = model.task
    state = model.state
    client_data = _make_client_dataset(model.example_spec, x, y)
    device = next(iter(state.params.values())).device
    device_data = DeviceDataset(client_data.clients, model.example_spec, task.dtype, device)
    key = prng.key(model.seed, Stream.PERSONALIZE, Stream.UNSEEN_CLIENT)
    work = ClientWork(device_data, 0, key)
    broadcast = method.broadcast(state)
    client_state = method.init_client_state(state)
    stage = f"{method.name}: personalize work"
    with error_context(stage, int(state.round), "the unseen client"), _MODULE_LOCK:
        if model.offered_states is not None:
            client_state = choose_best_state(method, task, broadcast, model.offered_states, work)
        params: Params = run_single_client(method.personalize, broadcast, client_state, work)
    if not trees.is_finite(params):
        raise DivergedError(
            f"{method.name}: the personalized model is no longer finite; train with a smaller "
            "finetune_lr."
        )
    return PersonalModel(task, model.example_spec, params)


def _require_finite(values: Tensor, reason: str, first_example: int) -> None:
    """Raise an `InputError` that names the first example with a value that is not finite.

    Args:
        values: A row for each example.
        reason: What is wrong with that example.
        first_example: Number of the first row.
    """
    is_finite = torch.isfinite(values).flatten(1).all(1) if values.ndim > 1 else values.isfinite()
    if not bool(is_finite.all()):
        number = first_example + int((~is_finite).int().argmax())
        raise InputError(f"predict: {reason} for example {number}; check its numbers.")


def _check_inputs(caller: str, example_spec: ExampleSpec, x: Any) -> np.ndarray:
    """Return inputs as an array; raise an InputError if they are not in the training data's form.

    Args:
        caller: Name of the called function, with which messages begin.
        example_spec: Form of the training data.
        x: The inputs.
    """
    array = to_numeric_array(caller, "x", x)
    require(
        array.ndim > 0 and array.shape[1:] == example_spec.shape,
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
        f"{caller}: the training data were integers, which are scaled for the model; x must be "
        f"integers, too, got {array.dtype}.",
    )
    require(bool(np.isfinite(array).all()), f"{caller}: x must be finite, but has NaN or infinity.")
    if array.dtype == np.longdouble and array.dtype != np.float64:  # torch has no such numbers
        return array.astype(np.float64)
    return array


def _make_client_dataset(example_spec: ExampleSpec, x: Any, y: Any) -> FederatedDataset:
    """Make a data set of one client, so that its examples are checked like those of training."""
    inputs = _check_inputs("personalize", example_spec, x)
    targets = to_numeric_array("personalize", "y", y)
    require(
        targets.ndim > 0 and targets.shape[1:] == example_spec.label_shape,
        f"personalize: y must hold labels of shape {example_spec.label_shape}, as in training, "
        f"got an array of shape {targets.shape}.",
    )
    examples = single_client(inputs, targets)
    no_rows = np.array([], dtype=np.int64)
    no_clients = np.array([], dtype=np.int64)
    splits = {**examples.splits, "test": Split(no_rows, np.array([0, 0]))}
    return FederatedDataset(
        name="personalize",  # messages about the data set begin with it
        clients=examples._replace(splits=splits),
        client_names=np.array(["unseen"]),
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
