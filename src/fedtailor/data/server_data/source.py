"""`ServerSource`: a source of the server's examples, one value of the option `server_from`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array
from fedtailor.data.keyword_options import (
    bind_keywords,
    get_keyword_defaults,
    parse_argument_help,
)
from fedtailor.data.partition import Owners
from fedtailor.data.store import StoredDataset

Rows = NDArray[np.int64]

Examples = tuple[Array, Array]
"""Columns x and y of the server's examples."""

RowDraw = Callable[[str, Array, float, np.random.Generator], Rows]
"""(name, y, amount, rng) -> positions in `y` of the server's examples.

`name` is the data set that errors name, and `amount` the option `server`, here and below.
"""

ClientDraw = Callable[[str, NDArray[np.bool_], int, np.random.Generator], Rows]
"""(name, is_test_only, count, rng) -> clients, in the order in which they are drawn.

`is_test_only` is whether each client has test examples alone and so cannot train, [clients].
"""

ClientRowDraw = Callable[[str, Owners, float, np.random.Generator], Rows]
"""(name, owners, amount, rng) -> positions in `owners` of the server's examples."""

ExampleMaker = Callable[[StoredDataset, float, np.random.Generator], Examples]
"""(clients' data set, amount, rng) -> examples of the same classes, shapes and types."""


class ServerSource(NamedTuple):
    """A source of the server's examples: one function, whose kind says what it draws from.

    The keyword-only arguments of the function are the source's options; their names begin with
    "server_". It is called with its options bound, see `bind`.
    """

    description: str  # what the server has, for the help of `server_from`
    draw_rows: RowDraw | None = None  # from all rows, before the rest is partitioned
    draw_clients: ClientDraw | None = None  # from the clients; the server has all of their rows
    draw_client_rows: ClientRowDraw | None = None  # from the clients' rows
    make_examples: ExampleMaker | None = None  # from elsewhere
    # Hash of what `make_examples` reads besides the clients' data set, if it reads anything
    hash_content: Callable[[], str] | None = None

    def get_options(self) -> dict[str, Any]:
        """Return the source's options with their defaults."""
        options: dict[str, Any] = {}
        for function in self._get_functions().values():
            options |= get_keyword_defaults(function)
        return options

    def get_option_help(self) -> dict[str, str]:
        """Return what each of the source's options means."""
        meanings: dict[str, str] = {}
        for function in self._get_functions().values():
            meanings |= parse_argument_help(function)
        return {option: meanings[option] for option in self.get_options()}

    def bind(self, options: Mapping[str, Any]) -> "ServerSource":
        """Return the source with the values of its options bound to its functions."""
        bound: dict[str, Any] = {}
        for name, function in self._get_functions().items():
            bound[name] = bind_keywords(function, options)
        return self._replace(**bound)

    def _get_functions(self) -> dict[str, Callable[..., Any]]:
        return {name: value for name, value in self._asdict().items() if callable(value)}


NO_SOURCE = ServerSource("")
"""The source of a server without examples."""
