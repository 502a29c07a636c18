"""Clients one after another: batches loaded several steps at a time, and steps that are traced."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedtailor import models
from fedtailor.compiler.trace import trace_step
from fedtailor.core import trees
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification
from fedtailor.core.types import Phase
from fedtailor.data.builtin.arrays import from_arrays
from fedtailor.engines import chunking, client_loop, factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.chunking import compute_loop_chunk_size
from fedtailor.engines.context import EngineContext
from fedtailor.training.context import prepare_context
from fedtailor.training.loop import run_rounds

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"momentum": 0.5},
    "fedprox": {"lam": 0.1},
    "scaffold": {},
    "per-fedavg": {"variant": "hf"},
    "per-fedavg-exact": {"variant": "exact"},
    "pfedme": {},
    "fedrep": {},
    "fedsim": {},
}


class SmallCNN(nn.Module):
    """A convolution, pooling and dropout before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(27, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        hidden = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        logits: Tensor = self.head(self.drop(hidden.flatten(1)))
        return logits


def image_context(method: str, task: Task | None = None, **hparams: Any) -> EngineContext:
    """A method on random images of six clients with 5 to 15 examples each."""
    draws = np.random.default_rng(0)
    sizes = np.array([5, 7, 9, 11, 13, 15])
    count = int(sizes.sum())
    images = draws.integers(0, 256, (count + 12, 1, 8, 8), dtype=np.uint8)
    data = from_arrays(
        images[12:],
        draws.integers(0, 4, count),
        np.arange(6).repeat(sizes),
        scale=1 / 255,
        test_share=0.2,
        validation_clients=0.0,
        unseen_clients=0.0,
        server=(images[:12], draws.integers(0, 4, 12)),
    )
    if task is None:
        with seed_initialization(1):
            task = classification(SmallCNN())
    return prepare_context(
        method, task, data, rounds=4, cohort=4, seed=3, **{"batch": 4, "epochs": 2} | hparams
    )


def train(method: str, **hparams: Any) -> list[Tensor]:
    """The global model after some rounds, and all client states."""
    context = image_context(method, **hparams)
    engine = factory.make_engine(context)
    state = context.init_server_state()
    rounds = run_rounds(context, engine, state, 4)
    for _ in range(4):
        state = next(rounds).state
    states = context.client_states.gather(np.arange(6), context.method.init_client_state(state))
    return [*trees.leaves(state.params), *trees.leaves(states)]


@pytest.mark.parametrize("name", METHODS)
def test_traced_steps_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[object] = []

    def watch(*args: Any) -> Any:
        traced.append(trace_step(*args))
        return traced[-1]

    monkeypatch.setattr(client_loop, "trace_step", watch)
    hparams = METHODS[name]
    method = name.removesuffix("-exact")
    expected = train(method, **hparams)
    assert not traced
    monkeypatch.setattr(client_loop, "TRACE_AFTER_STEPS", 5)
    found = train(method, **hparams)
    assert traced
    assert all(graph is not None for graph in traced)
    assert all(map(torch.equal, found, expected))


def test_a_graph_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def trace_wrongly(step: Any, shared_input: Any, carry: Any, batches: Any) -> Any:
        return lambda *leaves: [torch.zeros_like(leaf) for leaf in trees.leaves(carry)]

    expected = train("fedavg")
    monkeypatch.setattr(client_loop, "TRACE_AFTER_STEPS", 1)
    monkeypatch.setattr(client_loop, "trace_step", trace_wrongly)
    assert all(map(torch.equal, train("fedavg"), expected))


def test_a_step_that_cannot_be_traced_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("fedavg")
    monkeypatch.setattr(client_loop, "TRACE_AFTER_STEPS", 1)
    monkeypatch.setattr("fedtailor.compiler.trace._make_graph", fail)
    assert all(map(torch.equal, train("fedavg"), expected))


def fail(*args: object) -> None:
    """Cannot."""
    raise RuntimeError("no graph")


@pytest.mark.parametrize("loaded_bytes", [1, 1 << 12, 1 << 20])
def test_batches_are_the_same_however_many_are_loaded_at_once(
    loaded_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = image_context("per-fedavg")
    device_data = context.make_client_dataset()
    loads: list[int] = []
    load_batch = device_data.load_batch

    def watch(indices: Any) -> Any:
        loads.append(len(indices.rows))
        return load_batch(indices)

    monkeypatch.setattr(device_data, "load_batch", watch)
    monkeypatch.setattr(client_loop, "_LOADED_BYTES", loaded_bytes)
    key = torch.tensor(5)
    phase: Phase = context.method.client.phases[0]
    work = ClientWork(device_data, 3, key)
    found = list(client_loop._iter_batches(phase.plan, work))
    num_steps = int(context.count_steps(np.array([3]))[0])
    assert len(found) == num_steps
    batch_bytes = 4 * 64 * 4  # examples, pixels, bytes of a float32
    steps_per_load = max(1, loaded_bytes // batch_bytes)
    assert len(loads) == 3 * -(-num_steps // steps_per_load)
    examples = context.data.clients
    for step, indices in enumerate(client_loop_reference(phase, examples, key, num_steps)):
        for batch, spec in zip(found[step], indices, strict=True):
            expected = load_batch(spec.select(0))
            assert all(map(torch.equal, batch, expected))


def client_loop_reference(phase: Phase, examples: Any, key: Tensor, num_steps: int) -> Any:
    """The rows of client 3, step by step."""
    from fedtailor.data.batching import iter_batch_indices

    return iter_batch_indices(phase.plan, examples, np.array([3]), key[None], num_steps)


def test_clients_with_large_models_wait_in_small_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute_loop_chunk_size(1000) == chunking.MAX_CHUNK
    assert compute_loop_chunk_size(5_000_000) == 8
    assert compute_loop_chunk_size(10**12) == 1
    monkeypatch.setattr(chunking, "MAX_LOOP_BYTES", 1000)
    engine = factory.make_engine(image_context("fedavg"))
    assert factory.get_engine_options(engine).chunk == 1
    # Clients of a dense model step together, so large stacks are good for them.
    with seed_initialization(0):
        dense = classification(models.mlp(64, (8,), 4))
    engine = factory.make_engine(image_context("fedavg", dense))
    assert factory.get_engine_options(engine).chunk == chunking.MAX_CHUNK
