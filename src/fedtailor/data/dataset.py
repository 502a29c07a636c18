"""`FederatedDataset`: columns of examples, clients in groups, and the server's own examples.

Columns are arrays or memory maps, which are not copied unless a method says so. A dataset is
checked when it is constructed, in blocks of its columns; an error names the client at fault.
"""

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data import validation
from fedtailor.data.arguments import require_bool
from fedtailor.data.equality import count_equal_examples
from fedtailor.data.examples import UNASSIGNED, ClientExamples, Split, mark_rows
from fedtailor.data.row_counts import RowCounts, make_left_out
from fedtailor.errors import InputError
from fedtailor.prng.streams import DataStream


class Summary(NamedTuple):
    """Sizes of a dataset; `str` formats them as text."""

    name: str
    groups: dict[str, int]  # number of clients in each group
    examples: int  # number of examples of all clients together
    classes: int | None  # None: real-valued targets
    smallest: int  # number of examples of a client, in all splits together
    largest: int
    mean: float
    server: int  # number of examples of the server
    overlap: bool  # whether the server may have examples that clients have, too
    rows: RowCounts

    def __str__(self) -> str:
        """Return the sizes as a few lines of text."""
        group_sizes = ", ".join(f"{size} {group}" for group, size in self.groups.items())
        targets = "real-valued targets" if self.classes is None else f"{self.classes} classes"
        overlap = ", which clients may have, too (overlap)" if self.overlap else ""
        return (
            f"{self.name}: {self.examples} examples, {targets}\n"
            f"  {self.rows}\n"
            f"  clients: {group_sizes}\n"
            f"  examples per client: {self.smallest} to {self.largest}, mean {self.mean:.1f}\n"
            f"  server: {self.server} examples{overlap}"
        )


