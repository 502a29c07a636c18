"""Steps that are recorded once and replayed: a tape stands for the CUDA graph, and the reference is
the oracle.
"""

from typing import Any

import numpy as np
import pytest
import torch
from code_under_test import INTERPRETED, factory, pretend_gpu, put_everywhere
from tape import Tape, put_in_place_of_graphs, recorded

from agreement import distance
from fedtailor.engines.chunking import MAX_CHUNK
from fedtailor.engines.vectorized import VectorizedEngine
from scenarios import toy_data, toy_setting

pytest_plugins = ["gpu_fixtures"]
if not INTERPRETED:
    pytest.skip("needs no compiled kernels", allow_module_level=True)

SIZES = (24, 17, 9, 8, 3, 2, 1, 1)
METHODS: list[tuple[str, int, dict[str, Any]]] = [
    ("fedavg", 3, {"epochs": 2, "optimizer": "adam"}),
    ("fsl", 3, {"learn_epochs": 2}),
    ("per-fedavg", 3, {"variant": "exact"}),
    ("fedavg", MAX_CHUNK, {"epochs": 2}),
]


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    return put_in_place_of_graphs(monkeypatch)


def three_rounds(engine: Any, setting: Any) -> tuple[Any, ...]:
    """The state after three rounds with ever fewer clients, and everybody's scores."""
    state, people = setting.init_server_state(), setting.data.groups["train"]
    for number in range(3):
        state = engine.update_server(
            state, engine.train(state, people[number:], number).cohort_update, number
        )
        state = state._replace(round=state.round + 1)
    return tuple(state), tuple(engine.score(state, np.arange(setting.data.clients.count)))


@pytest.mark.parametrize(("name", "chunk", "hyper"), METHODS, ids=str)
def test_replayed_steps_do_what_the_reference_does(
    name: str,
    chunk: int,
    hyper: dict[str, Any],
    tapes: list[Tape],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = toy_setting(name, data=toy_data(sizes=SIZES), **hyper)
    expected = three_rounds(factory.make_engine(plain, "sequential"), plain)
    pretend_gpu(monkeypatch)
    put_everywhere(monkeypatch, "_KEEPALIVE_GRAPHS", {})
    setting = toy_setting(name, data=toy_data(sizes=SIZES), **hyper)
    found = three_rounds(VectorizedEngine(setting, chunk, use_programs=True), setting)
    assert distance(found, expected) < 1e-10
    first, *others = tapes
    assert others
    assert {tape.pool() for tape in others} == {first}
    assert first.replays == 0
    assert min(tape.replays for tape in others) > 0
    assert max(tape.replays for tape in others) > 1


def test_recording_does_nothing_yet(tapes: list[Tape]) -> None:
    room, seen = torch.zeros(3), torch.ones(3)
    tape = Tape()
    with recorded(tape):
        double = 2 * seen
        room.view(3, 1)[1:].add_(double[1:, None])
    assert room.tolist() == [0.0, 0.0, 0.0]
    seen.fill_(5.0)
    for expected in ([0.0, 10.0, 10.0], [0.0, 20.0, 20.0]):
        tape.replay()
        assert room.tolist() == expected
        assert double.isnan().all()


def test_the_host_cannot_look_at_what_is_recorded(tapes: list[Tape]) -> None:
    with pytest.raises(RuntimeError, match="capturing"), recorded(Tape()):
        torch.ones(1).item()
