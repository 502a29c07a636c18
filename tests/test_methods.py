"""What holds for every method on the list."""

import inspect
from dataclasses import FrozenInstanceError, fields

import pytest
from torch import Tensor

from agreement import distance
from fedtailor import engines, methods, trees
from fedtailor.errors import InputError
from fedtailor.types import Tree
from scenarios import toy_setting, toy_task, train


@pytest.mark.parametrize("name", methods.NAMES)
def test_a_method_file_reads_in_the_same_order(name: str) -> None:
    file = methods.file_of(name)
    assert methods.build(name, toy_task()).name == name
    assert "Identities:" in file.__doc__
    source = inspect.getsource(file)  # type: ignore[arg-type]
    assert source.index('"""') < source.index("class Hyper") < source.index("def build")


@pytest.mark.parametrize("name", methods.NAMES)
def test_hyper_parameters_are_frozen_and_keyword_only(name: str) -> None:
    kind = methods.file_of(name).Hyper
    with pytest.raises(FrozenInstanceError):
        kind().lr = 1.0
    with pytest.raises(TypeError):
        kind(0.1)
    assert all(field.kw_only for field in fields(kind))


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"There is no method .fedprx.; did you mean fedprox\?"):
        methods.file_of("fedprx")
    with pytest.raises(InputError, match="There is no method 'zzz'; known are local, centralised"):
        methods.file_of("zzz")
    with pytest.raises(InputError, match=r"fedprox has no hyper-parameter .lamb.; did you mean lam\?"):
        methods.hyper_of("fedprox", lamb=1.0)


def median(changes: Tree, weights: Tensor) -> Tree:
    return trees.apply(lambda leaf: leaf.median(0).values, changes)


@pytest.mark.parametrize("name", ["fedavg", "fedsim"])
def test_a_combining_rule_sees_every_corrected_change(name: str) -> None:
    method = toy_setting(name).method._replace(combine=median)
    runs = [train(toy_setting(method), name=engine, chunk=chunk)[0] for engine in engines.NAMES for chunk in (2, None)]
    assert all(distance(runs[0], other) < 1e-10 for other in runs[1:])
    assert distance(runs[0].params, train(toy_setting(name))[0].params) > 1e-4