class ExampleSpec(NamedTuple):
    """Shapes of an example, and how it becomes the input of a model."""

    shape: tuple[int, ...]  # of one x
    label_shape: tuple[int, ...]  # of one y
    # These are fields of `FederatedDataset`, which describes them.
    classes: int | None
    scale: float
    tokens: bool
    padding: tuple[int, ...] = ()
    unscored_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Clients' examples, the clients in groups, and the server's own examples.

    Clients of group "train" are sampled for training, those of "participating" are evaluated as
    clients that took part, "validation" is for choosing models and hyperparameters, and "unseen"
    clients are never trained on. Only "train" and "participating" may have clients in common.
    """

    name: str
    clients: ClientExamples
    client_names: NDArray[np.str_]  # [clients] all different
    groups: dict[str, NDArray[np.int64]]  # client ids of each group
    server: ClientExamples | None
    classes: int | None  # None: the targets are real-valued
    scale: float = 1.0  # factor of integer x when it is converted to floating point
    tokens: bool = False  # x is token ids and stays integer
    padding: tuple[int, ...] = ()  # tokens of y that count neither for the loss nor the accuracy
    unscored_tokens: tuple[int, ...] = ()  # tokens of y that are learned, but not in the accuracy
    # Share of a client's train examples for meta-learning to adapt on; unused if there are splits
    # "support" and "query"
    support: float = 0.2
    # Equal for equal columns x and y of the clients; "": not known, as they would have to be read
    content_hash: str = ""
    # Whether clients may have the server's examples, too, except for test; if not, this is checked
    overlap: bool = False
    # Rows of the clients' columns that the server's examples are, by which they are told apart;
    # None: they come from elsewhere and are compared by content
    server_rows: NDArray[np.int64] | None = None
    # Numbers of rows that were left out on purpose, by reason
    left_out: Mapping[str, int] = field(default_factory=dict)
    given_up: int = 0  # examples that were drawn for the server, but that it does not have
    # What became of all rows; None: they are counted here
    row_counts: RowCounts = field(default=None, kw_only=True)  # type: ignore[assignment]
    # False for datasets derived from a checked one, some of which break a rule on purpose
    should_check: InitVar[bool] = field(default=True, kw_only=True)

    def __post_init__(self, should_check: bool) -> None:
        """Check the dataset, and count its rows if they are not counted or may have changed.

        Before, "train" is added as split "adapt" if there is none.
        """
        splits = self.clients.splits
        if "adapt" not in splits and {"train", "test"} <= set(splits):
            clients = self.clients._replace(splits={**splits, "adapt": splits["train"]})
            object.__setattr__(self, "clients", clients)
        num_equal = validate_dataset(self) if should_check else 0
        if should_check or self.row_counts is None:
            object.__setattr__(self, "row_counts", self._count_rows(num_equal))

    @property
    def example_spec(self) -> ExampleSpec:
        """Shapes of the examples, and how they become a model's input."""
        return ExampleSpec(
            shape=tuple(self.clients.x.shape[1:]),
            label_shape=tuple(self.clients.y.shape[1:]),
            classes=self.classes,
            scale=self.scale,
            tokens=self.tokens,
            padding=self.padding,
            unscored_tokens=self.unscored_tokens,
        )

    def with_pooled_client(self) -> "FederatedDataset":
        """Return the dataset with a new client that has the train examples of all train clients.

        This client, "pooled", is then the only one of group "train".
        """
        train = self.clients.splits["train"]
        is_pooled = np.isin(train.compute_owners(), self.groups["train"])
        pooled_rows = train.index[is_pooled]
        splits = {}
        for split_name, split in self.clients.splits.items():
            added_rows = pooled_rows if split_name == "train" else pooled_rows[:0]
            splits[split_name] = _append_client(split, added_rows)
        return replace(
            self,
            clients=self.clients._replace(splits=splits),
            client_names=np.append(self.client_names, _make_pooled_name(self.client_names)),
            groups=self.groups | {"train": np.array([self.clients.count])},
            should_check=False,  # the new client shares its examples on purpose
        )

    def with_shared_server_data(self) -> "FederatedDataset":
        """Return the dataset with the server's examples added to those of every train client.

        The columns are copied.
        """
        if self.server is None:
            raise InputError(
                f"{self.name}: the server must have examples to share with clients, but has none."
            )
        x, y, splits = self.clients
        train = splits["train"]
        server_rows = len(x) + self.server.splits["train"].get_rows(0)
        is_train_client = np.isin(np.arange(self.clients.count), self.groups["train"])
        rows_by_client = []
        for client, is_sharing in enumerate(is_train_client):
            rows = train.get_rows(client)
            rows_by_client.append(np.append(rows, server_rows) if is_sharing else rows)
        sizes = [len(rows) for rows in rows_by_client]
        shared_train = Split(np.concatenate(rows_by_client), np.append(0, np.cumsum(sizes)))
        return replace(
            self,
            clients=ClientExamples(
                x=np.concatenate([x, self.server.x]),
                y=np.concatenate([y, self.server.y]),
                splits={**splits, "train": shared_train},
            ),
            content_hash="",
            overlap=True,
            should_check=False,  # clients share the server's examples on purpose
        )

    def with_support(self) -> "FederatedDataset":
        """Return the dataset with every client's train examples split into "support" and "query".

        A dataset that has these splits is returned as it is. The split is random but the same at
        every call. A client with two or more train examples has some in each part.
        """
        splits = self.clients.splits
        if {"support", "query"} <= set(splits):
            return self
        train = splits["train"]
        sizes = train.compute_sizes()
        if sizes.max() < 2:
            raise InputError(
                f"{self.name}: no client has two train examples, one to adapt on and one to learn "
                "from."
            )
        support_sizes = np.rint(self.support * sizes).astype(np.int64)
        support_sizes = np.clip(support_sizes, 1, np.maximum(sizes - 1, 1))
        seed = np.random.SeedSequence(0, spawn_key=(DataStream.SUPPORT,))
        rng = np.random.Generator(np.random.Philox(seed))
        owners = train.compute_owners()
        order = np.lexsort((rng.random(len(owners)), owners))  # random within each client
        rank = np.arange(len(owners)) - np.repeat(train.offsets[:-1], sizes)
        is_support = rank < np.repeat(support_sizes, sizes)
        support = Split(train.index[order[is_support]], np.append(0, np.cumsum(support_sizes)))
        query_sizes = sizes - support_sizes
        query = Split(train.index[order[~is_support]], np.append(0, np.cumsum(query_sizes)))
        return replace(
            self,
            clients=self.clients._replace(splits={**splits, "support": support, "query": query}),
            should_check=False,  # every client has the same examples as before
        )

    def get_adapt_split(self) -> str:
        """Return the split that has the examples to adapt on: "train", "test", or else "adapt"."""
        splits = self.clients.splits
        for split_name in ("train", "test"):
            if _is_subset(splits["adapt"], splits[split_name]):
                return split_name
        return "adapt"

    def get_disjoint_splits(self) -> tuple[str, ...]:
        """Return the names of splits that together have every example of the clients once."""
        return tuple(dict.fromkeys(("train", "test", self.get_adapt_split())))

    def describe(self) -> Summary:
        """Return the sizes of the dataset."""
        split_sizes = [
            self.clients.splits[name].compute_sizes() for name in self.get_disjoint_splits()
        ]
        sizes = np.sum(split_sizes, axis=0)
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
            rows=self.row_counts,
        )

    def _count_rows(self, num_equal: int) -> RowCounts:
        """Return what became of all rows; `num_equal` of the server's examples are clients'."""
        splits = self.clients.splits
        num_rows = len(self.clients.x)
        num_used = sum(len(splits[name].index) for name in self.get_disjoint_splits())
        num_server = 0 if self.server is None else len(self.server.x)
        num_taken = 0
        num_shared = 0
        if self.server is not None and self.server_rows is not None:
            num_taken = num_server
            if self.overlap:
                num_shared = int(mark_rows(splits.values(), num_rows)[self.server_rows].sum())
        return RowCounts(
            read=num_rows,
            clients=num_used,
            server=num_taken,
            shared=num_shared,
            left_out=make_left_out(self.left_out, num_rows - num_used - num_taken + num_shared),
            elsewhere=num_server - num_taken,
            given_up=self.given_up,
            equal=num_equal,
        )


