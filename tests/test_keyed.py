"""Keyed randomness: the generator, the names, and the draws one by one, vmapped, compiled, and as random numbers."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap

from fedtailor import keyed
from fedtailor.errors import InputError
from fedtailor.keyed import (
    bits,
    choice,
    fold,
    integers,
    keep_mask,
    keep_share,
    key,
    normal,
    permutation,
    uniform,
    words,
)

LENGTHS = (1, 7, 1001, 1024)
UNLIKELY = 1e-4
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
    "words": lambda k, n: words(k, torch.arange(n) - 1),
    "bits": bits,
    "uniform": lambda k, n: uniform(k, (n,)),
    "double": lambda k, n: uniform(k, (n, 1), torch.float64),
    "integers": lambda k, n: integers(k, (n,), 1000003),
    "permutation": permutation,
    "few": lambda k, n: choice(k, 5 * n, n),
    "many": lambda k, n: choice(k, n, (n + 1) // 2),
    "mask": lambda k, n: keep_mask(k, (n,), 0.3),
}


def draws(k: Tensor, n: int, names: Sequence[str] = tuple(DRAWS)) -> dict[str, Tensor]:
    return {name: DRAWS[name](k, n) for name in names}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert torch.equal(one[name], other[name]), name


# The generator


@pytest.mark.parametrize(
    ("counter", "k", "answer"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((MASK, MASK), (MASK, MASK), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(counter: tuple[int, int], k: tuple[int, int], answer: tuple[int, int]) -> None:
    assert oracle(k, counter) == answer
    low, high = keyed._threefry(k, counter)
    assert (low & MASK, high & MASK) == answer
    tensors = [torch.tensor(word).to(torch.int32) for word in (*k, *counter)]
    low, high = (int(word) for word in keyed._threefry((tensors[0], tensors[1]), (tensors[2], tensors[3])))
    assert (low & MASK, high & MASK) == answer


def test_draws_read_the_generator_in_order() -> None:
    chance = random.Random(0)
    for _ in range(20):
        k, counter = chance.getrandbits(64) - 2**63, chance.getrandbits(64) - 2**63
        x, y = oracle(pair(k), pair(counter))
        assert int(words(torch.tensor(k), torch.tensor(counter))) == (y << 32 | x) & (2**63 - 1)
        expected = [word for position in range(4) for word in oracle(pair(k), (position, 0))]
        assert [word & MASK for word in bits(torch.tensor(k), 7).tolist()] == expected[:7]


def test_values_never_change() -> None:
    assert key(0).item() == 0
    assert key(2024, "batches", 3, -1, 2**40).item() == 0
    assert permutation(key(1), 8).tolist() == []


# The names


def test_a_tensor_of_names_is_the_names_one_by_one() -> None:
    clients = torch.tensor([0, 1, -1, 2**40, -(2**63), 2**63 - 1])
    together = key(5, "batches", 3, clients, 7)
    assert together.tolist() == [key(5, "batches", 3, c, 7).item() for c in clients.tolist()]
    assert together.tolist() == [fold(fold(key(5, "batches", 3), c), 7).item() for c in clients]
    assert torch.equal(key(clients.tolist()[3], clients.to(torch.int64)), fold(key(2**40), clients))
    assert torch.equal(fold(together, "x"), torch.stack([fold(k, "x") for k in together]))


def test_keys_and_names_broadcast() -> None:
    clients, steps = key(1, torch.arange(4)), torch.arange(3, dtype=torch.int32)
    grid = fold(clients[:, None], steps)
    assert grid.shape == (4, 3)
    assert grid.tolist() == [[key(1, c, s).item() for s in range(3)] for c in range(4)]
    assert torch.equal(fold(clients, torch.arange(4)), grid.new_tensor([key(1, c, c).item() for c in range(4)]))
    assert torch.equal(words(clients[:, None], steps), torch.stack([words(k, steps) for k in clients]))


def test_different_paths_have_different_keys() -> None:
    rounds, clients = torch.arange(100)[:, None], torch.arange(-50, 50)
    purposes = ("batches", "cohort", "dropout", "noise")
    made = [key(seed, purpose, rounds, clients).flatten() for seed in range(3) for purpose in purposes]
    made += [key(seed, purpose, rounds).flatten() for seed in range(3) for purpose in purposes]
    everything = torch.cat(made)
    assert len(everything) > 120_000
    assert len(everything.unique()) == len(everything)


def test_paths_are_read_name_by_name_and_in_order() -> None:
    paths = [
        (1, "a", 2),
        (1, "a2"),
        (1, 2, "a"),
        (1, "a", "2"),
        (1, "2", "a"),
        (12, "a"),
        (1, "a"),
        (1, "a", 2, 0),
        (1, ""),
    ]
    assert len({key(int(seed), *path).item() for seed, *path in paths}) == len(paths)


def test_folding_and_drawing_do_not_meet() -> None:
    k, numbers = key(3), torch.arange(10_000)
    folded = fold(k, numbers)
    assert not set((folded & (2**63 - 1)).tolist()) & set(words(k, numbers).tolist())


# The draws


@pytest.mark.parametrize("n", LENGTHS)
def test_vmapped_is_one_by_one(n: int) -> None:
    keys = key(0, "vmap", torch.arange(5))
    together = vmap(partial(draws, n=n))(keys)
    for i, k in enumerate(keys):
        assert_same(draws(k, n), {name: rows[i] for name, rows in together.items()})
    assert torch.equal(vmap(partial(normal, shape=(n,)))(keys), torch.stack([normal(k, (n,)) for k in keys]))


def check_compiled() -> None:
    """Compares compiled draws with eager ones; run in a process of its own, which a broken compiler may kill."""
    keys = key(0, "compile", torch.arange(3))
    one_by_one = [(keys[0], partial(draws, n=n, names=("uniform", "permutation"))) for n in LENGTHS]
    stacked = [(keys, vmap(partial(draws, n=n, names=names))) for n, names in ((7, ("mask",)), (1001, ("fold", "double", "few", "mask")))]
    for argument, function in [*one_by_one, *stacked]:
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        for _ in range(10):
            assert_same(function(argument), compiled(argument))


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_is_eager() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    check_compiled()
