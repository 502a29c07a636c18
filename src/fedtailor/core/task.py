"""A `Task` turns an `nn.Module` with a loss and metrics into pure functions of a parameter dict.

What may not be pure is handled here, once: dropout draws its masks from the batch's key, frozen
parameters and buffers are constants, and tied parameters stay tied. Modules that keep running
statistics are refused, since a client's batches would change the model without the method knowing.
Models take the batch as the first dimension: padding then follows the examples, and changes neither
their outputs nor their dropout.
"""

import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as nnf

from fedtailor import prng
from fedtailor.core import losses, metrics
from fedtailor.core.functionalize import (
    FunctionalCall,
    forbid_global_randomness,
    list_dropout_layers,
    make_dropout_keys,
    reject_impure_layers,
    run_and_check_unchanged,
    with_keyed_dropout,
)
from fedtailor.core.losses import PerExample
from fedtailor.core.metrics import Metric
from fedtailor.core.types import Batch, Params
from fedtailor.errors import InputError, require
from fedtailor.ops.conv2d import with_plain_convolutions, with_stacked_convolutions
from fedtailor.ops.modules import copy_module

_TRAINABLE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of parameters that optimizers and sums over clients are made for."""

_MIN_OUTPUT_DIMS = {"classification": 2, "sequences": 3}
"""Least dimensions of the outputs by kind of task; 1 for the others."""


@dataclass(frozen=True)
class Task:
    """A model to be learned, with its initial parameters, a loss and metrics, headline first."""

    kind: str
    train_module: nn.Module
    eval_module: nn.Module
    params: Params
    constants: dict[str, Tensor]  # frozen parameters and buffers
    per_example_loss: PerExample
    metrics: tuple[Metric, ...]
    compute_dtype: torch.dtype | None = None  # the model's arithmetic; None: the parameters' dtype

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """Return the mean loss over the real examples of a batch, in training mode.

        Dropout draws from the batch's key.
        """
        keys = {name: prng.fold(batch.key, number) for name, number in self._dropout_layers.items()}
        tensors = {**self.constants, **params, **keys}
        return self.mean_loss(self._call_model(self.train_module, tensors, batch.x), batch)

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of the model's outputs over the real examples of a batch."""
        return losses.masked_mean(self.per_example_loss(outputs, batch.y), batch.mask)

    def compute_outputs(self, params: Params, x: Tensor) -> Tensor:
        """Return the model's outputs in evaluation mode."""
        result: Tensor = self._call_model(self.eval_module, {**self.constants, **params}, x)
        return result

    def _call_model(self, model: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Any:
        """Return what a model returns, in the dtype of the parameters whatever it computes in."""
        if self.compute_dtype is not None:
            return self._call_in_compute_dtype(model, tensors, x, self.compute_dtype)
        if model is self.train_module and not self._has_tied_params:
            return self._call_training(tensors, x)
        return functional_call(model, tensors, (x,), tie_weights=self._has_tied_params)

    def _call_in_compute_dtype(
        self, model: nn.Module, tensors: dict[str, Tensor], x: Tensor, dtype: torch.dtype
    ) -> Any:
        tensors = {name: _cast_floating(value, dtype) for name, value in tensors.items()}
        inputs = (_cast_floating(x, dtype),)
        result = functional_call(model, tensors, inputs, tie_weights=self._has_tied_params)
        if isinstance(result, _HeadInput):
            return _HeadInput(result.features.to(self.dtype))
        return result.to(self.dtype)

    def compute_metric_sums(self, params: Params, batch: Batch) -> dict[str, Tensor]:
        """Return the pair (sum, weight) over a batch's real examples for the loss and each metric.

        Non-finite outputs count as the worst there is: an infinite loss or error, no hit.
        """
        outputs = self.compute_outputs(params, batch.x)
        # Half precision cannot count far.
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        is_finite = torch.isfinite(outputs).flatten(1).all(1)
        sums = {}
        for metric in (Metric("loss", self.per_example_loss, False), *self.metrics):
            pairs = metrics.replace_nonfinite(
                is_finite, metric.per_example(outputs, batch.y), metric.higher_is_better
            )
            sums[metric.name] = losses.masked_sums(pairs, batch.mask)
        return sums

    @cached_property
    def _dropout_layers(self) -> dict[str, int]:
        return list_dropout_layers(self.train_module)

    @cached_property
    def _call_training(self) -> FunctionalCall:
        return FunctionalCall(self.train_module)

    @cached_property
    def _has_tied_params(self) -> bool:
        # Cached because torch's own search for tied tensors takes as long as a small layer.
        tensors = [
            *self.train_module.named_parameters(remove_duplicate=False),
            *self.train_module.named_buffers(remove_duplicate=False),
        ]
        return len({id(tensor) for _, tensor in tensors}) < len(tensors)

    @cached_property
    def head_param_names(self) -> tuple[str, ...]:
        """The trainable parameters of the head: the last registered layer that has any."""
        layer, _ = _find_head(self.train_module)
        return tuple(name for name in self.params if name.rpartition(".")[0] == layer)

    @cached_property
    def cut(self) -> "ModelCut":
        """The model cut at its last layer, which must be linear and give the model's output."""
        return _cut_model(self.train_module)

    def compute_features(self, params: Params, batch: Batch) -> Tensor:
        """Return the inputs of the last layer in training mode.

        `loss(params, batch)` is `mean_loss(apply_head(params, features), batch)`.
        """
        layer, _, encoder = self.cut
        tensors = {**self.constants, **params, **make_dropout_keys(encoder, batch.key)}
        refusal = (
            f"Task: to be cut at its last layer '{layer}', "
            "the model must return what this gives, as it is."
        )
        try:
            head_input = self._call_model(encoder, tensors, batch.x)
        except (AttributeError, TypeError) as error:
            raise InputError(refusal) from error
        require(isinstance(head_input, _HeadInput), refusal)
        features: Tensor = head_input.features
        return features

    def apply_head(self, params: Params, features: Tensor) -> Tensor:
        """Return the last layer's outputs; `params` may contain its own parameters alone."""
        tensors = {**self.constants, **params}
        prefix = f"{self.cut.head_name}." if self.cut.head_name else ""
        return nnf.linear(features, tensors[f"{prefix}weight"], tensors.get(f"{prefix}bias"))

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the parameters."""
        return next(iter(self.params.values())).dtype

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Task":
        """Return the task on another device or in another precision."""
        params = {name: value.to(device, dtype) for name, value in self.params.items()}
        constants = {}
        for name, value in self.constants.items():
            # Integer buffers keep their type.
            constants[name] = value.to(device, dtype if value.is_floating_point() else None)
        return replace(self, params=params, constants=constants)

    def with_compute_dtype(self, dtype: torch.dtype | None) -> "Task":
        """Return the task with another type for the model's arithmetic.

        Parameters, losses and sums keep theirs.
        """
        return replace(self, compute_dtype=dtype)

    def with_stacked_ops(self) -> "Task":
        """Return the task with convolutions that run a stack of clients as one operation on a GPU.

        They multiply in tf32 or bf16, less exact than float32, and are slower on other devices.
        """
        return replace(
            self,
            train_module=with_stacked_convolutions(self.train_module),
            eval_module=with_stacked_convolutions(self.eval_module),
        )

    def copy_modules(self) -> "Task":
        """Return the task with modules of its own: a module serves one thread at a time."""
        return replace(
            self,
            train_module=copy_module(self.train_module),
            eval_module=copy_module(self.eval_module),
        )

    def to_module(self, params: Params) -> nn.Module:
        """Return an ordinary `nn.Module` in evaluation mode with a copy of these parameters."""
        model = copy.deepcopy(with_plain_convolutions(self.eval_module))
        values = {**self.constants, **params}
        tensors: dict[str, Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        mismatched = sorted(values.keys() ^ tensors.keys())
        require(
            not mismatched,
            f"Task: parameters must be the model's own, but {mismatched} are missing or unknown.",
        )
        for name, tensor in tensors.items():
            tensor.data = values[name].detach().clone()
        return model


def classification(model: nn.Module) -> Task:
    """Return the task of predicting one of several classes.

    Outputs are `[B, classes]` and y is `[B]`, integer. The loss is cross-entropy, the metric
    accuracy.
    """
    accuracy = Metric("accuracy", metrics.accuracy, True)
    return _make_task("classification", model, losses.cross_entropy, accuracy)


def multilabel(model: nn.Module) -> Task:
    """Return the task of predicting any of several labels.

    Outputs are `[B, labels]` and y is `[B, labels]` of 0 and 1. The loss is binary cross-entropy,
    the metrics are F1 and accuracy.
    """
    f1 = Metric("f1", metrics.f1, True)
    accuracy = Metric("accuracy", metrics.label_accuracy, True)
    return _make_task("multilabel", model, losses.binary_cross_entropy, f1, accuracy)


def regression(model: nn.Module) -> Task:
    """Return the task of predicting numbers.

    Outputs have the size of y. The loss is the squared error, the metric the mean absolute error.
    """
    absolute_error = Metric("mae", metrics.absolute_error, False)
    return _make_task("regression", model, losses.squared_error, absolute_error)


def sequences(
    model: nn.Module, padding: tuple[int, ...] = (0,), unscored_tokens: tuple[int, ...] = ()
) -> Task:
    """Return the task of predicting a token at each position of a sequence.

    Outputs are `[B, T, vocabulary]` and y is `[B, T]`. The loss is cross-entropy per token, the
    metric accuracy per token.

    Args:
        model: The model.
        padding: Tokens of y that count for neither the loss nor the accuracy.
        unscored_tokens: Further tokens that are learned but do not count for the accuracy, such as
            out of vocabulary and end of sentence.
    """
    per_example = partial(losses.token_cross_entropy, padding)
    token_accuracy = partial(metrics.token_accuracy, (*padding, *unscored_tokens))
    return _make_task("sequences", model, per_example, Metric("accuracy", token_accuracy, True))


def _make_task(kind: str, model: nn.Module, per_example: PerExample, *metrics: Metric) -> Task:
    require(
        isinstance(model, nn.Module),
        f"Task: expected a torch.nn.Module, got {type(model).__name__}.",
    )
    reject_impure_layers(model)
    params: Params = {}
    frozen_params: Params = {}
    for name, parameter in model.named_parameters():
        _check_parameter(name, parameter)
        group = params if parameter.requires_grad else frozen_params
        group[name] = parameter.detach().clone()
    require(
        bool(params),
        "Task: the model has no trainable parameter; set requires_grad on what is to be learned.",
    )
    for name, buffer in model.named_buffers():
        _check_has_values("buffer", name, buffer)
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    return Task(
        kind=kind,
        train_module=with_keyed_dropout(model).train(),
        eval_module=copy_module(model).eval(),
        params=params,
        constants=frozen_params | buffers,
        per_example_loss=per_example,
        metrics=metrics,
    )


def _check_parameter(name: str, parameter: Tensor) -> None:
    """Raise an `InputError` for a parameter without values, or of a form that cannot be trained."""
    _check_has_values("parameter", name, parameter)
    require(
        parameter.layout == torch.strided and not parameter.is_quantized,
        f"Task: parameter '{name}' must be a plain dense tensor, got {parameter.layout} of "
        f"{parameter.dtype}.",
    )
    can_be_trained = parameter.dtype in _TRAINABLE_DTYPES or not parameter.requires_grad
    require(
        can_be_trained,
        f"Task: parameter '{name}' must be of float16, bfloat16, float32 or float64, got "
        f"{parameter.dtype}.",
    )


def _check_has_values(kind: str, name: str, tensor: Tensor) -> None:
    require(
        not tensor.is_meta,
        f"Task: {kind} '{name}' is on the meta device, where tensors have no values; build the "
        "model on a real device.",
    )


def get_class_axis(task: Task) -> int:
    """Return the dimension of the outputs that runs over the classes."""
    return 1 if task.kind == "classification" else -1


def _cast_floating(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


# A model cut at its last layer


class ModelCut(NamedTuple):
    """A model cut into an encoder and its last layer, the head."""

    head_name: str  # "" if the model is nothing but its head
    feature_dim: int  # inputs of the head
    encoder: nn.Module  # the model in training mode, returning the head's inputs as a `_HeadInput`


class _HeadInput:
    """The inputs of the last layer.

    It is not a tensor, so that a model that does anything but return it fails.
    """

    def __init__(self, features: Tensor) -> None:
        self.features = features


class _IdentityHead(nn.Linear):
    """A layer that takes the head's place in an encoder."""

    def forward(self, x: Tensor) -> _HeadInput:  # type: ignore[override]
        """Return the inputs as they are."""
        return _HeadInput(x)


def _find_head(model: nn.Module) -> tuple[str, nn.Module]:
    """Return the last layer with trainable parameters, which must be used nowhere else."""
    trainable_layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if any(parameter.requires_grad for parameter in layer.parameters(False))
    ]
    name, layer = trainable_layers[-1]
    param_ids = {id(parameter) for parameter in layer.parameters(False)}
    uses = [
        param_name
        for param_name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in param_ids
    ]
    require(
        len(uses) == len(param_ids),
        "Task: the last layer must have its parameters for itself, "
        f"but {' and '.join(uses)} are one.",
    )
    return name, layer


