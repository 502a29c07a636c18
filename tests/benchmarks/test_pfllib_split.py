"""PFLlib's split is recomputed: printouts of its generator that are public are found again."""

import numpy as np
import pytest

from anchor import pfllib_split

CIFAR10_CLASSES = [6000] * 10
CIFAR10_COUNTS = [
    {1: 9, 3: 668, 4: 476, 5: 287, 6: 5, 7: 167, 9: 9},
    {0: 7, 1: 1, 2: 62, 4: 43, 7: 177, 8: 1524},
    {2: 16, 3: 158, 4: 1034, 5: 3},
    {1: 402, 2: 12, 3: 7, 6: 1, 8: 1, 9: 1657},
    {0: 24, 2: 5104},
    {0: 2832, 3: 1432},
    {0: 36, 2: 578, 3: 708, 4: 114, 8: 4},
    {1: 210, 2: 2, 3: 30, 4: 962, 5: 1, 7: 2, 9: 1415},
    {1: 18, 3: 137, 4: 11, 7: 2568, 8: 8, 9: 232},
    {0: 2, 3: 2511, 4: 723},
    {0: 454, 2: 2, 7: 53, 8: 655},
    {0: 9, 1: 744, 3: 7, 4: 187, 5: 5, 7: 93, 8: 226, 9: 693},
    {0: 248, 2: 2, 4: 360, 5: 1802, 6: 1, 8: 3581},
    {1: 21, 2: 3, 3: 237, 4: 96, 5: 1161, 7: 9},
    {1: 16, 4: 153, 5: 1, 7: 2930},
    {1: 1394, 2: 157, 3: 28, 4: 18, 6: 735, 9: 1993},
    {0: 2358, 1: 9, 2: 61, 3: 2, 4: 1822},
    {1: 3175},
    {0: 29, 3: 74, 5: 89, 6: 5257},
    {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 2651, 6: 1, 7: 1, 8: 1, 9: 1},
]
"""Examples of each class at each client: TsingZ0/FedALA, issue 18, and the printout of
`generate_Cifar10.py noniid - dir` that PFLlib once had in `dataset/cifar10_dataset.out`."""

CIFAR10_TRAIN = [
    *(1215, 1360, 908, 1560, 3846, 3198, 1080, 1966, 2230, 2427),
    *(873, 1473, 4495, 1145, 2325, 3243, 3189, 2381, 4086, 1995),
]
"""Train examples of each client: the same printout."""

MNIST_CLASSES = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
MNIST_COUNTS = {
    0: {0: 140, 1: 890, 4: 1, 5: 319, 7: 29, 8: 1067, 9: 184},
    5: {1: 38, 3: 1, 4: 39, 8: 25, 9: 6086},
    16: {0: 3628},
    19: {0: 310, 1: 1, 2: 1, 3: 1, 4: 5789, 9: 1},
}
MNIST_TRAIN = [
    *(1972, 374, 1222, 1905, 1437, 4641, 942, 951, 2700, 3004),
    *(2337, 2829, 2709, 1600, 4297, 4086, 2721, 4239, 3949, 4577),
]
MNIST_TEST = [
    *(658, 125, 408, 636, 480, 1548, 314, 318, 900, 1002),
    *(779, 943, 904, 534, 1433, 1362, 907, 1414, 1317, 1526),
]
"""Some clients' classes and all clients' sizes: PFLlib's README, for MNIST and `noniid - dir`."""


def make_labels(class_sizes: list[int], seed: int = 0) -> np.ndarray:
    """Return labels of classes of these sizes, in a random order."""
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    return np.random.default_rng(seed).permutation(labels)


def as_dict(counts: np.ndarray) -> dict[int, int]:
    return {label: int(count) for label, count in enumerate(counts) if count}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_public_counts_of_cifar10_follow_from_the_sizes_of_its_classes(seed: int) -> None:
    labels = make_labels(CIFAR10_CLASSES, seed)
    clients = pfllib_split.split(labels)
    counts = pfllib_split.count_labels(clients, labels)
    assert [as_dict(row) for row in counts] == CIFAR10_COUNTS
    assert [len(client.train) for client in clients] == CIFAR10_TRAIN


def test_the_public_counts_of_mnist_are_found_again() -> None:
    labels = make_labels(MNIST_CLASSES)
    clients = pfllib_split.split(labels)
    counts = pfllib_split.count_labels(clients, labels)
    assert {client: as_dict(counts[client]) for client in MNIST_COUNTS} == MNIST_COUNTS
    assert [len(client.train) for client in clients] == MNIST_TRAIN
    assert [len(client.test) for client in clients] == MNIST_TEST


def test_an_earlier_minimum_of_40_examples_gives_the_same_split() -> None:
    labels = make_labels(CIFAR10_CLASSES)
    now = pfllib_split.split(labels)
    earlier = pfllib_split.split(labels, least_examples=40)
    for client, other in zip(now, earlier, strict=True):
        np.testing.assert_array_equal(client.train, other.train)
        np.testing.assert_array_equal(client.test, other.test)


def test_another_seed_gives_another_split() -> None:
    labels = make_labels(CIFAR10_CLASSES)
    counts = pfllib_split.count_labels(pfllib_split.split(labels, seed=2), labels)
    assert [as_dict(row) for row in counts] != CIFAR10_COUNTS


def test_every_example_has_one_owner_and_one_part() -> None:
    labels = make_labels([50] * 10)
    clients = pfllib_split.split(labels, num_clients=5, least_examples=20)
    rows = np.concatenate([np.concatenate(client) for client in clients])
    np.testing.assert_array_equal(np.sort(rows), np.arange(500))
    for client in clients:
        size = len(client.train) + len(client.test)
        assert size >= 20
        assert len(client.train) == int(0.75 * size)