def _is_subset(part: Split, split: Split) -> bool:
    """Return whether `part` is `split` itself, or has rows, all of which are rows of `split`."""
    if part is split:
        return True
    return len(part.index) > 0 and bool(np.isin(part.index, split.index).all())


def _make_pooled_name(client_names: NDArray[np.str_]) -> str:
    """Return "pooled", with primes appended while there is a client of that name."""
    names = set(client_names.tolist())
    pooled_name = "pooled"
    while pooled_name in names:
        pooled_name += "'"
    return pooled_name


def _append_client(split: Split, rows: NDArray[np.int64]) -> Split:
    """Return the split with one more client, which has these rows."""
    index = np.append(split.index, rows)
    return Split(index, np.append(split.offsets, len(index)))


def validate_dataset(dataset: FederatedDataset) -> int:
    """Raise `InputError` if a dataset is inconsistent; the columns are read in blocks.

    Return how many of the server's examples, if they are from elsewhere, equal a client's.
    """
    name = dataset.name
    clients = dataset.clients
    server = dataset.server
    classes = dataset.classes
    require_bool(name, "overlap", dataset.overlap)
    validation.validate_columns(f"{name}: the clients'", clients, {"train", "test"})
    validation.validate_groups(name, dataset.client_names, dataset.groups, clients.count)
    validation.validate_dtypes(name, clients, classes, dataset.scale, dataset.tokens)
    owner_names = [f"client {client_name!r}" for client_name in dataset.client_names.tolist()]
    owners = validation.find_owners(name, clients, owner_names)
    validation.validate_values(name, clients, classes, owners, owner_names)
    if server is None:
        return 0
    validation.validate_columns(f"{name}: the server's", server, {"train"})
    validation.validate_server(name, clients, server)
    server_owners = validation.find_owners(name, server, ["the server"])
    validation.validate_values(name, server, classes, server_owners, ["the server"])
    server_rows = dataset.server_rows
    if server_rows is None:
        return count_equal_examples(name, clients, server, owners, owner_names, dataset.overlap)
    if dataset.overlap:
        test = clients.splits["test"]
        owners = np.full(len(clients.x), UNASSIGNED)
        owners[test.index] = test.compute_owners()
    validation.validate_server_rows(name, server_rows, len(server.x), owners, owner_names)
    return 0
