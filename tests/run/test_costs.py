"""What rounds cost: operations against a count of what the reference engine really does, gradients by hand."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from fedtailor import methods, trees
from fedtailor.data import FederatedDataset
from fedtailor.engines.base import Setting, alone
from fedtailor.run import build
from fedtailor.run.catalogue import method_entry
from fedtailor.run.costs import Meter
from fedtailor.run.spec import read_spec
from fedtailor.types import Gathered, Work

SMALL = ["data.clients=12", "cohort=3", "hidden=8", "batch=7", "tune_epochs=2"]
SHORT = {"local": ["budget=2"], "pfedme": ["inner_steps=3"]}
NAMES = (*methods.NAMES, "fsl+fedsim", "per+ditto")


@cache
def digits() -> FederatedDataset:
    return build.dataset(read_spec(SMALL))


def setting(*words: str) -> Setting:
    return build.setting(read_spec([*SMALL, *words]), digits())


def counted(made: Setting, work: Work, given: Any, own: Any, holders: str, who: int = 0) -> tuple[Any, int]:
    """What a work ends with, run step by step for one holder, and the operations that torch counts meanwhile."""
    site = made.clients() if holders == "clients" else made.server()
    with FlopCounterMode(display=False) as counter:
        result = alone(work, given, own, site, who, made.keys("client", 0, [who])[0])
    return result, counter.get_total_flops()


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_work_done_step_by_step(name: str) -> None:
    made = setting(f"method={name}", *SHORT.get(name, []))
    method, state, meter = made.method, made.first_state(), Meter(made)
    client = int(made.data.groups["train"][-1])
    broadcast, memory = method.broadcast(state), method.new_memory(state)
    result, trained = counted(made, method.client, broadcast, memory, "clients", client)
    assert meter.of_clients(np.array([client])).flops.tolist() == [trained]
    assert meter.sent == trees.nbytes(broadcast) + trees.nbytes(result.change) + (
        trees.nbytes(result.memory) if method.tries else 0
    )
    change, corrected = result.change, 0
    if method.correct is not None:
        change, corrected = counted(made, method.correct, state, change, "server")
    _, served = counted(made, method.server, state, Gathered(change, made.count(3), made.count(9)), "server")
    assert meter.of_server(3).flops.tolist() == [served + 3 * corrected]
    newcomer = int(made.data.groups["new"][0])
    _, tailored = counted(made, method.personalise, broadcast, memory, "clients", newcomer)
    assert meter.of_personalising(np.array([newcomer])).flops.tolist() == [tailored]
    assert (trained > 0) == bool(method.client.phases)
    assert tailored > 0


def test_nobody_works_in_the_rounds_of_a_method_without_rounds() -> None:
    made = setting("method=local")
    assert set(Meter(made).of_round(made.data.groups["train"]).values()) == {0}


def test_operations_of_fedavg_are_those_of_the_textbook() -> None:
    """A product of [B, n] and [n, m] is 2 B n m; the first layer needs no gradient of its inputs."""
    made = setting("method=fedavg", "epochs=3")
    cohort, sizes = made.data.groups["train"], made.data.clients.splits["train"].sizes()[made.data.groups["train"]]
    forward, backward = 64 * 8 + 8 * 10, 64 * 8 + 2 * 8 * 10
    steps = 3 * -(-sizes // 7)
    cost = Meter(made).of_round(cohort)
    assert cost["flops"] == (steps * np.minimum(sizes, 7) * 2 * (forward + backward)).sum()
    assert cost["gradients"] == steps.sum() == made.steps(cohort).sum()
    assert cost["server_flops"] == cost["server_gradients"] == 0


TIMES = [("fedprox", 1), ("scaffold", 1), ("apfl", 2), ("pfedme", 5), ("per-fedavg variant=fo", 2)]


@pytest.mark.parametrize(("words", "times"), TIMES, ids=[row[0] for row in TIMES])
def test_gradients_are_counted_in_those_of_fedavg(words: str, times: int) -> None:
    made, plain = setting(*f"method={words}".split()), setting("method=fedavg")
    cohort = plain.data.groups["train"]
    expected = times * Meter(plain).of_round(cohort)["gradients"]
    assert Meter(made).of_round(cohort)["gradients"] == pytest.approx(expected)


def test_gradients_are_those_that_the_list_of_methods_shows() -> None:
    """On the list's own model, where a step's batches are equally large."""
    made = setting("method=per-fedavg", "hidden=16")
    made_steps = made.steps(made.data.groups["train"]).sum()
    listed = method_entry("per-fedavg")["gradients"]
    found = Meter(made).of_round(made.data.groups["train"])["gradients"] / made_steps
    assert found == pytest.approx(listed, abs=0.5)
    assert found > 3


def test_the_servers_gradients_are_its_own() -> None:
    made = setting("method=fedsim")
    cohort = made.data.groups["train"][:4]
    cost = Meter(made).of_round(cohort)
    assert cost["server_gradients"] == 2 * len(cohort)  # of each upload: the change in gradient that a step makes
    assert cost["gradients"] == made.steps(cohort).sum()
