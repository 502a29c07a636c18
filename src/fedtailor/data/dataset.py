"""Who holds which examples: flat columns, an index per split, groups of people, and the promises that bind them.

Columns are arrays or memory maps and are never copied; everything that reads them whole does so block by block. The
promises are checked when a dataset is made, each broken one with a sentence that names the client.
"""

from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import validation
from fedtailor.data.examples import ClientExamples, Split
from fedtailor.errors import InputError
from fedtailor.prng.streams import DataStream


class Summary(NamedTuple):
    """A dataset in figures; `str` makes them readable."""

    name: str
    groups: dict[str, int]  # how many people are in each
    examples: int  # in clients' hands
    classes: int | None
    smallest: int  # examples of a client, all splits together
    largest: int
    mean: float
    server: int
    overlap: str

    def __str__(self) -> str:
        """The figures in a few lines."""
        group_sizes = ", ".join(f"{size} {group}" for group, size in self.groups.items())
        targets = "real-valued targets" if self.classes is None else f"{self.classes} classes"
        return (
            f"{self.name}: {self.examples} examples, {targets}\n"
            f"  clients: {group_sizes}\n"
            f"  examples per client: {self.smallest} to {self.largest}, mean {self.mean:.1f}\n"
            f"  server: {self.server} examples"
            + (f", overlapping clients' ({self.overlap})" if self.overlap else "")
        )


class ExampleSpec(NamedTuple):
    """What an example looks like, and how a model takes it."""

    shape: tuple[int, ...]  # of one x
    label_shape: tuple[int, ...]  # of one y
    classes: int | None
    scale: float
    tokens: bool
    padding: tuple[int, ...] = ()
    unscored_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Clients' examples, the clients grouped by person, and the server's own examples.

    Groups: "train" clients may be sampled, "participating" ones are scored as those that took part,
    "validation" ones serve for choosing, "unseen" ones are never trained on.
    """

    name: str
    clients: ClientExamples
    client_names: NDArray[np.str_]  # the clients' own names
    groups: dict[str, NDArray[np.int64]]  # the clients of each, by number
    server: ClientExamples | None
    classes: int | None  # None: the targets are real-valued
    scale: float = 1.0  # x is multiplied by it once it is floating; for integers that are amounts
    tokens: bool = False  # x stays integer
    padding: tuple[int, ...] = ()  # tokens of y that count neither for the loss nor the accuracy
    unscored_tokens: tuple[
        int, ...
    ] = ()  # tokens of y that are learned, but left out of the accuracy
    support: float = 0.2  # the part of a client's train examples that meta-learning adapts on, if it has no own splits
    content_hash: str = ""  # the same for the same columns x and y of clients; "": not known, they would have to be read
    overlap: str = (
        ""  # why server data may overlap clients'; "": it does not, and this has been checked
    )
    trust: InitVar[bool] = field(
        default=False, kw_only=True
    )  # the promises were checked before: do not check again

    def __post_init__(self, skip_checks: bool) -> None:
        """Refuses a dataset that breaks a promise; clients adapt on their train examples if nothing else is said."""
        splits = self.clients.splits
        if "adapt" not in splits and {"train", "test"} <= set(splits):
            clients = self.clients._replace(splits={**splits, "adapt": splits["train"]})
            object.__setattr__(self, "clients", clients)
        if not skip_checks:
            validate_dataset(self)

    @property
    def example_spec(self) -> ExampleSpec:
        """What an example looks like."""
        x, y = self.clients.x, self.clients.y
        shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
        return ExampleSpec(
            *shapes, self.classes, self.scale, self.tokens, self.padding, self.unscored_tokens
        )

    def with_pooled_client(self) -> "FederatedDataset":
        """The same with one more holder, "pooled": the train group's train examples together, now that group alone."""
        splits, train = self.clients.splits, self.clients.splits["train"]
        everything = train.index[np.isin(train.owners(), self.groups["train"])]
        added = {name: everything if name == "train" else everything[:0] for name in splits}
        more = {name: _append_client(split, added[name]) for name, split in splits.items()}
        return replace(
            self,
            clients=self.clients._replace(splits=more),
            client_names=np.append(self.client_names, _make_pooled_name(self.client_names)),
            groups=self.groups | {"train": np.array([self.clients.count])},
            trust=True,  # the pool holds, on purpose, what clients hold, and every example has been looked at
        )

    def with_shared_server_data(self) -> "FederatedDataset":
        """The same with the server's examples added to the train examples of everybody in the train group."""
        if self.server is None:
            raise InputError(
                f"{self.name}: the server must have examples to share with clients, but has none."
            )
        (x, y, splits), server = self.clients, self.server
        train, extra = splits["train"], len(x) + server.splits["train"].get_rows(0)
        sharing = np.isin(np.arange(self.clients.count), self.groups["train"])
        parts = [
            np.append(train.get_rows(client), extra) if sharing[client] else train.get_rows(client)
            for client in range(len(sharing))
        ]
        more = Split(np.concatenate(parts), np.append(0, np.cumsum([len(part) for part in parts])))
        return replace(
            self,
            clients=ClientExamples(
                np.concatenate([x, server.x]),
                np.concatenate([y, server.y]),
                {**splits, "train": more},
            ),
            content_hash="",
            overlap="the server's examples are shared with every training client",
            trust=True,  # the same examples, in more hands on purpose
        )

    def with_support(self) -> "FederatedDataset":
        """The same with "support" and "query": every client's train examples in two, unless they are there already."""
        train, splits = self.clients.splits["train"], self.clients.splits
        if {"support", "query"} <= set(splits):
            return self
        sizes, owners = train.sizes(), train.owners()
        if sizes.max() < 2:
            raise InputError(
                f"{self.name}: no client has two train examples, one to adapt on and one to learn from."
            )
        supports = np.clip(
            np.rint(self.support * sizes).astype(np.int64), 1, np.maximum(sizes - 1, 1)
        )
        rng = np.random.Generator(
            np.random.Philox(np.random.SeedSequence(0, spawn_key=(DataStream.SUPPORT,)))
        )
        order = np.lexsort((rng.random(len(owners)), owners))
        supporting = np.arange(len(owners)) - np.repeat(train.offsets[:-1], sizes) < np.repeat(
            supports, sizes
        )
        more = {
            name: Split(train.index[order[chosen]], np.append(0, np.cumsum(counts)))
            for name, chosen, counts in (
                ("support", supporting, supports),
                ("query", ~supporting, sizes - supports),
            )
        }
        # Nobody gets an example that was not theirs in train, so there is nothing new to check.
        return replace(self, clients=self.clients._replace(splits={**splits, **more}), trust=True)

    def get_adapt_split(self) -> str:
        """What clients have for personalizing: examples of "train" or "test", or of neither: "adapt"."""
        splits = self.clients.splits
        return next(
            (name for name in ("train", "test") if _is_subset(splits["adapt"], splits[name])),
            "adapt",
        )

    def get_disjoint_splits(self) -> tuple[str, ...]:
        """The splits that together hold every example once."""
        return tuple(dict.fromkeys(("train", "test", self.get_adapt_split())))

    def describe(self) -> Summary:
        """The dataset in figures."""
        sizes = np.sum(
            [self.clients.splits[name].sizes() for name in self.get_disjoint_splits()], axis=0
        )
        return Summary(
            name=self.name,
            groups={group: len(self.groups[group]) for group in validation.GROUPS},
            examples=int(sizes.sum()),
            classes=self.classes,
            smallest=int(sizes.min()),
            largest=int(sizes.max()),
            mean=float(sizes.mean()),
            server=0 if self.server is None else len(self.server.x),
            overlap=self.overlap,
        )


