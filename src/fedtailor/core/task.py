"""A `Task` turns an `nn.Module` with a loss and metrics into pure functions of a parameter dict.

What may not be pure is dealt with here, once: dropout draws its masks from the batch's key, frozen parameters and
buffers are constants, tied parameters stay tied, and modules that keep running statistics are refused, since a client's
batches would change the model behind the method's back. Models take the batch first: padding then stands behind the
examples, and moves neither them nor their dropout.
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
    dropout_layers,
    forbid_global_randomness,
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


@dataclass(frozen=True)
class Task:
    """What is learned: a model's shape, its first parameters, a loss, and metrics (the first one is the headline)."""

    kind: str
    train_module: nn.Module
    eval_module: nn.Module
    params: Params
    constants: dict[str, Tensor]
    per_example_loss: PerExample
    metrics: tuple[Metric, ...]
    compute_dtype: torch.dtype | None = (
        None  # what the model calculates in, if not in the type of its parameters
    )

    def loss(self, params: Params, batch: Batch) -> Tensor:
        """The mean loss over the real examples of a batch, in training mode; dropout draws from its key."""
        keys = {name: prng.fold(batch.key, number) for name, number in self._dropout_layers.items()}
        tensors = {**self.constants, **params, **keys}
        return self.mean_loss(self._call_model(self.train_module, tensors, batch.x), batch)

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean loss of outputs over the real examples of a batch."""
        return losses.masked_mean(self.per_example_loss(outputs, batch.y), batch.mask)

    def compute_outputs(self, params: Params, x: Tensor) -> Tensor:
        """The model's outputs in evaluation mode."""
        result: Tensor = self._call_model(self.eval_module, {**self.constants, **params}, x)
        return result

    def _call_model(self, model: nn.Module, tensors: dict[str, Tensor], x: Tensor) -> Any:
        """What a model returns; losses get it in the parameters' own type, whatever it was calculated in."""
        if self.compute_dtype is None and model is self.train_module and not self._has_tied_params:
            return self._call_training(tensors, x)
        if self.compute_dtype is None:
            return functional_call(model, tensors, (x,), tie_weights=self._has_tied_params)
        low_precision = {
            name: _cast_floating(value, self.compute_dtype) for name, value in tensors.items()
        }
        result = functional_call(
            model,
            low_precision,
            (_cast_floating(x, self.compute_dtype),),
            tie_weights=self._has_tied_params,
        )
        return (
            _HeadInput(result.features.to(self.dtype))
            if isinstance(result, _HeadInput)
            else result.to(self.dtype)
        )

    def compute_metric_sums(self, params: Params, batch: Batch) -> dict[str, Tensor]:
        """For the loss and each metric, the pair (sum, weight) over the real examples of a batch.

        Outputs that are not finite count as the worst there is: an infinite loss or error, no hit.
        """
        outputs = self.compute_outputs(params, batch.x)
        outputs = outputs.to(
            torch.promote_types(outputs.dtype, torch.float32)
        )  # short floats cannot count far
        is_finite = torch.isfinite(outputs).flatten(1).all(1)
        figures = (Metric("loss", self.per_example_loss, False), *self.metrics)
        return {
            each.name: losses.masked_sums(
                metrics.replace_nonfinite(
                    is_finite, each.per_example(outputs, batch.y), each.higher_is_better
                ),
                batch.mask,
            )
            for each in figures
        }

    @cached_property
    def _dropout_layers(self) -> dict[str, int]:
        return dropout_layers(self.train_module)

    @cached_property
    def _call_training(self) -> FunctionalCall:
        return FunctionalCall(self.train_module)

    @cached_property
    def _has_tied_params(self) -> bool:
        """Whether modules share a tensor; looking for such takes torch as long as a small layer, at every call."""
        tensors = [
            *self.train_module.named_parameters(remove_duplicate=False),
            *self.train_module.named_buffers(remove_duplicate=False),
        ]
        return len({id(tensor) for _, tensor in tensors}) < len(tensors)

    @cached_property
    def head_param_names(self) -> tuple[str, ...]:
        """The trainable parameters of the last layer: the one registered last among those that have any."""
        layer, _ = _find_head(self.train_module)
        return tuple(name for name in self.params if name.rpartition(".")[0] == layer)

    @cached_property
    def cut(self) -> "ModelCut":
        """The model cut at its last layer, which must be linear and give the model's output."""
        return _cut_model(self.train_module)

    def compute_features(self, params: Params, batch: Batch) -> Tensor:
        """What the last layer is given, in training mode: `loss` is `mean_loss(head(params, features), batch)`."""
        layer, _, encoder = self.cut
        tensors = {**self.constants, **params, **make_dropout_keys(encoder, batch.key)}
        refusal = f"Task: to be cut at its last layer '{layer}', the model must return what this gives, as it is."
        try:
            head_input = self._call_model(encoder, tensors, batch.x)
        except (AttributeError, TypeError) as problem:
            raise InputError(refusal) from problem
        require(isinstance(head_input, _HeadInput), refusal)
        features: Tensor = head_input.features
        return features

    def apply_head(self, params: Params, features: Tensor) -> Tensor:
        """The last layer's outputs; `params` need hold no others than its own."""
        values, prefix = (
            {**self.constants, **params},
            f"{self.cut.head_name}." if self.cut.head_name else "",
        )
        return nnf.linear(features, values[f"{prefix}weight"], values.get(f"{prefix}bias"))

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters."""
        return next(iter(self.params.values())).dtype

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "Task":
        """The same task on another device or in another precision."""
        return replace(
            self,
            params={name: value.to(device, dtype) for name, value in self.params.items()},
            constants={
                name: value.to(device, dtype if value.is_floating_point() else None)
                for name, value in self.constants.items()
            },
        )

    def with_compute_dtype(self, dtype: torch.dtype | None) -> "Task":
        """The same task, its model calculating in another type than its parameters and all sums are kept in."""
        return replace(self, compute_dtype=dtype)

    def with_stacked_ops(self) -> "Task":
        """The same task with convolutions that stay whole in a stack of clients on a GPU, in products of tf32 or bf16.

        They are not as exact as those of float32, and on other devices slower.
        """
        train_module, eval_module = (
            with_stacked_convolutions(model) for model in (self.train_module, self.eval_module)
        )
        return replace(self, train_module=train_module, eval_module=eval_module)

    def copy_modules(self) -> "Task":
        """The same task with modules of its own: a module serves one thread at a time."""
        return replace(
            self,
            train_module=copy_module(self.train_module),
            eval_module=copy_module(self.eval_module),
        )

    def to_module(self, params: Params) -> nn.Module:
        """An ordinary `nn.Module` in evaluation mode that holds these parameters."""
        model, values = (
            copy.deepcopy(with_plain_convolutions(self.eval_module)),
            {**self.constants, **params},
        )
        tensors: dict[str, Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        wrong = sorted(values.keys() ^ tensors.keys())
        require(
            not wrong,
            f"Task: parameters must be the model's own, but {wrong} are missing or unknown.",
        )
        for name, tensor in tensors.items():
            tensor.data = values[name].detach().clone()
        return model


def classification(model: nn.Module) -> Task:
    """One of several classes: outputs [B, classes], y [B] integer; cross-entropy and accuracy."""
    return _make_task(
        "classification", model, losses.cross_entropy, Metric("accuracy", metrics.accuracy, True)
    )


def multilabel(model: nn.Module) -> Task:
    """Any of several labels: outputs [B, labels], y [B, labels] of 0 and 1; binary cross-entropy and F1."""
    return _make_task(
        "multilabel",
        model,
        losses.binary_cross_entropy,
        Metric("f1", metrics.f1, True),
        Metric("accuracy", metrics.label_accuracy, True),
    )


def regression(model: nn.Module) -> Task:
    """Numbers: outputs of y's size; squared error, with mean absolute error as the headline."""
    return _make_task(
        "regression", model, losses.squared_error, Metric("mae", metrics.absolute_error, False)
    )


