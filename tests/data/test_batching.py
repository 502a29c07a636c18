"""Batches against a plain loop over `keyed.permutation`: for anybody, beside anybody, in any
window.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agreement import distance
from fedtailor import prng
from fedtailor.core.types import BatchPlan, BatchSpec
from fedtailor.data import ClientExamples, Split, batching
from fedtailor.data.batching import BatchIndices, count_steps, iter_batch_indices
from fedtailor.data.shuffling import IntArray, Permutations, permute_epochs
from fedtailor.errors import InputError

Batches = list[tuple[list[int], int]]
"""For each draw of a step, the rows that are real and the key."""


def holders_of(sizes: list[int], queries: list[int] | None = None) -> ClientExamples:
    """Holders of so many train examples and query examples each, scattered over the columns."""
    queries = [1] * len(sizes) if queries is None else queries
    order = np.random.default_rng(0).permutation(sum(sizes) + sum(queries) + 5)
    cut = sum(sizes)
    train = Split(order[:cut], np.cumsum([0, *sizes]))
    query = Split(order[cut : cut + sum(queries)], np.cumsum([0, *queries]))
    return ClientExamples(
        np.zeros((len(order), 2)), np.zeros(len(order)), {"train": train, "query": query}
    )


def keys_of(count: int, seed: int = 0) -> Tensor:
    return prng.key(seed, "batches", torch.arange(count))


def wanted(plan: BatchPlan, holders: ClientExamples, who: int, key: Tensor, step: int) -> Batches:
    """What a holder sees at a step, from the definition: streams are numbered from the last draw
    on.
    """
    seen = []
    for number, draw in enumerate(reversed(plan.specs)):
        own, stream = holders.splits[draw.split].get_rows(who), prng.fold(key, number)
        size = draw.size or max(1, len(own))
        epoch, place = divmod(step, max(1, -(-len(own) // size)))
        order = prng.permutation(prng.fold(prng.fold(stream, 0), epoch), len(own)).numpy()
        rows = own[order[place * size : (place + 1) * size]].tolist()
        seen.append((rows, int(prng.fold(prng.fold(stream, 1), step))))
    return seen[::-1]


def real(placed: tuple[BatchIndices, ...], at: int) -> Batches:
    own = [place.select(at) for place in placed]
    return [(rows[mask].tolist(), int(key)) for rows, mask, key in own]


def seen(
    plan: BatchPlan, holders: ClientExamples, who: list[int], steps: int, keys: Tensor | None = None
) -> list[list[Batches]]:
    """For each of some holders, what it sees at each step."""
    keys = keys_of(holders.count)[who] if keys is None else keys
    laid_out = list(iter_batch_indices(plan, holders, np.array(who), keys, steps))
    return [[real(placed, at) for placed in laid_out] for at in range(len(who))]


draws = st.builds(
    BatchSpec, st.sampled_from(["train", "query"]), st.one_of(st.none(), st.integers(1, 12))
)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 9)), min_size=1, max_size=4),
    asked=st.lists(draws, min_size=1, max_size=3),
    steps=st.integers(0, 9),
    window=st.sampled_from([1, 30, 1 << 21]),
    data=st.data(),
)
def test_everybody_sees_what_the_definition_says(
    sizes: list[tuple[int, int]],
    asked: list[BatchSpec],
    steps: int,
    window: int,
    data: st.DataObject,
) -> None:
    holders = holders_of([size for size, _ in sizes], [query for _, query in sizes])
    if not len(holders.splits["query"].index):
        asked = [draw._replace(split="train") for draw in asked]
    plan, keys = (
        BatchPlan(tuple(asked), steps=steps),
        keys_of(holders.count, data.draw(st.integers(0, 2**63))),
    )
    who = data.draw(st.lists(st.sampled_from(range(holders.count)), min_size=1, unique=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "_MAX_WINDOW_INDICES", window)
        got = seen(plan, holders, who, steps, keys[who])
    assert got == [
        [wanted(plan, holders, own, keys[own], step) for step in range(steps)] for own in who
    ]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    size=st.integers(1, 50),
    epochs=st.integers(1, 4),
)
def test_an_epoch_shows_every_example_once_and_pads_its_last_batch_alone(
    sizes: list[int], size: int, epochs: int
) -> None:
    holders, plan = holders_of(sizes), BatchPlan((BatchSpec("train", size),), epochs=epochs)
    counts = count_steps(plan, holders, np.arange(len(sizes)))
    assert counts.tolist() == [epochs * -(-own // size) for own in sizes]
    laid_out = list(
        iter_batch_indices(
            plan, holders, np.arange(len(sizes)), keys_of(len(sizes)), int(counts.max())
        )
    )
    for who, own in enumerate(sizes):
        an_epoch = -(-own // size)
        orders = []
        for epoch in range(epochs):
            batches = [
                laid_out[step][0].select(who)
                for step in range(epoch * an_epoch, (epoch + 1) * an_epoch)
            ]
            orders.append([int(row) for rows, mask, _ in batches for row in rows[mask]])
            assert Counter(orders[-1]) == Counter(holders.splits["train"].get_rows(who).tolist())
            assert all(int(mask.sum()) == size for _, mask, _ in batches[:-1])
            assert int(batches[-1].mask.sum()) == own - size * (an_epoch - 1)
        assert own < 15 or len({tuple(order) for order in orders}) == epochs


def test_real_examples_come_first_and_padding_is_an_example_of_the_holders() -> None:
    holders = holders_of([3, 11, 1])
    held = set(holders.splits["train"].index.tolist())
    for (place,) in iter_batch_indices(
        BatchPlan((BatchSpec("train", 4),), epochs=2), holders, np.arange(3), keys_of(3), 6
    ):
        assert place.rows.shape == place.mask.shape == (3, 4)
        assert torch.equal(place.mask, place.mask.sort(dim=1, descending=True).values)
        assert set(place.rows.flatten().tolist()) <= held
        for who in range(3):
            assert set(place.rows[who].tolist()) <= set(
                holders.splits["train"].get_rows(who).tolist()
            )


@pytest.mark.parametrize(
    "plan",
    [
        BatchPlan((BatchSpec("train", None),), epochs=3),
        BatchPlan((BatchSpec("train", 99),), steps=3),
    ],
)
def test_whole_splits_are_seen_at_every_step_in_a_new_order(plan: BatchPlan) -> None:
    holders = holders_of([1, 20, 9])
    assert count_steps(plan, holders, np.arange(3)).tolist() == [3, 3, 3]
    for who, steps in enumerate(seen(plan, holders, [0, 1, 2], 3)):
        rows = [step[0][0] for step in steps]
        assert [sorted(row) for row in rows] == 3 * [
            sorted(holders.splits["train"].get_rows(who).tolist())
        ]
        assert who == 0 or rows[0] != rows[1] != rows[2]


def test_plans_of_steps_run_on_over_epochs() -> None:
    holders = holders_of([5, 2])
    by_steps, by_epochs = (
        BatchPlan((BatchSpec("train", 2),), steps=7),
        BatchPlan((BatchSpec("train", 2),), epochs=3),
    )
    assert count_steps(by_steps, holders, np.array([0, 1])).tolist() == [7, 7]
    assert count_steps(by_epochs, holders, np.array([1, 0])).tolist() == [3, 9]
    first, second = seen(by_steps, holders, [0, 1], 7)
    assert [first, second[:3]] == [
        own[:most] for own, most in zip(seen(by_epochs, holders, [0, 1], 9), (7, 3), strict=True)
    ]


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 15), min_size=2, max_size=4),
    epochs=st.integers(1, 2),
    windows=st.tuples(st.sampled_from([1, 30, 1 << 21]), st.sampled_from([1, 40, 1 << 16])),
    beyond=st.integers(0, 3),
)
def test_who_has_finished_sees_padding_alone_and_others_what_they_would_alone(
    sizes: list[int], epochs: int, windows: tuple[int, int], beyond: int
) -> None:
    holders, plan = (
        holders_of(sizes),
        BatchPlan((BatchSpec("query", 2), BatchSpec("train", 4)), epochs=epochs),
    )
    who, keys = np.arange(len(sizes))[::-1].copy(), keys_of(len(sizes)).flip(0)
    counts = count_steps(plan, holders, who).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "_MAX_WINDOW_INDICES", windows[0])
        patch.setattr(batching, "_MAX_BLOCK_INDICES", windows[1])
        laid_out = list(iter_batch_indices(plan, holders, who, keys, max(counts) + beyond))
    assert len(laid_out) == max(counts) + beyond
    for at, own in enumerate(who.tolist()):
        got = [real(placed, at) for placed in laid_out]
        assert got[: counts[at]] == [
            wanted(plan, holders, own, keys[at], step) for step in range(counts[at])
        ]
        assert all(not rows for step in got[counts[at] :] for rows, _ in step)
        for placed in laid_out[counts[at] :]:
            padding = [set(place.rows[at].tolist()) for place in placed]
            assert padding[0] <= set(holders.splits["query"].get_rows(own).tolist())
            assert padding[1] <= set(holders.splits["train"].get_rows(own).tolist())


def test_nothing_is_shuffled_for_who_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def counted(key: Tensor, counters: Tensor) -> Tensor:
        drawn.append(len(counters))
        return words(key, counters)

    words = prng.random_bits
    monkeypatch.setattr(prng, "random_bits", counted)
    sizes = [3, 2000, 1, 50]
    holders, plan = holders_of(sizes), BatchPlan((BatchSpec("train", 4),), epochs=2)
    assert len(list(iter_batch_indices(plan, holders, np.arange(4), keys_of(4), 1000))) == 1000
    assert sum(drawn) == 2 * sum(sizes)


def test_an_epoch_is_shuffled_once_however_many_windows_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def counted(sizes: IntArray, *given: IntArray) -> Permutations:
        made.append(len(sizes))
        return permute_epochs(sizes, *given)

    monkeypatch.setattr(batching, "permute_epochs", counted)
    monkeypatch.setattr(batching, "_MAX_WINDOW_INDICES", 40)
    holders, plan = holders_of([2000]), BatchPlan((BatchSpec("train", 4),), epochs=3)
    whole = seen(plan, holders, [0], 1500)
    assert len(made) == 3
    monkeypatch.setattr(batching, "_MAX_WINDOW_INDICES", 1 << 21)
    assert seen(plan, holders, [0], 1500) == whole
    assert len(made) == 4


def test_the_last_stream_is_the_same_whatever_is_drawn_beside_it() -> None:
    holders, last = holders_of([13, 4, 30]), BatchSpec("train", 4)
    alone = seen(BatchPlan((last,), steps=9), holders, [0, 1, 2], 9)
    for others in (
        (last,),
        (BatchSpec("query", None),),
        (BatchSpec("train", 7), last),
        (last, last, last),
    ):
        beside = seen(BatchPlan((*others, last), steps=9), holders, [0, 1, 2], 9)
        assert [[step[-1:] for step in own] for own in beside] == alone
    three = seen(BatchPlan((last, last, last), steps=9), holders, [2], 9)[0]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert all(
            step[one][0] != step[other][0] and step[one][1] != step[other][1] for step in three
        )


def test_a_holder_sees_the_same_alone_in_any_stack_and_in_any_order() -> None:
    holders, plan = (
        holders_of([13, 1, 30, 6], [2, 5, 1, 3]),
        BatchPlan((BatchSpec("query", 2), BatchSpec("train", 4)), steps=11),
    )
    together = seen(plan, holders, [0, 1, 2, 3], 11)
    for who in ([2], [3, 0], [1, 3, 2, 0]):
        assert seen(plan, holders, who, 11) == [together[own] for own in who]
    assert seen(plan, holders, [0], 11, keys_of(4)[[1]]) != [together[0]]


def test_every_step_of_everybody_has_a_key_of_its_own() -> None:
    plan = BatchPlan((BatchSpec("query", 2), BatchSpec("train", 4)), steps=50)
    laid_out = list(iter_batch_indices(plan, holders_of([13, 1, 30]), np.arange(3), keys_of(3), 50))
    keys = [int(key) for placed in laid_out for place in placed for key in place.key]
    assert len(set(keys)) == len(keys) == 50 * 2 * 3


@pytest.mark.parametrize("places_at_once", [1, 7, 100])
def test_small_windows_change_nothing(places_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    holders, plan = (
        holders_of([13, 1, 30, 6]),
        BatchPlan((BatchSpec("train", None), BatchSpec("train", 4)), steps=23),
    )
    whole = list(iter_batch_indices(plan, holders, np.arange(4), keys_of(4), 23))
    monkeypatch.setattr(batching, "_MAX_WINDOW_INDICES", places_at_once)
    parts = list(iter_batch_indices(plan, holders, np.arange(4), keys_of(4), 23))
    assert distance(whole, parts) == 0


@pytest.mark.parametrize("queries", [[0, 3, 0], [2, 0, 0], [0, 0, 4]])
@pytest.mark.parametrize("size", [None, 2])
def test_who_has_nothing_to_draw_from_sees_padding_alone(
    queries: list[int], size: int | None
) -> None:
    holders = holders_of([4, 5, 6], queries)
    plan = BatchPlan((BatchSpec("query", size), BatchSpec("train", 3)), steps=4)
    for who in ([0, 1, 2], [2, 0, 1], [1], [0], [2]):
        laid_out = list(iter_batch_indices(plan, holders, np.array(who), keys_of(3)[who], 4))
        for at, own in enumerate(who):
            rows = [real(placed, at)[0][0] for placed in laid_out]
            assert all(sorted(set(row)) == sorted(row) for row in rows)
            assert bool(rows[0]) == (queries[own] > 0)
        held = set(holders.splits["query"].index.tolist())
        assert all(set(placed[0].rows.flatten().tolist()) <= held for placed in laid_out)
        assert all(placed[0].rows.shape[1] > 0 for placed in laid_out)
    by_epochs = BatchPlan((BatchSpec("query", size),), epochs=2)
    assert count_steps(by_epochs, holders, np.arange(3)).tolist() == [
        2 * -(-own // (size or 99)) for own in queries
    ]


def test_a_split_that_nobody_has_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"^Plan: split 'query' must have examples for batches, "
        r"but no client has one in it\.$",
    ):
        seen(BatchPlan((BatchSpec("query", 2),), steps=1), holders_of([4, 5], [0, 0]), [0, 1], 1)


def test_steps_without_data_or_without_draws_see_nothing() -> None:
    nobody = list(
        iter_batch_indices(
            BatchPlan((BatchSpec("train", 2),), steps=3), None, np.array([0]), keys_of(1), 3
        )
    )
    nothing = list(
        iter_batch_indices(BatchPlan((), steps=3), holders_of([4]), np.array([0]), keys_of(1), 3)
    )
    assert nobody == nothing == [(), (), ()]


@pytest.mark.parametrize("plan", [BatchPlan((BatchSpec("train", 2),)), BatchPlan((), epochs=2)])
def test_plans_without_an_end_are_refused(plan: BatchPlan) -> None:
    with pytest.raises(
        InputError,
        match=r"^Plan: steps must be given, or epochs and at least one spec, got BatchPlan\(",
    ):
        count_steps(plan, holders_of([4]), np.array([0]))


def test_an_index_may_be_a_read_only_map_or_run_backwards(tmp_path: Path) -> None:
    holders, plan = holders_of([4, 9]), BatchPlan((BatchSpec("train", 3),), steps=5)
    index, offsets = holders.splits["train"]
    index.tofile(tmp_path / "index")
    mapped = np.memmap(tmp_path / "index", np.int64, "r")
    frozen = offsets.copy()
    frozen.setflags(write=False)
    for other in (mapped, index[::-1].copy()[::-1]):
        same = holders._replace(splits={"train": Split(other, frozen)})
        assert seen(plan, same, [1, 0], 5) == seen(plan, holders, [1, 0], 5)
