"""Who holds which examples: flat columns, an index per split, groups of people, and the promises that bind them.

Columns are arrays or memory maps and are never copied; everything that reads them whole does so block by block. The
promises are checked when a dataset is made, each broken one with a sentence that names the client.
"""

from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import checks
from fedtailor.data.holders import Array, Holders, Split, sole_holder

__all__ = ["Array", "FederatedDataset", "Holders", "Split", "Summary", "Units", "check", "sole_holder"]


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
        people = ", ".join(f"{size} {group}" for group, size in self.groups.items())
        targets = "real-valued targets" if self.classes is None else f"{self.classes} classes"
        return (
            f"{self.name}: {self.examples} examples, {targets}\n"
            f"  clients: {people}\n"
            f"  examples per client: {self.smallest} to {self.largest}, mean {self.mean:.1f}\n"
            f"  server: {self.server} examples" + (f", overlapping clients' ({self.overlap})" if self.overlap else "")
        )


class Units(NamedTuple):
    """What an example looks like, and how a model takes it."""

    shape: tuple[int, ...]  # of one x
    label_shape: tuple[int, ...]  # of one y
    classes: int | None
    scale: float
    tokens: bool


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Clients' examples, the clients grouped by person, and the server's own examples.

    The groups: "train" may be sampled, "local" are scored as those who took part, "validation" serve for choosing,
    "new" are people never trained on.
    """

    name: str
    clients: Holders
    ids: NDArray[np.str_]  # the clients' own names
    groups: dict[str, NDArray[np.int64]]  # the clients of each, by number
    server: Holders | None
    classes: int | None  # None: the targets are real-valued
    scale: float = 1.0  # x is multiplied by it once it is floating; for integers that are amounts
    tokens: bool = False  # x stays integer
    overlap: str = ""  # why server data may overlap clients'; "": it does not, and this has been checked
    trust: InitVar[bool] = field(default=False, kw_only=True)  # the promises were checked before: do not check again

    def __post_init__(self, trust: bool) -> None:
        """Refuses a dataset that breaks a promise."""
        if not trust:
            check(self)

    @property
    def units(self) -> Units:
        """What an example looks like."""
        x, y = self.clients.x, self.clients.y
        return Units(tuple(x.shape[1:]), tuple(y.shape[1:]), self.classes, self.scale, self.tokens)

    def pooled(self) -> "FederatedDataset":
        """The same with one more holder, "pooled": the train group's train examples together, now that group alone."""
        splits, train = self.clients.splits, self.clients.splits["train"]
        everything = train.index[np.isin(train.holders(), self.groups["train"])]
        added = {name: everything if name == "train" else everything[:0] for name in splits}
        more = {name: _with_holder(split, added[name]) for name, split in splits.items()}
        return replace(
            self,
            clients=self.clients._replace(splits=more),
            ids=np.append(self.ids, _new_id(self.ids)),
            groups=self.groups | {"train": np.array([self.clients.count])},
            trust=True,  # the pool holds, on purpose, what clients hold, and every example has been looked at
        )

    def describe(self) -> Summary:
        """The dataset in figures."""
        sizes = np.sum([split.sizes() for split in self.clients.splits.values()], axis=0)
        return Summary(
            name=self.name,
            groups={group: len(self.groups[group]) for group in checks.GROUPS},
            examples=int(sizes.sum()),
            classes=self.classes,
            smallest=int(sizes.min()),
            largest=int(sizes.max()),
            mean=float(sizes.mean()),
            server=0 if self.server is None else len(self.server.x),
            overlap=self.overlap,
        )


def _new_id(ids: NDArray[np.str_]) -> str:
    """ "pooled", or the like if somebody is called that already."""
    taken, name = set(ids.tolist()), "pooled"
    while name in taken:
        name += "'"
    return name


def _with_holder(split: Split, index: NDArray[np.int64]) -> Split:
    """A split with one more holder."""
    return Split(np.append(split.index, index), np.append(split.offsets, len(split.index) + len(index)))


def check(dataset: FederatedDataset) -> None:
    """Refuses, with one sentence, a dataset that breaks a promise; reads the columns block by block."""
    name, clients, server, classes = dataset.name, dataset.clients, dataset.server, dataset.classes
    checks.columns(f"{name}: the clients'", clients, {"train", "test"})
    checks.people(name, dataset.ids, dataset.groups, clients.count)
    checks.kinds(name, clients, classes, dataset.scale, dataset.tokens)
    people = [f"client {own!r}" for own in dataset.ids.tolist()]
    owners = checks.owners(name, clients, people)
    checks.values(name, clients, classes, owners, people)
    if server is not None:
        checks.columns(f"{name}: the server's", server, {"train"})
        checks.server_fits(name, clients, server)
        checks.values(name, server, classes, checks.owners(name, server, ["the server"]), ["the server"])
        if not dataset.overlap:
            checks.disjoint(name, clients, server, owners, people)