def sequences(
    model: nn.Module, padding: tuple[int, ...] = (0,), unscored_tokens: tuple[int, ...] = ()
) -> Task:
    """A token at each place: outputs [B, T, vocabulary], y [B, T]; cross-entropy and accuracy per token.

    Tokens of y in `padding` count neither for the loss nor the accuracy; those in `uncounted` (out of vocabulary, end
    of sentence) are learned but left out of the accuracy.
    """
    per_example = partial(losses.token_cross_entropy, padding)
    return _make_task(
        "sequences",
        model,
        per_example,
        Metric("accuracy", partial(metrics.token_accuracy, (*padding, *unscored_tokens)), True),
    )


def _make_task(kind: str, model: nn.Module, per_example: PerExample, *metrics: Metric) -> Task:
    require(
        isinstance(model, nn.Module),
        f"Task: expected a torch.nn.Module, got {type(model).__name__}.",
    )
    reject_impure_layers(model)
    params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    require(
        bool(params),
        "Task: the model has no trainable parameter; set requires_grad on what is to be learned.",
    )
    frozen = {
        name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad
    }
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    return Task(
        kind=kind,
        train_module=with_keyed_dropout(model).train(),
        eval_module=copy_module(model).eval(),
        params=params,
        constants=frozen | buffers,
        per_example_loss=per_example,
        metrics=metrics,
    )


def get_class_axis(task: Task) -> int:
    """Which dimension of the outputs tells classes apart."""
    return 1 if task.kind == "classification" else -1


class ModelCut(NamedTuple):
    """A model cut at its last layer."""

    head_name: str  # its name
    feature_dim: int  # how many features it is given
    encoder: (
        nn.Module
    )  # the model in training mode, but for that layer, which hands on what it is given