def _is_subset(one: Split, other: Split) -> bool:
    return one is other or (len(one.index) > 0 and bool(np.isin(one.index, other.index).all()))


def _make_pooled_name(client_names: NDArray[np.str_]) -> str:
    """ "pooled", or the like if somebody is called that already."""
    taken, name = set(client_names.tolist()), "pooled"
    while name in taken:
        name += "'"
    return name


def _append_client(split: Split, index: NDArray[np.int64]) -> Split:
    """A split with one more holder."""
    return Split(
        np.append(split.index, index), np.append(split.offsets, len(split.index) + len(index))
    )


def validate_dataset(dataset: FederatedDataset) -> None:
    """Refuses, with one sentence, a dataset that breaks a promise; reads the columns block by block."""
    name, clients, server, classes = dataset.name, dataset.clients, dataset.server, dataset.classes
    validation.validate_columns(f"{name}: the clients'", clients, {"train", "test"})
    validation.validate_groups(name, dataset.client_names, dataset.groups, clients.count)
    validation.validate_dtypes(name, clients, classes, dataset.scale, dataset.tokens)
    owner_names = [f"client {client_name!r}" for client_name in dataset.client_names.tolist()]
    owners = validation.find_owners(name, clients, owner_names)
    validation.validate_values(name, clients, classes, owners, owner_names)
    if server is not None:
        validation.validate_columns(f"{name}: the server's", server, {"train"})
        validation.validate_server(name, clients, server)
        validation.validate_values(
            name,
            server,
            classes,
            validation.find_owners(name, server, ["the server"]),
            ["the server"],
        )
        if not dataset.overlap:
            validation.validate_disjoint(name, clients, server, owners, owner_names)
