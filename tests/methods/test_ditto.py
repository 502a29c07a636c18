from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agreement import distance
from fedtailor import methods, prng
from fedtailor.core import trees
from fedtailor.core.task import regression
from fedtailor.core.types import Batch, BatchPlan, Method, Params
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import ditto
from fedtailor.prng.streams import Stream
from fedtailor.training.loop import run_rounds
from oracles import module_of, newcomers_apart
from scenarios import toy_data, toy_setting, toy_task, train, trained

FEW = toy_data(sizes=(8, 1, 3, 5, 9, 2, 3, 2))
"""Five clients that train, one that validates and two new ones."""


def built(**hyper: Any) -> Method:
    return ditto.build(toy_task(), ditto.HParams(**{"batch": 8} | hyper))


LOCAL: list[dict[str, Any]] = [
    {"epochs": 2},
    {"steps": 3, "server_lr": 0.7},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "adam", "lr": 0.01},
]


@pytest.mark.parametrize("local", LOCAL, ids=str)
def test_the_global_model_is_fedavgs(local: dict[str, Any]) -> None:
    for personal in ({"lam": 0.0}, {"lam": 5.0, "personal_lr": 0.01, "personal_steps": 2}):
        assert (
            distance(
                trained(built(**local, **personal), 2, data=FEW).params,
                trained("fedavg", 2, data=FEW, weigh="clients", **local).params,
            )
            < 1e-12
        )


@pytest.mark.parametrize(
    "optimizer", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"}], ids=str
)
def test_without_lam_the_personal_model_is_trained_alone(optimizer: dict[str, Any]) -> None:
    """Training alone is given the same batches: as the second phase of a client, behind one of no
    steps.
    """
    own = methods.build(
        "local", toy_task(), when="sampled", batch=8, lr=0.03, epochs=2, **optimizer
    )
    (phase,) = own.client.phases
    idle = phase._replace(plan=phase.plan._replace(epochs=None, steps=0))
    own = own._replace(client=own.client._replace(phases=(idle, phase)))
    both = built(lam=0.0, lr=0.2, personal_lr=0.03, personal_epochs=2, **optimizer)
    memories = []
    for method in (own, both):
        setting = toy_setting(method, data=FEW)
        people = setting.data.groups["train"]
        _, engine = train(setting, rounds=2, cohort=len(people))
        memories.append(engine.client_states.gather(people, setting.task.params))
    assert distance(*memories) < 1e-12
    assert distance(memories[0], trees.stack([toy_task().params] * 5)) > 1e-2


def test_the_personal_model_tends_to_its_minimiser_around_the_broadcast() -> None:
    """Least squares, f(v) = |X v - y|^2 / n: (H + lam I) v = H v_f + lam w with H = 2 X'X / n."""
    draws, lam = torch.Generator().manual_seed(3), 0.8
    x, y, w, v = (
        torch.randn(*shape, generator=draws, dtype=torch.float64)
        for shape in ((9, 4), (9,), (4,), (4,))
    )
    batch = Batch(x, y, torch.ones(9, dtype=torch.float64), torch.zeros((), dtype=torch.int64))
    task = regression(nn.Linear(4, 1, bias=False)).to(dtype=torch.float64)
    method = ditto.build(task, ditto.HParams(lam=lam, lr=0.1, personal_lr=0.15))
    held = 2 * x.T @ x / 9 + lam * torch.eye(4, dtype=torch.float64)
    minimiser = torch.linalg.solve(held, 2 * x.T @ y / 9 + lam * w)
    shrink = torch.eye(4, dtype=torch.float64) - 0.15 * held
    sent, kept = {"weight": w[None]}, {"weight": v[None]}
    for count in (3, 200):
        carry = method.client.init(sent, kept)
        for phase, times in zip(method.client.phases, (5, count), strict=True):
            for _ in range(times):
                carry = phase.step(sent, carry, (batch,))
        change, found = method.client.finalize(sent, carry)
        assert float(change["weight"].abs().max()) > 0.1
        expected = minimiser + torch.linalg.matrix_power(shrink, count) @ (v - minimiser)
        assert float((found["weight"][0] - expected).abs().max()) < 1e-12
    assert float((found["weight"][0] - minimiser).abs().max()) < 1e-10


def seen(
    setting: EngineContext, purpose: Stream, number: int, client: int, phase: int, plan: BatchPlan
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a phase of a client's work, without padding."""
    key = prng.fold(setting.derive_keys(purpose, number, [client])[0], phase)
    for (batch,) in iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)):
        yield batch.x[batch.mask > 0], batch.y[batch.mask > 0]


