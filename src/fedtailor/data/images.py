"""MNIST and CIFAR-10 among clients: which partition, how many people, how much the server has."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.arrays import from_arrays, generator, how_many
from fedtailor.data.checks import row_hashes
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.holders import Array
from fedtailor.data.partitions import NOBODY, PARTITIONS, Whose, mixture, relabelled
from fedtailor.data.raw import Raw, raw
from fedtailor.errors import nearest, require

SERVER, PARTITION, RELABEL = 30, 31, 32
BLOCK = 4096  # images that are looked at together
FOR_ALL = ("test_share", "validation_clients", "new_clients", "adapt", "support", "seed")


def mnist(
    *,
    partition: str = "two-labels",
    clients: int = 50,
    ratio: float = 50.0,
    used: float = 1.0,
    images: int = 196,
    drop_half: bool = False,
    labels: int = 2,
    size: int | None = None,
    shards: int = 2,
    alpha: float = 0.5,
    least: int = 10,
    others: str = "",
    others_share: float = 0.5,
    zeta: float = 1.0,
    server: float = 0.05,
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    new_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """MNIST: 70,000 handwritten digits of 28 x 28, divided among clients by a partition of your choice.

    A partition takes these options and no others; sizes count all that a person holds, for training and testing.

    two-labels     ratio, used, least: FedMeta-Per's, with test_share=0.25, adapt=0.2; two labels each, a share `used`
                   of the examples divided by weights from 1 to `ratio`
    half-and-half  images, drop_half: Per-FedAvg's; every other client has `images` of each of the labels 0 to 4, the
                   rest images / 2 of one of those (none: drop_half) and 2 * images of one of the labels 5 to 9
    few-labels     labels, size: FSL's; `labels` labels each, equally many of each, `size` in all (None: what there is)
    shards         shards: so many equal shards each of the examples sorted by label
    dirichlet      alpha, least: each label divided by shares from Dirichlet(alpha), nobody with fewer than `least`
    quantity       alpha, least: random examples, sizes from Dirichlet(alpha)
    iid            random examples, equal sizes

    `others` names the partition of a share `others_share` of the clients. A share 1 - `zeta` of the clients gives the
    labels an order of its own. The server has a share (float) or count (int) of all examples, drawn first; the clients
    have what the partition gives them of the rest. New people know, as a group, what those who train know.
    """
    return _federated("mnist", mnist, locals())


def cifar10(
    *,
    partition: str = "two-labels",
    clients: int = 50,
    ratio: float = 2.5,
    used: float = 0.875,
    images: int = 68,
    drop_half: bool = False,
    labels: int = 2,
    size: int | None = None,
    shards: int = 2,
    alpha: float = 0.5,
    least: int = 10,
    others: str = "",
    others_share: float = 0.5,
    zeta: float = 1.0,
    server: float = 0.05,
    test_share: float = 0.25,
    validation_clients: float = 0.1,
    new_clients: float = 0.2,
    adapt: str | float = "train",
    support: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """CIFAR-10: 60,000 colour photographs of 32 x 32, divided among clients by a partition of your choice.

    Partitions and options are those of mnist; the sizes of two-labels and half-and-half are the papers' for CIFAR-10.
    FSL's first scenario is partition="few-labels", clients=10, size=5000.
    """
    return _federated("cifar10", cifar10, locals())


def _federated(name: str, source: Callable[..., FederatedDataset], options: dict[str, Any]) -> FederatedDataset:
    """What a source makes of its options."""
    rule = _rule(name, source, options)
    data, seed, clients = raw(name), options["seed"], options["clients"]
    own, rest = _server(data, options["server"], generator(seed, SERVER))
    whose = rule(data.y[rest], clients, generator(seed, PARTITION))
    y = relabelled(data.y[rest], whose, generator(seed, RELABEL), zeta=options["zeta"])
    held = np.flatnonzero(whose != NOBODY)
    made = from_arrays(
        data.x[rest[held]],
        y[held],
        whose[held],
        name=name,
        classes=data.classes,
        server=(data.x[own], data.y[own]) if len(own) else None,
        scale=data.scale,
        **{option: options[option] for option in FOR_ALL},
    )
    return replace(made, groups=_groups(made), trust=True)  # the same people, grouped otherwise


def _rule(name: str, source: Callable[..., FederatedDataset], options: dict[str, Any]) -> Callable[..., Whose]:
    """The partition that is asked for, with its options; refuses options that it has no use for."""
    chosen = [options["partition"], *([options["others"]] if options["others"] else [])]
    for partition in chosen:
        known = isinstance(partition, str) and partition in PARTITIONS
        require(known, f"{name}: there is no partition '{partition}'; {nearest(str(partition), PARTITIONS)}")
    useful = set().union(*(_options_of(PARTITIONS[partition]) for partition in chosen))
    useless = set().union(*map(_options_of, PARTITIONS.values())) - useful
    useless |= set() if options["others"] else {"others_share"}
    for option, default in _options_of(source).items():
        unasked = option not in useless or options[option] == default
        asked = f"partition {' with '.join(chosen)}"
        require(unasked, f"{name}: {asked} has no use for {option}={options[option]!r}; leave it out.")
    first, *second = (_bound(partition, options) for partition in chosen)
    return partial(mixture, rule=first, other=second[0], share=options["others_share"]) if second else first


def _bound(partition: str, options: dict[str, Any]) -> Callable[..., Whose]:
    rule = PARTITIONS[partition]
    return partial(rule, **{option: options[option] for option in _options_of(rule)})


def _options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of a function, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def _server(data: Raw, server: float, draws: np.random.Generator) -> tuple[Whose, Whose]:
    """Random examples for the server, and what it leaves: nothing that equals one of its own."""
    count, order = how_many(data.name, server, len(data.y)), draws.permutation(len(data.y))
    require(count < len(order), f"{data.name}: server must leave some of the {len(order)} examples, got {server}.")
    own, rest = np.sort(order[:count]), np.sort(order[count:])
    if count:
        rest = rest[~np.isin(_hashes(data.x, rest), _hashes(data.x, own))]
    return own, rest


def _hashes(x: Array, rows: Whose) -> NDArray[np.uint64]:
    blocks = range(0, len(rows), BLOCK)
    return np.concatenate([row_hashes(x[rows[start : start + BLOCK]]) for start in blocks])


def _groups(made: FederatedDataset) -> dict[str, NDArray[np.int64]]:
    """Groups of the same sizes, but with new people who know, as a group, what others know.

    Partitioners deal labels in turn, so the last clients make a fair sample; somebody is passed over only to make place
    for what the others do not know. What a single client knows need not be known.
    """
    clients = made.clients
    knows = np.zeros((clients.count, made.classes or 1), bool)
    for split in clients.splits.values():
        knows[split.holders(), clients.y[split.index]] = True
    new = _knowing(knows, len(made.groups["new"]))
    rest = np.setdiff1d(np.arange(clients.count), new)
    train, validation = np.split(rest, [len(rest) - len(made.groups["validation"])])
    return {"train": train, "local": train, "validation": validation, "new": new}


def _knowing(knows: NDArray[np.bool_], count: int) -> NDArray[np.int64]:
    """So many clients, late ones first, who together know all labels that two clients know, if so many can."""
    lacking, waiting = knows.sum(axis=0) > 1, list(range(len(knows)))[::-1]
    chosen: list[int] = []
    while len(chosen) < count and lacking.any():
        adds = (knows[waiting] & lacking).sum(axis=1)
        needed = min(-(-int(lacking.sum()) // (count - len(chosen))), int(adds.max()))
        chosen.append(waiting.pop(int(np.argmax(adds >= needed))))
        lacking &= ~knows[chosen[-1]]
    return np.sort(np.array(chosen + waiting[: count - len(chosen)], np.int64))