def _cast_floating(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype) if value.is_floating_point() else value


class _HeadInput:
    """What the last layer is given. No tensor, so that a model can do nothing with it unnoticed but return it."""

    def __init__(self, features: Tensor) -> None:
        self.features = features


class _IdentityHead(nn.Linear):
    """A linear layer that does nothing."""

    def forward(self, x: Tensor) -> _HeadInput:  # type: ignore[override]
        """What it is given."""
        return _HeadInput(x)


def _find_head(model: nn.Module) -> tuple[str, nn.Module]:
    """The last layer with trainable parameters, which must be used nowhere else."""
    name, layer = [
        each
        for each in model.named_modules()
        if any(p.requires_grad for p in each[1].parameters(False))
    ][-1]
    param_ids = {id(p) for p in layer.parameters(False)}
    used = [
        name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in param_ids
    ]
    alone = f"Task: the last layer must have its parameters for itself, but {' and '.join(used)} are one."
    require(len(used) == len(param_ids), alone)
    return name, layer


def _cut_model(model: nn.Module) -> ModelCut:
    name, layer = _find_head(model)
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        kind = type(layer).__name__
        raise InputError(
            f"Task: to be cut, the model must end in a torch.nn.Linear, but its last layer is a {kind}."
        )
    end = _IdentityHead(layer.in_features, layer.out_features, device="meta").train(layer.training)
    end.weight, end.bias = layer.weight, layer.bias
    encoder = copy_module(model) if name else end
    if name:
        encoder.set_submodule(name, end)
    return ModelCut(name, layer.in_features, encoder)


def validate_task(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Runs the model on a few real examples and refuses, in one sentence, what would go wrong later.

    Returns the outputs. Refused are: inputs and labels that do not fit the model, layers that change their own tensors,
    draws from torch's global generator (`torch.nn.functional.dropout`, `torch.randn`, an LSTM's dropout), and models
    that answer differently when they are asked again.
    """
    key, tensors = (
        torch.zeros((), dtype=torch.int64, device=x.device),
        {**task.constants, **task.params},
    )
    try:
        with torch.no_grad(), forbid_global_randomness():
            first, again = (
                run_and_check_unchanged(task.train_module, tensors, x, key) for _ in range(2)
            )
            outputs = run_and_check_unchanged(task.eval_module, tensors, x, key)
            by_itself = run_and_check_unchanged(task.eval_module, tensors, x[:1], key)
            _validate_labels(task.kind, outputs, y)
            for per_example in (
                task.per_example_loss,
                *(metric.per_example for metric in task.metrics),
            ):
                per_example(outputs, y)
    except InputError:
        raise
    except Exception as problem:
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise InputError(
            f"Task: the model, run on {len(x)} examples with x {tuple(x.shape)} {x.dtype} and "
            f"y {tuple(y.shape)} {y.dtype}, failed with {reason!r}; "
            f"check the model's input shape and the task ({task.kind})."
        ) from problem
    require(
        _is_close(first, again),
        "Task: the model gives other outputs for the same inputs; it must neither draw nor remember by itself.",
    )
    require(
        by_itself.shape == outputs[:1].shape and _is_close(by_itself, outputs[:1]),
        "Task: what the model says of an example depends on the others in its batch, which padding would change; "
        "it must treat each example by itself, with the batch as first dimension.",
    )
    return outputs


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Whether outputs are the same but for rounding, which on a GPU is coarse, and not the same for every batch."""
    scale = (
        other.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
        if other.is_cuda and other.numel()
        else 0.0
    )
    return torch.allclose(one, other, rtol=1e-2, atol=1e-4 + 1e-2 * scale, equal_nan=True)


def _validate_labels(kind: str, outputs: Tensor, y: Tensor) -> None:
    """Refuses outputs and labels of shapes that a loss would take for something else without a word."""
    require(
        isinstance(outputs, Tensor),
        f"Task: the model must return a tensor, got {type(outputs).__name__}.",
    )
    shape, came, least = (
        list(outputs.shape),
        list(y.shape),
        {"classification": 2, "sequences": 3}.get(kind, 1),
    )
    require(
        len(shape) >= least,
        f"Task: {kind} needs outputs of {least} dimensions, got outputs of shape {shape}.",
    )
    wanted = {
        "classification": shape[:1] + shape[2:],
        "sequences": shape[:2],
        "multilabel": shape,
    }.get(kind, came)
    require(
        came == wanted,
        f"Task: {kind} with outputs of shape {shape} needs y of shape {wanted}, got {came}.",
    )
    zero_one = kind != "multilabel" or bool(((y == 0) | (y == 1)).all())
    require(zero_one, "Task: multilabel needs y of 0 and 1, got others.")
    known = kind != "classification" or int(y.max()) < shape[1]
    require(
        known, f"Task: the model tells {shape[-1]} classes apart, but there is a label {y.max()}."
    )