def descended(
    start: Params, lam: float, center: Params, batches: Iterator[tuple[Tensor, Tensor]], maker: Any
) -> Params:
    """f + lam/2 |. - center|^2 with an ordinary module, autograd and torch.optim."""
    model = module_of(start)
    optimizer = maker(model.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        near = torch.stack(
            [(p - center[name]).square().sum() for name, p in model.named_parameters()]
        ).sum()
        (nn.functional.cross_entropy(model(x), y) + lam / 2 * near).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return dict(model.state_dict())


OPTIMISERS: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda lr: lambda p: torch.optim.SGD(p, lr)),
    (
        {"momentum": 0.9, "weight_decay": 0.1},
        lambda lr: lambda p: torch.optim.SGD(p, lr, momentum=0.9, weight_decay=0.1),
    ),
    ({"optimizer": "adam"}, lambda lr: lambda p: torch.optim.Adam(p, lr)),
]


@pytest.mark.parametrize(("local", "maker"), OPTIMISERS, ids=["sgd", "momentum", "adam"])
def test_rounds_are_the_papers_algorithm(local: dict[str, Any], maker: Any) -> None:
    lr, personal_lr, lam = 0.05, 0.02, 0.6
    hyper = {
        "lr": lr,
        "personal_lr": personal_lr,
        "lam": lam,
        "personal_epochs": 2,
        "server_lr": 0.8,
    }
    setting = toy_setting(built(**hyper, **local))
    engine = factory.make_engine(setting)
    loop = run_rounds(setting, engine, setting.init_server_state(), 4)
    plans = [phase.plan for phase in setting.method.client.phases]
    w = setting.task.params
    own: dict[int, Params] = {}
    for number in range(3):
        state, cohort = (ended := next(loop)).state, ended.cohort
        models = []
        for i in map(int, cohort):
            batches = [
                seen(setting, Stream.CLIENT, number, i, phase, plan)
                for phase, plan in enumerate(plans)
            ]
            models.append(descended(w, 0.0, w, batches[0], maker(lr)))
            own[i] = descended(own.get(i, w), lam, w, batches[1], maker(personal_lr))
        mean = trees.apply(lambda *each: torch.stack(each).mean(0), *models)
        w = trees.add(trees.scale(w, 0.2), mean, 0.8)
    assert 4 < len(own) < 12  # some took part twice, some came later
    assert distance(state.params, w) < 1e-12
    kept = engine.client_states.gather(np.array(list(own)), state.params)
    assert distance(kept, trees.stack(list(own.values()))) < 1e-12


def test_personalizing_goes_on_with_the_personal_model_around_the_broadcast() -> None:
    setting = toy_setting(built(lam=0.6, finetune_lr=0.03, finetune_epochs=2, finetune_batch=3))
    sent, kept, work = (
        setting.task.params,
        trees.scale(setting.task.params, 0.5),
        setting.method.personalize,
    )
    key, plan = setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0], work.phases[0].plan
    expected = descended(
        kept,
        0.6,
        sent,
        seen(setting, Stream.PERSONALIZE, 0, 8, 0, plan),
        lambda p: torch.optim.SGD(p, 0.03),
    )
    assert plan.specs[0].split == "adapt"
    assert (
        distance(
            run_single_client(work, sent, kept, ClientWork(setting.make_client_dataset(), 8, key)),
            expected,
        )
        < 1e-12
    )
    assert (
        distance(
            run_single_client(
                work._replace(phases=()),
                sent,
                kept,
                ClientWork(setting.make_client_dataset(), 8, key),
            ),
            kept,
        )
        == 0.0
    )


def test_rates_that_are_left_out_follow_the_others() -> None:
    def personalized(**hyper: Any) -> Any:
        setting = toy_setting(built(finetune_steps=2, **hyper), data=FEW)
        return tuple(
            train(setting, rounds=1, cohort=3)[1].score(setting.init_server_state(), np.arange(5))
        )

    assert (
        distance(personalized(lr=0.2), personalized(lr=0.2, personal_lr=0.2, finetune_lr=0.2))
        == 0.0
    )
    assert (
        distance(personalized(personal_lr=0.2), personalized(personal_lr=0.2, finetune_lr=0.2))
        == 0.0
    )
    assert (
        distance(personalized(personal_lr=0.2), personalized(personal_lr=0.2, finetune_lr=0.1))
        > 1e-4
    )


def test_newcomers_begin_with_the_global_model() -> None:
    assert newcomers_apart(built(finetune_epochs=0)) < 1e-12


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lam": -1.0}, "ditto: lam must not be negative, got -1.0."),
        ({"personal_lr": 0.0}, "ditto: personal_lr must be positive, got 0.0."),
        ({"personal_epochs": 0}, "ditto: personal_epochs must be positive, got 0."),
        ({"personal_steps": 0}, "ditto: personal_steps must be positive, got 0."),
        ({"server_lr": 0.0}, "ditto: server_lr must be positive, got 0.0."),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ditto.HParams(**wrong)
