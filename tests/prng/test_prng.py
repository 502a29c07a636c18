"""Keyed randomness: the generator, the names, and the draws one by one, vmapped and compiled."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedtailor import prng
from fedtailor.errors import InputError
from fedtailor.prng import (
    choice,
    dropout_mask,
    fold,
    integers,
    keep_prob,
    key,
    normal,
    permutation,
    random_bits,
    threefry,
    uniform,
)

LENGTHS = (1, 7, 1001, 1024)
MASK = 0xFFFFFFFF


def oracle(k: tuple[int, int], c: tuple[int, int]) -> tuple[int, int]:
    """Threefry-2x32-20 as the paper writes it: round by round, the key added after every fourth."""
    schedule = [k[0], k[1], 0x1BD11BDA ^ k[0] ^ k[1]]
    x, y = (c[0] + k[0]) & MASK, (c[1] + k[1]) & MASK
    for number in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x = (x + y) & MASK
        y = ((y << turn) & MASK | y >> (32 - turn)) ^ x
        if number % 4 == 3:
            s = number // 4 + 1
            x, y = (x + schedule[s % 3]) & MASK, (y + schedule[(s + 1) % 3] + s) & MASK
    return x, y


def pair(number: int) -> tuple[int, int]:
    return number & MASK, (number >> 32) & MASK


DRAWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "fold": lambda k, n: fold(fold(k, n), "name"),
    "words": lambda k, n: random_bits(k, torch.arange(n, device=k.device) - 1),
    "bits": prng.random_int32,
    "uniform": lambda k, n: uniform(k, (n,)),
    "double": lambda k, n: uniform(k, (n, 1), torch.float64),
    "integers": lambda k, n: integers(k, (n,), 1000003),
    "permutation": permutation,
    "few": lambda k, n: choice(k, 5 * n, n),
    "many": lambda k, n: choice(k, n, (n + 1) // 2),
    "mask": lambda k, n: dropout_mask(k, (n,), 0.3),
    "normal": lambda k, n: normal(k, (n,)),
}


def draws(k: Tensor, n: int, names: Sequence[str] = tuple(DRAWS)) -> dict[str, Tensor]:
    return {name: DRAWS[name](k, n) for name in names}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name in one:
        allowed = 2e-6 if name == "normal" else 0
        torch.testing.assert_close(one[name], other[name], rtol=allowed, atol=allowed)


# The generator


@pytest.fixture(params=["compiled", "plain"])
def of_arrays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are drawn by compiled code, where there is a compiler, and by NumPy's operations."""
    if request.param == "plain":
        monkeypatch.setattr(threefry, "_load_native", lambda: None)
    elif threefry._load_native() is None:
        pytest.skip("needs a compiler of C++")


@pytest.mark.usefixtures("of_arrays")
def test_arrays_choose_what_tensors_choose() -> None:
    for number, (n, k) in enumerate(
        ((0, 0), (9, 0), (5, 5), (8, 2), (9, 2), (1000, 30), (10**12, 7))
    ):
        own = key(7, number)
        assert choice(own.numpy(), n, k).tolist() == choice(own, n, k).tolist()


