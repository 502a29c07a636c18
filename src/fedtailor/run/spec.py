"""What is asked for on a command line: `key=value` words become a typed specification, or a sentence saying why not."""

import difflib
from dataclasses import fields
from functools import partial
from math import prod
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import nn

from fedtailor import data as sources
from fedtailor import methods, models
from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import InputError, require


class Comparison(BaseModel):
    """Several methods on the same clients, cohorts and first weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    methods: tuple[str, ...] = ("local", "fedavg", "fedprox", "fedsim")
    data: str = "digits"
    data_options: dict[str, Any] = {}
    hidden: tuple[int, ...] = (64,)  # layers of the perceptron
    rounds: int = Field(default=50, ge=1)
    cohort: int = Field(default=10, ge=1)
    seed: int = 0
    engine: str = "vectorised"
    device: str = "cpu"
    chunk: int | None = Field(default=None, ge=1)
    compile: bool = False
    hyper: dict[str, dict[str, Any]] = {}  # method -> hyper-parameters

    def dataset(self) -> FederatedDataset:
        """The data set that the name stands for."""
        return sources.load(self.data, **{"seed": self.seed} | self.data_options)

    def model_for(self, data: FederatedDataset) -> "partial[nn.Sequential]":
        """What makes the model: a perceptron that fits the data."""
        return partial(models.mlp, prod(data.clients.x.shape[1:]), self.hidden, data.classes or 1)


def comparison(words: list[str]) -> Comparison:
    """Reads method names and `key=value`, where a key may be `data.KEY`, `METHOD.KEY` or a hyper-parameter for all.

    Everything is checked here, hyper-parameters included, before anything slow begins.
    """
    names = tuple(word for word in words if "=" not in word)
    plain, data_options, hyper = _sorted([word for word in words if "=" in word], names or _DEFAULTS["methods"])
    given = plain | {"data_options": data_options, "hyper": hyper} | ({"methods": names} if names else {})
    try:
        spec = Comparison.model_validate(given)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise InputError(f"{first['loc'][0]}: {first['msg'].lower()}, got {first['input']!r}.") from None
    for name in spec.methods:
        methods.hyper_of(name, **spec.hyper.get(name, {}))
    return spec


_DEFAULTS = {name: field.default for name, field in Comparison.model_fields.items()}
_KEYS = [key for key in _DEFAULTS if key not in ("methods", "data_options", "hyper")]


def _sorted(
    words: list[str], names: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
    plain: dict[str, Any] = {}
    data_options: dict[str, Any] = {}
    hyper: dict[str, dict[str, Any]] = {name: {} for name in names}
    for word in words:
        key, _, text = word.partition("=")
        place, dot, inner = key.rpartition(".")
        if not dot and key in _KEYS:
            plain[key] = tuple(text.split(",")) if key == "hidden" else text
        elif place == "data":
            data_options[inner] = value_of(text)
        elif dot:
            require(place in names, f"'{word}' is for the method {place}, which is not among {', '.join(names)}.")
            hyper[place][inner] = value_of(text)
        else:
            for name in _who_has(key, names):
                hyper[name].setdefault(key, value_of(text))
    return plain, data_options, hyper


def _who_has(key: str, names: tuple[str, ...]) -> list[str]:
    valid = {name: [field.name for field in fields(methods.file_of(name).Hyper)] for name in names}
    found = [name for name in names if key in valid[name]]
    if not found:
        known = sorted({*_KEYS, *(option for options in valid.values() for option in options)})
        near = difflib.get_close_matches(key, known, 1)
        raise InputError(f"There is no key '{key}'; {f'did you mean {near[0]}?' if near else f'the keys are {known}.'}")
    return found


def value_of(text: str) -> Any:
    """A number, truth value or None where the text reads as one, else the text."""
    if text in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
