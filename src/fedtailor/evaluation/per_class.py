"""F1 per class: like accuracy it is a ratio of sums over examples, so an engine can compute it.

For this an engine is made whose task has one metric more for each class. That is done for the final
scores alone. It is left out for many classes, for sequences, and in distributed runs.
"""

from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from fedtailor.core.metrics import Metric
from fedtailor.engines import factory
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.evaluation.client_statistics import compute_macro_f1

MAX_CLASSES = 200
"""Maximum number of classes for which F1 is computed."""
_PREFIX = "f1 of class "


def add_class_metrics(context: EngineContext, engine: Engine) -> Engine:
    """Return an engine like `engine` with class metrics, or `engine` itself if there are none."""
    options = factory.get_engine_options(engine)
    metrics = build_class_metrics(context)
    if not metrics or options.engine == "distributed":
        return engine
    task = replace(context.task, metrics=(*context.task.metrics, *metrics))
    class_context = replace(context, task=task)
    return factory.make_engine(class_context, options.engine, options.chunk, options.compile)


def build_class_metrics(context: EngineContext) -> tuple[Metric, ...]:
    """Return a metric for each class, or for each of several labels; none if they do not apply."""
    num_classes = _count_classes(context)
    if num_classes == 0 or num_classes > MAX_CLASSES:
        return ()
    count_terms = _count_label if context.task.kind == "multilabel" else _count_class
    metrics = []
    for class_idx in range(num_classes):
        per_example = partial(count_terms, class_idx)
        metrics.append(Metric(f"{_PREFIX}{class_idx}", per_example, higher_is_better=True))
    return tuple(metrics)


def is_class_metric(name: str) -> bool:
    """Return whether a metric is one of `build_class_metrics`."""
    return name.startswith(_PREFIX)


def compute_f1(sums_by_metric: dict[str, Tensor]) -> float | None:
    """Return the mean over classes of F1 over all clients' examples; None without class metrics.

    `sums_by_metric` has (sum, weight) [clients, 2] for each metric.
    """
    pairs = []
    for name, sums in sums_by_metric.items():
        if is_class_metric(name):
            pairs.append(sums.double().sum(0))
    if not pairs:
        return None
    return compute_macro_f1(torch.stack(pairs).numpy())


def _count_classes(context: EngineContext) -> int:
    """Return the number of classes or of labels; 0 without any, and for sequences of classes."""
    example_spec = context.data.example_spec
    if context.task.kind == "multilabel":
        return prod(example_spec.label_shape)
    if context.task.kind == "classification" and not example_spec.label_shape:
        return example_spec.classes or 0
    return 0


def _count_class(class_idx: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the terms of F1 for one class; the class with the highest logit is predicted."""
    return _count_f1_terms(outputs.argmax(1) == class_idx, y == class_idx, outputs.dtype)


def _count_label(label_idx: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the terms of F1 for one of an example's labels; positive logits are predicted."""
    is_predicted = outputs.flatten(1)[:, label_idx] > 0
    is_actual = y.flatten(1)[:, label_idx] > 0
    return _count_f1_terms(is_predicted, is_actual, outputs.dtype)


def _count_f1_terms(
    is_predicted: Tensor, is_actual: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return 2 hits, and predicted + actual, for each example."""
    num_hits = (is_predicted & is_actual).to(dtype)
    return 2 * num_hits, is_predicted.to(dtype) + is_actual.to(dtype)