@pytest.mark.parametrize(
    ("counter", "k", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((MASK, MASK), (MASK, MASK), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(
    counter: tuple[int, int], k: tuple[int, int], answer: tuple[int, int]
) -> None:
    assert oracle(k, counter) == answer
    low, high = threefry.threefry2x32(k, counter)
    assert (low & MASK, high & MASK) == answer
    tensors = [torch.tensor(word).to(torch.int32) for word in (*k, *counter)]
    low, high = (
        int(word)
        for word in threefry.threefry2x32((tensors[0], tensors[1]), (tensors[2], tensors[3]))
    )
    assert (low & MASK, high & MASK) == answer


def test_draws_read_the_generator_in_order() -> None:
    chance = random.Random(0)
    for _ in range(20):
        k, counter = chance.getrandbits(64) - 2**63, chance.getrandbits(64) - 2**63
        x, y = oracle(pair(k), pair(counter))
        assert int(random_bits(torch.tensor(k), torch.tensor(counter))) == (y << 32 | x) & (
            2**63 - 1
        )
        expected = [word for position in range(4) for word in oracle(pair(k), (position, 0))]
        assert [word & MASK for word in prng.random_int32(torch.tensor(k), 7).tolist()] == expected[
            :7
        ]


def test_values_never_change() -> None:
    made, path = (
        0,
        (2024, 0x5995D533D814BBD8, 3, -1, 2**40),
    )  # second: `printf abc | b2sum -l 64`, read from the right
    for name in path:
        x, y = oracle((made & MASK ^ 0x464F4C44, made >> 32), pair(name))
        made = y << 32 | x
    assert key(2024, "abc", 3, -1, 2**40).item() % 2**64 == made
    assert permutation(key(1), 8).tolist() == [5, 4, 0, 3, 6, 7, 1, 2]
    assert dropout_mask(key(1), (8,), 0.5).int().tolist() == [1, 0, 1, 1, 1, 0, 0, 0]


# The names


def test_a_tensor_of_names_is_the_names_one_by_one() -> None:
    clients = torch.tensor([0, 1, -1, 2**40, -(2**63), 2**63 - 1])
    together = key(5, "batches", 3, clients, 7)
    assert together.tolist() == [key(5, "batches", 3, c, 7).item() for c in clients.tolist()]
    assert together.tolist() == [fold(fold(key(5, "batches", 3), c), 7).item() for c in clients]
    assert torch.equal(fold(together, "x"), torch.stack([fold(k, "x") for k in together]))


def test_keys_and_names_broadcast() -> None:
    clients, steps = key(1, torch.arange(4)), torch.arange(3, dtype=torch.int32)
    grid = fold(clients[:, None], steps)
    assert grid.shape == (4, 3)
    assert grid.tolist() == [[key(1, c, s).item() for s in range(3)] for c in range(4)]
    assert torch.equal(
        fold(clients, torch.arange(4)), grid.new_tensor([key(1, c, c).item() for c in range(4)])
    )
    assert torch.equal(
        random_bits(clients[:, None], steps), torch.stack([random_bits(k, steps) for k in clients])
    )


def test_different_paths_have_different_keys() -> None:
    rounds, clients = torch.arange(100)[:, None], torch.arange(-50, 50)
    purposes = ("batches", "cohort", "dropout", "noise")
    made = [
        key(seed, purpose, rounds, clients).flatten() for seed in range(3) for purpose in purposes
    ]
    made += [key(seed, purpose, rounds).flatten() for seed in range(3) for purpose in purposes]
    everything = torch.cat(made)
    assert len(everything) > 120_000
    assert len(set(everything.tolist())) == len(everything)


def test_paths_are_read_name_by_name_and_in_order() -> None:
    paths = [
        (1, "a", 2),
        (1, "a2"),
        (1, 2, "a"),
        (1, "a", "2"),
        (12, "a"),
        (1, "a"),
        (1, "a", 2, 0),
        (1, ""),
    ]
    assert len({key(int(seed), *path).item() for seed, *path in paths}) == len(paths)


def test_folding_and_drawing_do_not_meet() -> None:
    k, numbers = key(3), torch.arange(10_000)
    assert not set((fold(k, numbers) & (2**63 - 1)).tolist()) & set(
        random_bits(k, numbers).tolist()
    )


# The draws


def test_draws_are_pure_and_stay_on_the_device_of_the_key() -> None:
    before = torch.get_rng_state()
    k = key(1, "pure")
    assert_same(draws(k, 7), draws(k, 7))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(drawn.device.type == "meta" for drawn in draws(k.to("meta"), 7).values())


def test_uniforms_fill_their_grid() -> None:
    k = key(2, "grid")
    for dtype, steps in ((torch.float32, 2**24), (torch.float64, 2**53)):
        drawn = uniform(k, (500, 200), dtype)
        scaled = drawn.double() * steps
        assert drawn.dtype == dtype
        assert 0 <= scaled.min() < scaled.max() <= steps - 1
        assert torch.equal(scaled, scaled.round())
        assert (scaled % 2 == 1).double().mean() == pytest.approx(0.5, abs=0.01)


def test_normals_are_quantiles_of_the_uniforms_and_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, steps, bound, accuracy in (
        (torch.float32, 2**24, 5.5, 2e-6),
        (torch.float64, 2**53, 8.3, 1e-12),
    ):
        middles = uniform(key(3), (10_000,), dtype).double().numpy() + 0.5 / steps
        drawn = normal(key(3), (10_000,), dtype).numpy()
        np.testing.assert_allclose(drawn, stats.norm.ppf(middles), accuracy, accuracy)
        ends = torch.tensor([0.0, 1 - 1 / steps], dtype=dtype)
        with monkeypatch.context() as patched:
            patched.setattr(prng, "uniform", lambda *_, ends=ends: ends)
            extremes = normal(key(3), (2,), dtype)
        assert extremes.isfinite().all()
        assert extremes[1] == -extremes[0]
        assert bound - 0.2 < extremes[1] < bound


def test_masks_spend_sixteen_bits_each() -> None:
    k = key(4, "mask")
    halves = (
        prng.random_int32(k, 500)
        .numpy()
        .astype("<i4")
        .view("<i2")
        .reshape(-1, 2)[:, ::-1]
        .flatten()[:999]
    )
    for p in (
        0.0,
        0.25,
        0.3,
        0.999,
        (int(halves[0]) + 32768) / 65536,
    ):  # the last one: exactly at a value drawn
        dropped = round(p * 65536)
        assert np.array_equal(
            dropout_mask(k, (27, 37), p).numpy().flatten(), halves >= dropped - 32768
        )
        assert keep_prob(p) == np.mean(np.arange(-32768, 32768) >= dropped - 32768)
    assert dropout_mask(k, (1000,), 0.0).all()


def test_shapes_and_empty_draws() -> None:
    k = key(5)
    assert (
        uniform(k, ()).shape
        == normal(k, ()).shape
        == dropout_mask(k, (), 0.5).shape
        == integers(k, (), 3).shape
        == ()
    )
    assert uniform(k, (3, 0, 2)).shape == dropout_mask(k, (3, 0, 2), 0.5).shape == (3, 0, 2)
    assert (
        prng.random_int32(k, 0).shape
        == permutation(k, 0).shape
        == choice(k, 0, 0).shape
        == choice(k, 9, 0).shape
        == (0,)
    )
    assert torch.equal(prng.random_int32(k, 9)[:4], prng.random_int32(k, 4))
    assert integers(k, (100,), 1).eq(0).all()


def test_choices_are_distinct_and_in_range() -> None:
    keys = key(6, torch.arange(200))
    for n, k in ((1, 1), (5, 1), (9, 2), (41, 10), (40, 10), (401, 100), (10**12, 50), (7, 7)):
        chosen = vmap(partial(choice, n=n, k=k))(keys)
        assert chosen.shape == (200, k)
        assert 0 <= chosen.min() <= chosen.max() < n
        assert all(len(set(row)) == k for row in chosen.tolist())


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda: choice(key(0), 3, 4), "cannot choose 4 distinct numbers out of 3"),
        (lambda: choice(key(0), 3, -1), "cannot choose -1"),
        (lambda: integers(key(0), (2,), 0), "high must be positive"),
        (lambda: dropout_mask(key(0), (2,), 1.0), r"in \[0, 1 - 2\^-17\), got 1.0"),
        (lambda: keep_prob(-0.1), "got -0.1"),
        (lambda: keep_prob(float("nan")), "got nan"),
        (lambda: uniform(key(0), (2,), torch.float16), "float32 or float64, got torch.float16"),
        (lambda: prng.random_int32(key(0), -2), "negative size"),
        (
            lambda: prng.random_int32(key(0, torch.arange(3)), 2),
            r"one key, got keys of shape \(3,\)",
        ),
        (lambda: key(2**64), "of 64 bits"),
        (lambda: key(0, 1.5), "got 1.5"),  # type: ignore[arg-type]
        (lambda: key(0, torch.tensor(1.5)), "integers, got torch.float32"),
    ],
)
def test_refusals(bad: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        bad()


# The draws in all the ways they are run


@pytest.mark.parametrize("n", LENGTHS)
def test_vmapped_is_one_by_one(n: int) -> None:
    keys = key(0, "vmap", torch.arange(5))
    together = vmap(partial(draws, n=n))(keys)
    for i, k in enumerate(keys):
        assert_same(draws(k, n), {name: rows[i] for name, rows in together.items()})


class Listing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the operations that are done."""

    def __init__(self, used: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used = used

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.used.append(func)
        return func(*args, **(kwargs or {}))


def test_drawn_in_one_operation_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, names = key(3, torch.arange(6)), torch.arange(4)
    both = vmap(vmap(fold, (None, 0)), (0, None))
    ways: list[Callable[[], dict[str, Tensor]]] = [
        lambda: draws(keys[0], 7),
        lambda: vmap(partial(draws, n=7))(keys),
        lambda: {
            "kept": vmap(vmap(partial(dropout_mask, shape=(3, 5), p=0.3)))(keys.reshape(2, 3))
        },
        lambda: {
            "fold": fold(keys[:, None], names),
            "named": fold(keys, "name"),
            "both": both(keys, names),
        },
        lambda: {"by last": vmap(fold, (1, None), 1)(keys.reshape(2, 3), names[:2])},
    ]
    plainly = [way() for way in ways]
    used: list[Any] = []
    monkeypatch.setattr(prng, "should_fuse", lambda _: True)
    with Listing(used):
        for way, expected in zip(ways, plainly, strict=True):
            assert_same(way(), expected)
    assert used.count(torch.ops.fedtailor.threefry.default) > len(ways)


def check_compiled() -> None:
    """Compares compiled draws with eager ones; run in a process of its own, which a broken compiler
    may kill.
    """
    keys = key(0, "compile", torch.arange(3))
    cases: list[tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]] = [
        *((keys[0], partial(draws, n=n, names=("uniform", "permutation"))) for n in LENGTHS),
        (keys, vmap(partial(draws, n=7, names=("mask",)))),
        (keys, vmap(partial(draws, n=1001, names=("fold", "double", "few", "mask", "normal")))),
    ]
    for argument, function in cases:
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        for _ in range(10):
            assert_same(function(argument), compiled(argument))


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_is_eager() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    check_compiled()


@pytest.mark.usefixtures("of_arrays")
@pytest.mark.parametrize("name", [0, 7, -1, 2**40 + 3, -(2**63), 2**64 - 1, "word"])
def test_arrays_of_keys_fold_and_draw_as_tensors_do(name: int | str) -> None:
    keys, counters = key(2**62 + 5, "arrays", torch.arange(9)), torch.arange(-3, 2**40, 2**33 + 7)
    assert fold(keys.numpy(), name).tolist() == fold(keys, name).tolist()
    assert (
        fold(keys.numpy()[:, None], counters.numpy()).tolist()
        == fold(keys[:, None], counters).tolist()
    )
    assert (
        random_bits(keys.numpy()[:, None], counters.numpy()).tolist()
        == random_bits(keys[:, None], counters).tolist()
    )


@pytest.mark.usefixtures("of_arrays")
@pytest.mark.parametrize(
    "shapes",
    [
        ((), (3,)),
        ((1,), (0,)),
        ((1, 1), (4,)),
        ((5, 1), (1, 3)),
        ((2, 3), (3,)),
        ((4,), (4,)),
        ((0,), (0,)),
    ],
)
def test_arrays_broadcast_as_tensors_do(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    keys, counters = (
        torch.randint(-(2**63), 2**63 - 1, shape, generator=generator) for shape in shapes
    )
    turned = np.asfortranarray(counters.numpy())  # as it lies in memory does not matter
    for whose in (counters.numpy(), turned):
        drawn, expected = random_bits(keys.numpy(), whose), random_bits(keys, counters)
        assert drawn.dtype == np.int64
        assert drawn.shape == expected.shape
        assert drawn.tolist() == expected.tolist()