def _cut_model(model: nn.Module) -> ModelCut:
    name, layer = _find_head(model)
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        raise InputError(
            "Task: to be cut, the model must end in a torch.nn.Linear, "
            f"but its last layer is a {type(layer).__name__}."
        )
    identity = _IdentityHead(layer.in_features, layer.out_features, device="meta")
    identity.train(layer.training)
    identity.weight = layer.weight
    identity.bias = layer.bias
    if not name:
        return ModelCut(name, layer.in_features, identity)
    encoder = copy_module(model)
    encoder.set_submodule(name, identity)
    return ModelCut(name, layer.in_features, encoder)


# A check before training


def validate_task(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Run the model on a few real examples and return its outputs in evaluation mode.

    Raise an `InputError` for what would fail or mislead later: inputs and labels that do not fit
    the model, layers that change their own tensors, draws from torch's global generator
    (`torch.nn.functional.dropout`, `torch.randn`, an LSTM's dropout), and models whose outputs
    change from call to call, depend on the other examples of a batch, or do not depend on a
    parameter in a way that has a gradient.

    Args:
        task: The task, on the device of the examples.
        x: Inputs of at least one example.
        y: Their labels.
    """
    key = torch.zeros((), dtype=torch.int64, device=x.device)
    tensors = {**task.constants, **task.params}
    try:
        with torch.no_grad(), forbid_global_randomness():
            first = run_and_check_unchanged(task.train_module, tensors, x, key)
            second = run_and_check_unchanged(task.train_module, tensors, x, key)
            outputs = run_and_check_unchanged(task.eval_module, tensors, x, key)
            single = run_and_check_unchanged(task.eval_module, tensors, x[:1], key)
            _validate_labels(task.kind, outputs, y)
            task.per_example_loss(outputs, y)
            for metric in task.metrics:
                metric.per_example(outputs, y)
        with forbid_global_randomness():
            has_gradient = _has_gradient(task, tensors, x, y, key)
    except InputError:
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"Task: the model, run on {len(x)} examples with x {tuple(x.shape)} {x.dtype} and "
            f"y {tuple(y.shape)} {y.dtype}, failed with {reason!r}; "
            f"check the model's input shape and the task ({task.kind})."
        ) from error
    require(
        has_gradient,
        "Task: the model's loss has no gradient with respect to any parameter, so that nothing "
        "would be trained; its output must not be detached or computed without gradients.",
    )
    require(
        _is_close(first, second),
        "Task: the model gives other outputs for the same inputs; "
        "it must not draw random numbers or keep state by itself.",
    )
    require(
        single.shape == outputs[:1].shape and _is_close(single, outputs[:1]),
        "Task: the model's output for an example depends on the others in its batch, "
        "which padding would change; "
        "it must treat each example by itself, with the batch as first dimension.",
    )
    return outputs


def _has_gradient(
    task: Task, tensors: dict[str, Tensor], x: Tensor, y: Tensor, key: Tensor
) -> bool:
    """Return whether the loss in training mode has a gradient with respect to any parameter.

    Args:
        task: The task.
        tensors: Parameters and constants of its model.
        x: Inputs.
        y: Their labels.
        key: Key from which the keys of dropout layers are folded.
    """
    params = {name: value.detach().clone().requires_grad_() for name, value in task.params.items()}
    keys = make_dropout_keys(task.train_module, key)
    with torch.enable_grad():
        outputs = task._call_model(task.train_module, {**tensors, **params, **keys}, x)
        losses_by_example, _ = task.per_example_loss(outputs, y)
        loss = losses_by_example.sum()
    if not loss.requires_grad:
        return False
    gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    return any(gradient is not None for gradient in gradients)


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether outputs are equal up to rounding.

    On a GPU rounding is coarse and depends on the batch, so the tolerance grows with the outputs.
    """
    scale = 0.0
    if other.is_cuda and other.numel():
        scale = other.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
    return torch.allclose(one, other, rtol=1e-2, atol=1e-4 + 1e-2 * scale, equal_nan=True)


def _validate_labels(kind: str, outputs: Tensor, y: Tensor) -> None:
    """Raise an `InputError` for shapes and labels that a loss would silently misread."""
    require(
        isinstance(outputs, Tensor),
        f"Task: the model must return a tensor, got {type(outputs).__name__}.",
    )
    outputs_shape = list(outputs.shape)
    y_shape = list(y.shape)
    min_dims = _MIN_OUTPUT_DIMS.get(kind, 1)
    require(
        len(outputs_shape) >= min_dims,
        f"Task: {kind} needs outputs of {min_dims} dimensions, "
        f"got outputs of shape {outputs_shape}.",
    )
    expected_shapes = {
        "classification": outputs_shape[:1] + outputs_shape[2:],
        "sequences": outputs_shape[:2],
        "multilabel": outputs_shape,
    }
    expected_shape = expected_shapes.get(kind, y_shape)
    require(
        y_shape == expected_shape,
        f"Task: {kind} with outputs of shape {outputs_shape} needs y of shape {expected_shape}, "
        f"got {y_shape}.",
    )
    if kind == "multilabel":
        is_zero_or_one = (y == 0) | (y == 1)
        require(bool(is_zero_or_one.all()), "Task: multilabel needs y of 0 and 1, got others.")
    if kind == "classification":
        require(
            int(y.max()) < outputs_shape[1],
            f"Task: the model has outputs for {outputs_shape[1]} classes, "
            f"but there is a label {y.max()}.",
        )
