"""A source of server data that is added to the list needs nothing else: options, help and draws."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from divided import data_folder, images_of, saved, served, writers
from fedtailor.data import add, load
from fedtailor.data.examples import Array
from fedtailor.data.partition import Owners, options
from fedtailor.data.server_data import NO_SOURCE, SERVER_SOURCES, Examples, ServerSource
from fedtailor.data.sources import open_dataset
from fedtailor.data.store import StoredDataset
from fedtailor.errors import InputError

NAME = "first"
RULED = {"partition": "iid", "clients": 30}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Path]:
    """A folder with small data sets, where data is looked for."""
    with data_folder() as path:
        add("mnist", saved(path / "mnist.npz", images_of("mnist", 1000, 200)))
        add("femnist", saved(path / "femnist.npz", writers()))
        yield path


def draw_first_rows(
    name: str, y: Array, amount: float, rng: np.random.Generator, *, server_step: int = 1
) -> NDArray[np.int64]:
    """Return the first rows.

    Args:
        name: Data set.
        y: Labels.
        amount: Number of rows.
        rng: Not used.
        server_step: Distance between
            two rows.
    """
    return server_step * np.arange(int(amount))


def draw_first_clients(
    name: str, is_test_only: NDArray[np.bool_], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    return np.arange(count)


def draw_first_of_client(
    name: str, owners: Owners, amount: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    return np.flatnonzero(owners == owners.max())[: int(amount)]


def make_stripes(data: StoredDataset, amount: float, rng: np.random.Generator) -> Examples:
    x = np.zeros((int(amount), *data.columns["x"].shape[1:]), np.uint8)
    x[:, :, ::2] = np.arange(1, len(x) + 1)[:, None, None, None]
    return x, np.zeros(len(x), data.columns["y"].dtype)


def listed(source: ServerSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a source into the list, as if it had been there when the package was imported."""
    monkeypatch.setitem(SERVER_SOURCES, NAME, source)
    monkeypatch.setitem(options.SERVER_OPTIONS, NAME, source.get_options())
    monkeypatch.setattr(options, "ALL_OPTIONS", options.ALL_OPTIONS | source.get_options().keys())


def test_rows_are_drawn_with_the_sources_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ServerSource("the first rows", draw_rows=draw_first_rows)
    listed(source, monkeypatch)
    assert source.get_options() == {"server_step": 1}
    assert source.get_option_help() == {"server_step": "Distance between two rows."}
    x = open_dataset("mnist").columns["x"]
    for step in (1, 3):
        given = {"server": 20, "server_from": NAME, "server_step": step}
        made = load("mnist", **RULED, **given)
        np.testing.assert_array_equal(served(made)[0], x[: 20 * step : step])
        assert made.describe().examples == 1180
    with pytest.raises(InputError, match="server_from=examples has no use for server_step=3"):
        load("mnist", **RULED, server_step=3)


@pytest.mark.parametrize("name", ["mnist", "femnist"])
def test_whole_clients_are_those_that_the_source_draws(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(ServerSource("the first clients", draw_clients=draw_first_clients), monkeypatch)
    general = RULED if name == "mnist" else {"least": 1}
    alone = load(name, **general, server=0)
    made = load(name, **general, server=2, server_from=NAME)
    assert made.client_names.tolist() == alone.client_names[2:].tolist()
    splits = alone.clients.splits
    rows = np.concatenate(
        [splits[part].get_rows(client) for client in (0, 1) for part in ("train", "test")]
    )
    np.testing.assert_array_equal(served(made)[0], alone.clients.x[np.sort(rows)])


def test_rows_of_clients_are_those_that_the_source_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    listed(ServerSource("one client's", draw_client_rows=draw_first_of_client), monkeypatch)
    made = load("femnist", server=4, server_from=NAME, least=1)
    data = open_dataset("femnist")
    first = int(data.offsets[-2])
    np.testing.assert_array_equal(served(made)[0], data.columns["x"][first : first + 4])
    assert made.clients.count == data.num_clients


def test_examples_from_elsewhere_are_made_again_if_what_they_are_made_of_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def make(data: StoredDataset, amount: float, rng: np.random.Generator) -> Examples:
        calls.append("made")
        return make_stripes(data, amount, rng)

    def hash_content(content: str) -> str:
        return content

    for content in ("one", "one", "other"):
        hashed = partial(hash_content, content)
        listed(ServerSource("stripes", make_examples=make, hash_content=hashed), monkeypatch)
        x, _ = served(load("mnist", **RULED, server=5, server_from=NAME))
        assert [image.max() for image in x] == [1, 2, 3, 4, 5]
    assert calls == ["made", "made"]


def test_every_source_draws_in_one_way_and_says_what_its_options_mean() -> None:
    for source in SERVER_SOURCES.values():
        kinds = (
            source.draw_rows,
            source.draw_clients,
            source.draw_client_rows,
            source.make_examples,
        )
        assert sum(kind is not None for kind in kinds) == 1
        assert source.description
        assert source.get_option_help().keys() == source.get_options().keys()
        assert all(option.startswith("server_") for option in source.get_options())
    assert NO_SOURCE.get_options() == {}
