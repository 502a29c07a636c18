"""Trees against the same arithmetic written out leaf by leaf."""

import copy
import doctest
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedtailor.core import trees
from fedtailor.core.types import Tree


class Nest(NamedTuple):
    pair: tuple[dict[str, Tensor], Tensor]
    alone: Tensor


def nest(seed: int, *lead: int, dtype: torch.dtype = torch.float64) -> Nest:
    """A dict in a tuple in a NamedTuple, with random leaves that carry `lead` as leading
    dimensions.
    """
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn((*lead, *shape), generator=source, dtype=dtype)

    return Nest(({"conv.weight": draw(2, 3), "bias": draw(3)}, draw(4)), draw())


def flat(tree: Nest) -> list[Tensor]:
    """The leaves by hand, in the order of the tree."""
    return [tree.pair[0]["conv.weight"], tree.pair[0]["bias"], tree.pair[1], tree.alone]


def assert_equal(tree: Nest, expected: list[Tensor]) -> None:
    assert isinstance(tree, Nest)
    assert list(tree.pair[0]) == ["conv.weight", "bias"]
    for found, wanted in zip(flat(tree), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


A, B = nest(1), nest(2)
ROWS = nest(3, 5)


def test_leaves_come_in_the_order_of_the_tree() -> None:
    assert all(found is wanted for found, wanted in zip(trees.leaves(A), flat(A), strict=True))
    assert trees.leaves({}) == []


def test_names_are_readable_and_in_the_order_of_leaves() -> None:
    assert trees.leaf_names(A) == ["pair.0.conv.weight", "pair.0.bias", "pair.1", "alone"]
    assert trees.leaf_names(({"w": A.alone},)) == ["0.w"]
    assert trees.leaf_names({}) == []


def test_apply_takes_one_tree_or_several() -> None:
    assert_equal(trees.apply(torch.exp, A), [x.exp() for x in flat(A)])
    mixed = trees.apply(lambda a, b, c: a * b - c, A, B, A)
    assert_equal(mixed, [a * b - a for a, b in zip(flat(A), flat(B), strict=True)])


def test_apply_pairs_dict_entries_by_name() -> None:
    one, two = torch.ones(()), torch.full((), 2.0)
    found = trees.sub({"a": one, "b": two}, {"b": two, "a": one})
    assert found == {"a": 0.0, "b": 0.0}


def test_apply_refuses_trees_of_other_shapes() -> None:
    with pytest.raises(ValueError, match="mismatch"):
        trees.add({"a": torch.ones(2)}, {"b": torch.ones(2)})


def test_rebuild_puts_other_leaves_in_the_same_places() -> None:
    assert_equal(trees.unflatten(A, flat(B)), flat(B))
    with pytest.raises(ValueError, match="leaves"):
        trees.unflatten(A, flat(B)[:-1])


@pytest.mark.parametrize("scale", [1.0, -0.3, torch.tensor(2.5, dtype=torch.float64)])
def test_add_scales_the_second_tree(scale: float | Tensor) -> None:
    found = trees.add(A, B, scale)
    assert list(found.pair[0]) == ["conv.weight", "bias"]
    for own, a, b in zip(flat(found), flat(A), flat(B), strict=True):
        torch.testing.assert_close(own, a + scale * b, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("scale", [1e39, -1e300])
def test_what_float32_does_not_hold_is_infinite_there(scale: float) -> None:
    ones = {"a": torch.ones(2)}
    sign = math.copysign(1, scale)
    assert trees.add(ones, ones, scale)["a"].tolist() == [sign * math.inf] * 2  # as a list
    assert trees.add((ones,), (ones,), scale)[0]["a"].tolist() == [sign * math.inf] * 2


def test_add_without_a_scale_is_a_sum() -> None:
    assert_equal(trees.add(A, B), [a + b for a, b in zip(flat(A), flat(B), strict=True)])


def test_sub() -> None:
    assert_equal(trees.sub(A, B), [a - b for a, b in zip(flat(A), flat(B), strict=True)])


@pytest.mark.parametrize("factor", [-2.0, torch.tensor(0.1, dtype=torch.float64)])
def test_scaled(factor: float | Tensor) -> None:
    assert_equal(trees.scale(A, factor), [a * factor for a in flat(A)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_zeros_and_full_keep_shapes_and_dtypes(dtype: torch.dtype) -> None:
    tree = nest(1, dtype=dtype)
    assert_equal(trees.zeros_like(tree), [torch.zeros(x.shape, dtype=dtype) for x in flat(tree)])
    assert_equal(
        trees.full_like(tree, 0.25), [torch.full(x.shape, 0.25, dtype=dtype) for x in flat(tree)]
    )


def as_vector(tree: Nest) -> Tensor:
    return torch.cat([x.reshape(-1) for x in flat(tree)])


def test_dot_and_norm_treat_a_tree_as_one_vector() -> None:
    torch.testing.assert_close(trees.dot(A, B), as_vector(A) @ as_vector(B), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(
        trees.norm(A), torch.linalg.vector_norm(as_vector(A)), rtol=1e-14, atol=0
    )


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_dot_and_norm_keep_the_precision_or_raise_it_to_single(
    dtype: torch.dtype, kept: torch.dtype
) -> None:
    tree = nest(1, dtype=dtype)
    assert trees.dot(tree, tree).dtype == kept
    assert trees.norm(tree).dtype == kept


def test_dot_in_double_precision_loses_nothing_to_its_start() -> None:
    tiny = torch.tensor([1.0, 1e-12], dtype=torch.float64)
    assert trees.dot({"w": tiny}, {"w": torch.ones(2, dtype=torch.float64)}).item() == 1.0 + 1e-12


def test_dot_of_mixed_precisions_is_that_of_the_highest() -> None:
    tree = {
        "half": torch.ones(2, dtype=torch.bfloat16),
        "double": torch.full((2,), 0.1, dtype=torch.float64),
    }
    found = trees.dot(tree, tree)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(2.02, abs=1e-15)


def test_dot_stays_on_the_device_of_the_leaves() -> None:
    away = trees.to(A, torch.device("meta"))
    assert trees.dot(away, away).device.type == "meta"


def test_an_empty_tree_has_length_zero() -> None:
    empties: list[Tree] = [{}, (), ({}, ())]
    for empty in empties:
        assert trees.dot(empty, empty).item() == 0.0
        assert trees.norm(empty).item() == 0.0
        assert trees.nbytes(empty) == 0
        assert trees.is_finite(empty)


def test_dot_refuses_trees_of_unequal_sizes() -> None:
    with pytest.raises(ValueError, match=r"shorter|mismatch"):
        trees.dot({"a": A.alone, "b": A.alone}, {"a": A.alone})


def test_dot_pairs_dict_entries_by_name() -> None:
    one, two = torch.ones(()), torch.full((), 2.0)
    assert trees.dot({"a": one, "b": two}, {"b": two, "a": one}).item() == 5.0


def test_nbytes_counts_every_leaf_at_its_own_width() -> None:
    assert trees.nbytes(A) == 8 * (6 + 3 + 4 + 1)
    assert (
        trees.nbytes((torch.zeros(3, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.int64)))
        == 6 + 40
    )


def test_stack_and_concat_add_rows() -> None:
    stacked = trees.stack([A, B, A])
    assert_equal(stacked, [torch.stack([a, b, a]) for a, b in zip(flat(A), flat(B), strict=True)])
    assert_equal(
        trees.concat([stacked, ROWS]),
        [torch.cat(pair) for pair in zip(flat(stacked), flat(ROWS), strict=True)],
    )


def test_row_undoes_stack() -> None:
    assert_equal(trees.take_row(trees.stack([A, B]), 1), flat(B))
    assert_equal(trees.take_row(ROWS, -1), [x[4] for x in flat(ROWS)])


@pytest.mark.parametrize(
    "index", [torch.tensor([4, 0, 0]), slice(1, 3), torch.tensor([True, False, True, False, True])]
)
def test_rows_stay_stacked(index: Tensor | slice) -> None:
    assert_equal(trees.take_rows(ROWS, index), [x[index] for x in flat(ROWS)])


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_weighted_sum_is_a_loop_over_rows(dtype: torch.dtype, atol: float) -> None:
    stacked = nest(3, 5, dtype=dtype)
    weights = torch.tensor([0.1, 0.0, 0.4, -1.0, 2.0], dtype=torch.float64)
    found = trees.weighted_sum(stacked, weights)
    for leaf, many in zip(flat(found), flat(stacked), strict=True):
        wanted = sum(
            (float(weights[i]) * many[i] for i in range(5)),
            torch.zeros(many.shape[1:], dtype=dtype),
        )
        torch.testing.assert_close(leaf, wanted, rtol=0, atol=atol)


def test_part_takes_names_out_of_dicts_and_joined_puts_them_back() -> None:
    names = frozenset({"bias", "unknown"})
    own, rest = trees.select(A, names, True), trees.select(A, names, False)
    assert isinstance(own, Nest)
    assert isinstance(rest, Nest)
    assert list(own.pair[0]) == ["bias"]
    assert own.pair[0]["bias"] is A.pair[0]["bias"]
    assert own.pair[1] == own.alone == ()  # what has no name is nobody's
    assert list(rest.pair[0]) == ["conv.weight"]
    assert rest.pair[1] is A.pair[1]
    assert rest.alone is A.alone
    whole = trees.combine(rest, own)
    assert_equal(whole, flat(A))
    assert_equal(
        trees.combine(rest, trees.select(B, names, True)), [flat(A)[0], flat(B)[1], *flat(A)[2:]]
    )


@pytest.mark.parametrize("function", [trees.select, trees.combine])
def test_the_example_of_a_docstring_is_right(function: Callable[..., Tree]) -> None:
    (example,) = doctest.DocTestFinder().find(function, globs=vars(trees).copy())
    results = doctest.DocTestRunner().run(example)
    assert results.attempted >= 3
    assert results.failed == 0


@pytest.mark.parametrize("names", [frozenset(), frozenset({"bias", "conv.weight"})])
def test_parts_may_be_empty(names: frozenset[str]) -> None:
    own, rest = trees.select(A.pair[0], names, True), trees.select(A.pair[0], names, False)
    assert (set(own), set(own) | set(rest)) == (set(names), {"bias", "conv.weight"})
    assert trees.sub(trees.combine(rest, own), A.pair[0])["bias"].abs().max() == 0.0
    assert trees.combine((), ()) == trees.select((), names, True) == ()
    with pytest.raises(ValueError, match="zip"):
        trees.combine((rest,), ())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_all_finite_sees_one_bad_number_in_any_leaf(bad: float) -> None:
    assert trees.is_finite(A)
    for place in range(4):
        parts = [x.clone() for x in flat(A)]
        parts[place].view(-1)[-1] = bad
        assert not trees.is_finite(trees.unflatten(A, parts))


def test_to_moves_every_leaf() -> None:
    moved = trees.to(A, torch.device("meta"))
    assert [x.device.type for x in flat(moved)] == ["meta"] * 4
    assert [x.shape for x in flat(moved)] == [x.shape for x in flat(A)]


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: trees.add(a, b, 2.0),
        trees.sub,
        lambda a, _: trees.scale(a, 2.0),
        lambda a, _: trees.zeros_like(a),
        lambda a, _: trees.full_like(a, 1.0),
        trees.dot,
        lambda a, _: trees.norm(a),
        lambda a, b: trees.stack([a, b]),
        lambda a, b: trees.concat([a, b]),
        lambda a, _: trees.take_rows(a, slice(0, 2)),
        lambda a, _: trees.weighted_sum(a, torch.ones(5)),
        lambda a, b: trees.unflatten(a, trees.leaves(b)),
        lambda a, _: trees.to(a, torch.device("cpu")),
        lambda a, _: trees.select(a, frozenset({"bias"}), True),
        lambda a, b: trees.combine(trees.select(a, frozenset({"bias"}), False), b),
    ],
)
def test_nothing_changes_what_it_is_given(call: Callable[[Nest, Nest], Any]) -> None:
    a, b = nest(3, 5), nest(4, 5)
    before = copy.deepcopy((a, b))
    call(a, b)
    assert_equal(a, flat(before[0]))
    assert_equal(b, flat(before[1]))
