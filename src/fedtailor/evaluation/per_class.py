"""Figures over classes: F1 of each class is a ratio of sums too, so an engine can count it as it counts hits.

For this it is given a task with a metric for every class. That is done for the final scores alone, and left out where
there are more than a few classes, for sequences, and where several processes share the scoring.
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
"""Classes, beyond which F1 is left out."""
_PREFIX = "f1 of class "


def add_class_metrics(context: EngineContext, engine: Engine) -> Engine:
    """An engine like this one that counts classes too, or this one if there is nothing to count."""
    choices, metrics = factory.get_engine_options(engine), build_class_metrics(context)
    if not metrics or choices["engine"] == "distributed":
        return engine
    task = replace(context.task, metrics=(*context.task.metrics, *metrics))
    return factory.make_engine(
        replace(context, task=task), choices["engine"], choices["chunk"], choices["compile"]
    )


def build_class_metrics(context: EngineContext) -> tuple[Metric, ...]:
    """A metric for each class, or for each of several labels; none where there are too many, or no classes."""
    task, example_spec = context.task, context.data.example_spec
    num_classes = {
        "classification": example_spec.classes or 0,
        "multilabel": prod(example_spec.label_shape),
    }.get(task.kind, 0)
    has_one_label = task.kind != "classification" or not example_spec.label_shape
    if not 0 < num_classes <= MAX_CLASSES or not has_one_label:
        return ()
    count_terms = _count_label if task.kind == "multilabel" else _count_class
    return tuple(
        Metric(f"{_PREFIX}{class_idx}", partial(count_terms, class_idx), True)
        for class_idx in range(num_classes)
    )


def is_class_metric(name: str) -> bool:
    """Whether a figure is one class's."""
    return name.startswith(_PREFIX)


def compute_f1(figures: dict[str, Tensor]) -> float | None:
    """The mean over classes of the F1 over all examples of all clients; None if classes were not counted."""
    pairs = [sums.double().sum(0) for name, sums in figures.items() if is_class_metric(name)]
    return compute_macro_f1(torch.stack(pairs).numpy()) if pairs else None


def _count_class(class_idx: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """2 hits, and how often the class was said and true."""
    return _count_f1_terms(outputs.argmax(1) == class_idx, y == class_idx, outputs.dtype)


def _count_label(label_idx: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same for one of several labels that an example may have."""
    return _count_f1_terms(
        outputs.flatten(1)[:, label_idx] > 0, y.flatten(1)[:, label_idx] > 0, outputs.dtype
    )


def _count_f1_terms(predicted: Tensor, actual: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return 2 * (predicted & actual).to(dtype), predicted.to(dtype) + actual.to(dtype)
