"""What rounds cost: operations against a count of what the reference engine really does, gradients
by hand.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedtailor import methods
from fedtailor.cli.catalog import describe_method
from fedtailor.core import trees
from fedtailor.core.types import CohortUpdate, Routine
from fedtailor.data import FederatedDataset
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import run_single_client
from fedtailor.errors import RoutineError
from fedtailor.evaluation.costs import CostMeter, make_cost_meter
from fedtailor.prng.streams import Stream
from fedtailor.training import from_config
from fedtailor.training.context import prepare_context
from fedtailor.training.overrides import read_run_config
from scenarios import toy_data

SMALL = ["data.clients=12", "cohort=3", "hidden=8", "batch=7", "finetune_epochs=2"]
SHORT = {"local": ["local_epochs=2"], "pfedme": ["inner_steps=3"]}
NAMES = (*methods.NAMES, "fsl+fedsim", "per+ditto")


@cache
def digits() -> FederatedDataset:
    return from_config.load_dataset(read_run_config(SMALL))


def setting(*words: str) -> EngineContext:
    return from_config.build_context(read_run_config([*SMALL, *words]), digits())


def counted(
    made: EngineContext, work: Routine, given: Any, own: Any, holders: str, who: int = 0
) -> tuple[Any, int]:
    """What a work ends with, run step by step for one holder, and the operations that torch counts
    meanwhile.
    """
    site = made.make_client_dataset() if holders == "clients" else made.make_server_dataset()
    with FlopCounterMode(display=False) as counter:
        result = run_single_client(
            work, given, own, ClientWork(site, who, made.derive_keys(Stream.CLIENT, 0, [who])[0])
        )
    return result, counter.get_total_flops()


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_work_done_step_by_step(name: str) -> None:
    made = setting(f"method={name}", *SHORT.get(name, []))
    method, state, meter = made.method, made.init_server_state(), CostMeter(made)
    client = int(made.data.groups["train"][-1])
    broadcast, memory = method.broadcast(state), method.init_client_state(state)
    result, trained = counted(made, method.client, broadcast, memory, "clients", client)
    assert meter.compute_client_cost(np.array([client])).flops.tolist() == [trained]
    assert meter.bytes_per_client == trees.nbytes(broadcast) + trees.nbytes(result.update) + (
        trees.nbytes(result.state) if method.num_offered_states else 0
    )
    change, corrected = result.update, 0
    if method.correct_update is not None:
        change, corrected = counted(made, method.correct_update, state, change, "server")
    _, served = counted(
        made,
        method.server,
        state,
        CohortUpdate(change, made.make_scalar(3), made.make_scalar(9)),
        "server",
    )
    assert meter.compute_server_cost(3).flops.tolist() == [served + 3 * corrected]
    newcomer = int(made.data.groups["unseen"][0])
    _, tailored = counted(made, method.personalize, broadcast, memory, "clients", newcomer)
    assert meter.compute_personalize_cost(np.array([newcomer])).flops.tolist() == [tailored]
    assert (trained > 0) == bool(method.client.phases)
    assert tailored > 0


def test_nobody_works_in_the_rounds_of_a_method_without_rounds() -> None:
    made = setting("method=local")
    assert set(CostMeter(made).compute_round_work(made.data.groups["train"])) == {0}


def test_operations_of_fedavg_are_those_of_the_textbook() -> None:
    """A product of [B, n] and [n, m] is 2 B n m; the first layer needs no input gradient."""
    made = setting("method=fedavg", "epochs=3")
    cohort, sizes = (
        made.data.groups["train"],
        made.data.clients.splits["train"].compute_sizes()[made.data.groups["train"]],
    )
    forward, backward = 64 * 8 + 8 * 10, 64 * 8 + 2 * 8 * 10
    steps = 3 * -(-sizes // 7)
    cost = CostMeter(made).compute_round_work(cohort)
    assert cost.flops == (steps * np.minimum(sizes, 7) * 2 * (forward + backward)).sum()
    assert cost.gradients == steps.sum() == made.count_steps(cohort).sum()
    assert cost.server_flops == cost.server_gradients == 0


TIMES = [("fedprox", 1), ("scaffold", 1), ("apfl", 2), ("pfedme", 5), ("per-fedavg variant=fo", 2)]


@pytest.mark.parametrize(("words", "times"), TIMES, ids=[row[0] for row in TIMES])
def test_gradients_are_counted_in_those_of_fedavg(words: str, times: int) -> None:
    made, plain = setting(*f"method={words}".split()), setting("method=fedavg")
    cohort = plain.data.groups["train"]
    expected = times * CostMeter(plain).compute_round_work(cohort).gradients
    assert CostMeter(made).compute_round_work(cohort).gradients == pytest.approx(expected)


def test_gradients_are_those_that_the_list_of_methods_shows() -> None:
    """On the list's own model, where a step's batches are equally large."""
    made = setting("method=per-fedavg", "hidden=16")
    made_steps = made.count_steps(made.data.groups["train"]).sum()
    listed = describe_method("per-fedavg").gradients
    found = CostMeter(made).compute_round_work(made.data.groups["train"]).gradients / made_steps
    assert found == pytest.approx(listed, abs=0.5)
    assert found > 3


def test_the_servers_gradients_are_its_own() -> None:
    made = setting("method=fedsim")
    cohort = made.data.groups["train"][:4]
    cost = CostMeter(made).compute_round_work(cohort)
    assert cost.server_gradients == 2 * len(
        cohort
    )  # of each upload: the change in gradient that a step makes
    assert cost.gradients == made.count_steps(cohort).sum()


class _Fragile(nn.Module):
    """A model that takes no more examples at a time than are looked at before a run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Any:
        if len(x) > 2:
            raise KeyError("too\nmany")
        return self.layer(x.float())


def test_what_a_model_raises_while_operations_are_counted_is_an_error_of_one_line() -> None:
    made = prepare_context("fedavg", _Fragile(), toy_data(), rounds=1, cohort=2)
    with pytest.raises(RoutineError) as caught:
        make_cost_meter(made)
    assert str(caught.value) == (
        "fedavg: counting operations failed in round 0 for a batch of examples: "
        r"KeyError: 'too\nmany'"
    )
