"""Figures of predictions as textbooks define them, from counts made one by one, to compare with."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np


def f1(true: Iterable[Any], said: Iterable[Any]) -> float:
    """The harmonic mean of precision and recall; 0 if nothing is hit."""
    pairs = [(bool(is_so), bool(is_said)) for is_so, is_said in zip(true, said, strict=True)]
    hits = pairs.count((True, True))
    if not hits:
        return 0.0
    precision = hits / (hits + pairs.count((False, True)))
    recall = hits / (hits + pairs.count((True, False)))
    return 2 * precision * recall / (precision + recall)


def f1_of_classes(true: Any, said: Any) -> float:
    """The mean of F1 over the classes that are true or said somewhere."""
    classes = {*np.asarray(true).tolist(), *np.asarray(said).tolist()}
    return float(np.mean([f1(true == label, said == label) for label in classes]))


def accuracy(true: Any, said: Any) -> float:
    """The share of examples of which the truth is said."""
    right = [is_so == is_said for is_so, is_said in zip(true, said, strict=True)]
    return right.count(True) / len(right)


def log_loss(true: Any, probabilities: Any) -> float:
    """The mean surprise at the truth."""
    return float(
        np.mean([-math.log(row[label]) for label, row in zip(true, probabilities, strict=True)])
    )
