"""Figures over classes: F1 of each class is a ratio of sums too, so an engine can count it as it counts hits.

For this it is given a task with a metric for every class. That is done for the final scores alone, and left out where
there are more than a few classes, for sequences, and where several processes share the scoring.
"""

from dataclasses import replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from fedtailor import engines
from fedtailor.engines.base import Engine, Setting
from fedtailor.losses import Metric
from fedtailor.run.metrics import f1_macro

MOST = 200
"""Classes, beyond which F1 is left out."""
_MARK = "f1 of class "


def with_classes(setting: Setting, engine: Engine) -> Engine:
    """An engine like this one that counts classes too, or this one if there is nothing to count."""
    how, metrics = engines.choices(engine), class_metrics(setting)
    if not metrics or how["engine"] == "distributed":
        return engine
    task = replace(setting.task, metrics=(*setting.task.metrics, *metrics))
    return engines.make(replace(setting, task=task), how["engine"], how["chunk"], how["compile"])


def class_metrics(setting: Setting) -> tuple[Metric, ...]:
    """A metric for each class, or for each of several labels; none where there are too many, or no classes."""
    task, units = setting.task, setting.data.units
    count = {"classification": units.classes or 0, "multilabel": prod(units.label_shape)}.get(task.kind, 0)
    plain = task.kind != "classification" or not units.label_shape
    if not 0 < count <= MOST or not plain:
        return ()
    of = _of_label if task.kind == "multilabel" else _of_class
    return tuple(Metric(f"{_MARK}{number}", partial(of, number), True) for number in range(count))


def is_class(name: str) -> bool:
    """Whether a figure is one class's."""
    return name.startswith(_MARK)


def f1_of(figures: dict[str, Tensor]) -> float | None:
    """The mean over classes of the F1 over all examples of all clients; None if classes were not counted."""
    pairs = [sums.double().sum(0) for name, sums in figures.items() if is_class(name)]
    return f1_macro(torch.stack(pairs).numpy()) if pairs else None


def _of_class(number: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """2 hits, and how often the class was said and true."""
    return _counted(outputs.argmax(1) == number, y == number, outputs.dtype)


def _of_label(number: int, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same for one of several labels that an example may have."""
    return _counted(outputs.flatten(1)[:, number] > 0, y.flatten(1)[:, number] > 0, outputs.dtype)


def _counted(said: Tensor, true: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return 2 * (said & true).to(dtype), said.to(dtype) + true.to(dtype)
