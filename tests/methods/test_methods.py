"""What holds for every method on the list."""

import inspect
from contextlib import suppress
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from agreement import distance
from fedtailor import fit, methods
from fedtailor.core import trees
from fedtailor.core.types import Tree
from fedtailor.engines import factory
from fedtailor.errors import DivergedError, InputError
from scenarios import toy_data, toy_setting, toy_task, train


@pytest.mark.parametrize("name", methods.NAMES)
def test_a_method_file_reads_in_the_same_order(name: str) -> None:
    file = methods.load_method_module(name)
    assert methods.build(name, toy_task()).name == name
    assert "Identities:" in file.__doc__
    source = inspect.getsource(file)  # type: ignore[arg-type]
    assert source.index('"""') < source.index("class HParams") < source.index("def build")


@pytest.mark.parametrize("name", [*methods.NAMES, "ds+fedavg", "fsl+per+fedmeta"])
def test_hyper_parameters_know_the_name_of_their_method(name: str) -> None:
    assert methods.load_method_module(name).HParams.method_name == name


@pytest.mark.parametrize("name", methods.NAMES)
def test_hyper_parameters_are_frozen_and_keyword_only(name: str) -> None:
    kind = methods.load_method_module(name).HParams
    with pytest.raises(FrozenInstanceError):
        kind().lr = 1.0
    with pytest.raises(TypeError):
        kind(0.1)
    assert all(field.kw_only for field in fields(kind))


RANGES = {
    "lr": (0.0, "must be positive, got 0.0."),
    "finetune_batch": (0, "must be positive, got 0."),
    "finetune_epochs": (-1, "must not be negative, got -1."),
    "momentum": (None, "must be a number, got None."),
    "steps": (1.5, "must be a whole number, got 1.5."),
    "optimizer": ("sdg", "must be sgd or adam or adamw, got 'sdg'."),
}
FITS = {"finetune_epochs": 0, "finetune_batch": None, "weight_decay": 0.0}


@pytest.mark.parametrize("name", [*methods.NAMES, "fsl+per+fedmeta"])
def test_values_out_of_range_are_refused_by_every_method(name: str) -> None:
    for field, (value, sentence) in RANGES.items():
        with pytest.raises(InputError) as caught:
            methods.make_hparams(name, **{field: value})
        assert str(caught.value) == f"{name}: {field} {sentence}"
    methods.make_hparams(name, **FITS)


@pytest.mark.parametrize(
    ("name", "field", "value", "sentence"),
    [
        ("fedprox", "lam", -0.1, "fedprox: lam must not be negative, got -0.1."),
        ("fedsim", "server_batch", 0, "fedsim: server_batch must be positive, got 0."),
        ("apfl", "adapt", 1, "apfl: adapt must be true or false, got 1."),
        ("apfl", "mixing", 1.1, "apfl: mixing must be in [0, 1], got 1.1."),
        ("ditto", "momentum", 1, "ditto: momentum must be in [0, 1), got 1."),
        ("ditto", "momentum", -0.1, "ditto: momentum must be in [0, 1), got -0.1."),
        ("ds", "server_momentum", 1.0, "ds: server_momentum must be in [0, 1), got 1.0."),
        ("fedmeta", "order", 3, "fedmeta: order must be 1 or 2, got 3."),
        ("fedmeta", "order", True, "fedmeta: order must be 1 or 2, got True."),
        ("fedmeta", "order", 1.0, "fedmeta: order must be 1 or 2, got 1.0."),
        ("fedper", "personal", 1.5, "fedper: personal must be text, got 1.5."),
        ("fsl+fedprox", "gamma", -1, "fsl+fedprox: gamma must not be negative, got -1."),
        ("per+ditto", "offer", -1, "per+ditto: offer must not be negative, got -1."),
    ],
)
def test_values_out_of_a_method_s_own_range_are_refused(
    name: str, field: str, value: object, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        methods.make_hparams(name, **{field: value})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("apfl", "mixing", (0, 0.5, 1)),
        ("fedavg", "momentum", (0, 0.999)),
        ("fedavg", "server_momentum", (0.0, 0.999)),
        ("fedmeta", "order", (1, 2)),
    ],
)
def test_bounds_of_a_range_are_allowed_unless_excluded(
    name: str, field: str, values: tuple[float, ...]
) -> None:
    for value in values:
        assert getattr(methods.make_hparams(name, **{field: value}), field) == value


@pytest.mark.parametrize("name", methods.NAMES)
def test_numbers_that_float32_does_not_hold_are_refused(name: str) -> None:
    kind = methods.load_method_module(name).HParams
    hints = get_type_hints(kind)
    floats = [
        each.name
        for each in fields(kind)
        if float in (hints[each.name], *get_args(hints[each.name]))
    ]
    assert "lr" in floats
    for option in floats:
        for value in (1e39, 1e300, 1.7976931348623157e308):
            with pytest.raises(InputError, match=f"^{name}: {option} must be"):
                kind(**{option: value})


@pytest.mark.parametrize("engine", factory.NAMES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"lr": 3e38}),
        ("fedprox", {"lr": 1e20, "lam": 1e30}),
        ("fedavg", {"lr": 1e20, "weight_decay": 1e30}),
        ("per-fedavg", {"h": 1e-300}),
        ("fsl+fedavg", {"gamma": 1e30, "lr": 1e30}),
        ("fedsim", {"h": 1e-300, "beta": 1e38, "lr": 1e38}),
    ],
)
def test_products_that_overflow_end_in_a_sentence(
    engine: str, name: str, options: dict[str, Any]
) -> None:
    task = toy_task().to(dtype=torch.float32)
    with suppress(DivergedError):
        fit(name, task, toy_data(server=6), rounds=1, cohort=2, engine=engine, **options)


def test_fedprox_is_a_file_of_at_most_40_lines() -> None:
    assert len(inspect.getsource(methods.load_method_module("fedprox")).splitlines()) <= 40  # type: ignore[arg-type]


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"There is no method .fedprx.; did you mean fedprox\?"):
        methods.load_method_module("fedprx")
    with pytest.raises(
        InputError, match="There is no method 'zzz'; choose from local, centralized"
    ):
        methods.load_method_module("zzz")
    with pytest.raises(
        InputError, match=r"fedprox has no hyper-parameter .lamb.; did you mean lam\?"
    ):
        methods.make_hparams("fedprox", lamb=1.0)


def median(changes: Tree, weights: Tensor) -> Tree:
    return trees.apply(lambda leaf: leaf.median(0).values, changes)


@pytest.mark.parametrize("name", ["fedavg", "fedsim"])
def test_a_combining_rule_sees_every_corrected_change(name: str) -> None:
    method = toy_setting(name).method._replace(aggregate=median)
    runs = [
        train(toy_setting(method), name=engine, chunk=chunk)[0]
        for engine in factory.NAMES
        for chunk in (2, None)
    ]
    assert all(distance(runs[0], other) < 1e-10 for other in runs[1:])
    assert distance(runs[0].params, train(toy_setting(name))[0].params) > 1e-4
