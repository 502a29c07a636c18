"""Engines on the columns of a store: the same numbers as on arrays, and never on damaged rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.core import trees
from fedtailor.data import FederatedDataset
from fedtailor.data.reader_blocks import Block
from fedtailor.data.store import DatasetAttributes, Provenance, build, columns, open_store
from fedtailor.engines.base import Engine
from fedtailor.engines.context import EngineContext
from fedtailor.engines.sequential import SequentialEngine
from fedtailor.engines.vectorized import VectorizedEngine
from fedtailor.errors import InputError
from scenarios import toy_data, toy_setting

ENGINES: dict[str, Callable[[EngineContext], Engine]] = {
    "sequential": SequentialEngine,
    "vectorized": VectorizedEngine,
    "programs": lambda context: VectorizedEngine(context, use_programs=True),
}

COHORT = np.array([0, 2])


def stored_data(path: Path | None = None) -> FederatedDataset:
    """The toy data with the clients' columns from a store; its file of x is flipped if given."""
    data = toy_data()
    x, y, _ = data.clients
    if path is None:
        build("toy", [Block("", {"x": x, "y": y})], DatasetAttributes(), Provenance("1"))
    store = open_store("toy")
    clients = data.clients._replace(x=store.columns["x"], y=store.columns["y"])
    return replace(data, clients=clients, should_check=False)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 1)  # every row has a checksum
    return tmp_path / "stores" / "toy" / "column-x.bin"


def train(name: str, data: FederatedDataset) -> list[torch.Tensor]:
    """The leaves of what the cohort sends in a round."""
    context = toy_setting("fedavg", data=data)
    engine = ENGINES[name](context)
    return trees.leaves(tuple(engine.train(context.init_server_state(), COHORT, 0)[0]))


@pytest.mark.parametrize("name", ENGINES)
def test_training_on_a_store_is_training_on_arrays(name: str) -> None:
    stored = train(name, stored_data())
    plain = train(name, toy_data())
    assert all(torch.equal(one, other) for one, other in zip(stored, plain, strict=True))


@pytest.mark.parametrize("name", ENGINES)
def test_no_engine_trains_on_a_damaged_row(name: str, place: Path) -> None:
    """The row of a client of the cohort is refused; that of another client is never read."""
    split = stored_data().clients.splits["train"]
    expected = train(name, stored_data())
    for client in (1, 2):
        row = int(split.get_rows(client)[-1])
        content = bytearray(place.read_bytes())
        content[row * 40] ^= 1
        place.write_bytes(content)
        if client == 2:
            with pytest.raises(InputError, match=rf"rows {row} to {row} of column x"):
                train(name, stored_data(place))
        else:
            found = train(name, stored_data(place))
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        content[row * 40] ^= 1
        place.write_bytes(content)
