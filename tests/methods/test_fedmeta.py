import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agreement import distance
from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.types import Batch, BatchPlan, BatchSpec, Method, Params
from fedtailor.data import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import fedavg, fedmeta, per_fedavg
from fedtailor.prng.streams import Stream
from oracles import descended
from scenarios import toy_data, toy_setting, toy_task, train, trained

START = toy_task().params
UNEVEN = toy_data(sizes=(40, 1, 23, 12, 5, 2, 2, 2))
"""With support sets of 8, 1, 5, 2 and 1: batches of 3 make three of them with a rest, and parts of
padding alone.
"""
NAMES = ("body.weight", "body.bias", "head.weight", "head.bias")


def made(**hyper: Any) -> Method:
    return fedmeta.build(toy_task(), fedmeta.HParams(**{"batch": 3, "alpha": 0.3} | hyper))


def made_setting(data: FederatedDataset = UNEVEN, **hyper: Any) -> EngineContext:
    return toy_setting(made(**hyper), data=data)


def batches_of(setting: EngineContext, client: int) -> list[tuple[Batch, ...]]:
    key = prng.fold(setting.derive_keys(Stream.CLIENT, 0, [client])[0], 0)
    plan = setting.method.client.phases[0].plan
    return list(iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)))


def mean_loss(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The toy network by hand."""
    body, shift, head, bias = weights
    return torch.nn.functional.cross_entropy(torch.tanh(x @ body.T + shift) @ head.T + bias, y)


def real(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.x[batch.mask > 0], batch.y[batch.mask > 0]


def query_loss(
    weights: list[Tensor], rates: list[Any], batches: tuple[Batch, ...], passes: int, order: int
) -> Tensor:
    """The query loss after inner steps on threes of support examples, as an autograd graph."""
    (x, y), hat = real(batches[0]), weights
    for _ in range(passes):
        for begin in range(0, len(y), 3):
            part = mean_loss(hat, x[begin : begin + 3], y[begin : begin + 3])
            slopes = torch.autograd.grad(part, hat, create_graph=order == 2)
            hat = [w - rate * slope for w, rate, slope in zip(hat, rates, slopes, strict=True)]
    return mean_loss(hat, *real(batches[1]))


def leaves(params: Params) -> list[Tensor]:
    return [params[name].clone().requires_grad_() for name in NAMES]


def rates_like(params: Params) -> Params:
    """Rates of every size and sign."""
    source = torch.Generator().manual_seed(3)
    return {
        k: 0.4 * torch.randn(v.shape, generator=source, dtype=v.dtype) for k, v in params.items()
    }


def no_rates() -> Params:
    return {}


SHAPES = [
    pytest.param(inner, sets, passes, order, id=f"{inner}-{sets}-{passes}-order{order}")
    for inner in ("maml", "meta-sgd")
    for sets, passes in (("batches", 1), ("batches", 3), ("whole", 1), ("whole", 2))
    for order in (2, 1)
]


@pytest.mark.parametrize(("inner", "sets", "passes", "order"), SHAPES)
def test_a_step_follows_the_gradient_of_autograd(
    inner: str, sets: str, passes: int, order: int
) -> None:
    setting = made_setting(inner=inner, sets=sets, inner_steps=passes, order=order, lr=1.0)
    work, sent = (
        setting.method.client,
        (START, rates_like(START) if inner == "meta-sgd" else no_rates()),
    )
    for client in (0, 2):
        batches = batches_of(setting, client)[0]
        assert len(batches[0].mask) == {"batches": 3, "whole": (8, 1, 5)[client]}[sets]
        moved = trees.sub(sent, work.phases[0].step(sent, work.init(sent, ()), batches)[0])
        weights, rates = leaves(START), leaves(sent[1]) if sent[1] else []
        loss = query_loss(weights, rates or [0.3] * 4, batches, passes, order)
        slopes = torch.autograd.grad(loss, [*weights, *rates])
        wanted = tuple(
            dict(zip(NAMES, part, strict=True)) if part else {} for part in (slopes[:4], slopes[4:])
        )
        assert distance(moved, wanted) < 1e-12
        assert trees.norm(moved[0]) > 1e-2


@pytest.mark.parametrize("sets", ["batches", "whole"])
def test_the_first_order_is_the_gradient_at_the_adapted_point(sets: str) -> None:
    setting = made_setting(inner="meta-sgd", sets=sets, order=1, lr=1.0)
    work, rates = setting.method.client, rates_like(START)
    support, query = batches_of(setting, 0)[0]
    moved = trees.sub(
        (START, rates), work.phases[0].step((), work.init((START, rates), ()), (support, query))[0]
    )
    hat, total, (x, y) = START, trees.zeros_like(START), real(support)
    for begin in range(0, len(y), 3):
        at = leaves(hat)
        part = mean_loss(at, x[begin : begin + 3], y[begin : begin + 3])
        slope = dict(zip(NAMES, torch.autograd.grad(part, at), strict=True))
        hat = {name: hat[name] - rates[name] * slope[name] for name in NAMES}
        total = {name: total[name] + slope[name] for name in NAMES}
    at = leaves(hat)
    there = dict(zip(NAMES, torch.autograd.grad(mean_loss(at, *real(query)), at), strict=True))
    assert distance(moved, (there, {name: -there[name] * total[name] for name in NAMES})) < 1e-12


RULES: list[tuple[dict[str, Any], Any]] = [
    ({"lr": 0.2}, partial(torch.optim.SGD, lr=0.2)),
    (
        {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.1},
        partial(torch.optim.SGD, lr=0.2, momentum=0.9, weight_decay=0.1),
    ),
    ({"lr": 0.01, "optimizer": "adam"}, partial(torch.optim.Adam, lr=0.01)),
]


LOOPS = [
    pytest.param(*rule, sets, inner, id=f"{inner}-{sets}-{name}")
    for name, rule, kinds in zip(
        ("sgd", "momentum", "adam"), RULES, ((0, 1, 2, 3), (0, 3), (1, 2)), strict=True
    )
    for sets, inner in (
        list(itertools.product(("batches", "whole"), ("maml", "meta-sgd")))[kind] for kind in kinds
    )
]


@pytest.mark.parametrize(("local", "rule", "sets", "inner"), LOOPS)
def test_a_round_is_a_plain_loop_weighed_by_query_sizes(
    local: dict[str, Any], rule: Any, sets: str, inner: str
) -> None:
    setting = made_setting(
        inner=inner, sets=sets, epochs=3 if sets == "whole" else 1, server_lr=0.7, **local
    )
    people, ends = setting.data.groups["train"], []
    for client in people:
        weights, rates = (
            leaves(START),
            [torch.full_like(START[name], 0.3, requires_grad=True) for name in NAMES],
        )
        optimizer = rule([*weights, *rates] if inner == "meta-sgd" else weights)
        for batches in batches_of(setting, int(client)):
            optimizer.zero_grad()
            query_loss(weights, rates, batches, 1, 2).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        ends.append([tensor.detach() for tensor in (*weights, *rates)])
    sizes = torch.tensor([32.0, 0.0, 18.0, 10.0, 4.0], dtype=torch.float64)
    assert setting.data.clients.splits["query"].compute_sizes()[people].tolist() == sizes.tolist()
    means = [
        torch.tensordot(sizes / sizes.sum(), torch.stack(each), 1)
        for each in zip(*ends, strict=True)
    ]
    first = [
        *(START[name] for name in NAMES),
        *(torch.full_like(START[name], 0.3) for name in NAMES),
    ]
    wanted = [0.3 * old + 0.7 * mean for old, mean in zip(first, means, strict=True)]
    state, _ = train(setting, rounds=1, cohort=len(people))
    assert distance([state.params[name] for name in NAMES], wanted[:4]) < 1e-12
    if inner == "meta-sgd":
        assert distance([state.aux[name] for name in NAMES], wanted[4:]) < 1e-12
    else:
        assert state.aux == {}


def test_padding_has_no_say() -> None:
    setting = made_setting(inner="meta-sgd", sets="whole", inner_steps=2, lr=1.0)
    work, sent = setting.method.client, (START, rates_like(START))
    support, query = batches_of(setting, 2)[0]
    assert len(support.mask) == 5
    x, y, mask = (torch.cat([part, part.new_zeros((7, *part.shape[1:]))]) for part in support[:3])
    x[5:] = 1e6
    wider = Batch(x, y, mask, support.key)
    narrow, wide = (
        work.phases[0].step(sent, work.init(sent, ()), (each, query))[0]
        for each in (support, wider)
    )
    assert distance(narrow, wide) < 1e-14


def test_every_inner_step_drops_out_anew() -> None:
    batch = batches_of(made_setting(sets="whole"), 0)[0][0]
    parts = [
        part
        for number in range(2)
        for part in fedmeta.split_batch(batch, 3, prng.fold(batch.key, number))
    ]
    assert [len(part.y) for part in parts] == [3, 3, 2] * 2
    assert len({int(part.key) for part in parts}) == 6
    assert torch.equal(torch.cat([part.x for part in parts[:3]]), batch.x)


def test_meta_sgd_learns_rates_of_any_sign() -> None:
    start = toy_setting(made(inner="meta-sgd", alpha=0.0), data=UNEVEN).init_server_state()
    assert all(bool((rate == 0.0).all()) for rate in start.aux.values())
    state = trained(made(inner="meta-sgd", alpha=0.0), rounds=2, cohort=4, data=UNEVEN)
    every = torch.cat([state.aux[name].flatten() for name in NAMES])
    assert float(every.min()) < -1e-3
    assert float(every.max()) > 1e-3
    assert state.aux.keys() == state.params.keys()


LOCALS: list[dict[str, Any]] = [
    {"epochs": 2},
    {"steps": 3},
    {"optimizer": "adam", "lr": 0.01},
    {"momentum": 0.9},
]


@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_without_an_inner_rate_maml_is_fedavg_on_the_query_split(local: dict[str, Any]) -> None:
    plain = fedavg.build(toy_task(), fedavg.HParams(batch=8, **local))
    (phase,) = plain.client.phases
    on_query = phase._replace(plan=phase.plan._replace(specs=(BatchSpec("query", 8),)))
    plain = plain._replace(client=plain.client._replace(phases=(on_query,)), weight_by="query")
    few = toy_data(sizes=(19, 1, 9, 4, 2, 2, 2))
    wanted = trained(plain, rounds=1, cohort=4, data=few).params
    for hyper in ({}, {"order": 1, "inner_steps": 2}):
        same = trained(
            made(batch=8, alpha=0.0, **hyper, **local), rounds=1, cohort=4, data=few
        ).params
        assert distance(same, wanted) < 1e-14
    assert (
        distance(trained(made(batch=8, **local), rounds=1, cohort=4, data=few).params, wanted)
        > 1e-4
    )


@pytest.mark.parametrize(("order", "variant"), [(2, "exact"), (1, "fo")])
def test_on_one_batch_a_step_is_that_of_per_fedavg(order: int, variant: Any) -> None:
    batch = batches_of(made_setting(), 0)[0][1]
    other = per_fedavg.build(toy_task(), per_fedavg.HParams(alpha=0.3, variant=variant)).client
    mine, sent = made(order=order).client, (START, no_rates())
    one = mine.phases[0].step(sent, mine.init(sent, ()), (batch, batch))[0][0]
    assert (
        distance(one, other.phases[0].step(START, other.init(START, ()), (batch,) * 3)[0]) < 1e-14
    )


ALONE: list[dict[str, Any]] = [
    {"epochs": 3},
    {"steps": 2, "weight_decay": 0.1, "momentum": 0.9},
    {"steps": 2, "optimizer": "adamw", "sets": "whole"},
]


@pytest.mark.parametrize("hyper", ALONE, ids=str)
@pytest.mark.parametrize("inner", ["maml", "meta-sgd"])
def test_who_has_one_example_changes_nothing(hyper: dict[str, Any], inner: str) -> None:
    setting = made_setting(inner=inner, **hyper)
    splits, sent = (
        setting.data.clients.splits,
        setting.method.broadcast(setting.init_server_state()),
    )
    assert (len(splits["support"].get_rows(1)), len(splits["query"].get_rows(1))) == (1, 0)
    result = run_single_client(
        setting.method.client,
        sent,
        (),
        ClientWork(setting.make_client_dataset(), 1, setting.derive_keys(Stream.CLIENT, 0, [1])[0]),
    )
    assert distance(result.update, trees.zeros_like(sent)) == 0.0


@pytest.mark.parametrize("hyper", ALONE, ids=str)
@pytest.mark.parametrize("name", factory.NAMES)
def test_a_cohort_of_such_clients_changes_nothing(hyper: dict[str, Any], name: str) -> None:
    setting = made_setting(toy_data(sizes=(1, 1, 1, 9, 9, 9, 9)), inner="meta-sgd", **hyper)
    engine, state = factory.make_engine(setting, name), setting.init_server_state()
    after = engine.update_server(
        state, engine.train(state, np.array([0, 1, 2]), 0).cohort_update, 0
    )
    assert distance((after.params, after.aux), (state.params, state.aux)) == 0.0


@pytest.mark.parametrize(
    ("hyper", "rate", "epochs", "steps"),
    [
        ({}, 0.3, 1, None),
        ({"finetune_lr": 0.07, "finetune_epochs": 2}, 0.07, 2, None),
        ({"finetune_steps": 2}, 0.3, None, 2),
    ],
    ids=str,
)
def test_personalizing_by_maml_is_sgd_at_alpha(
    hyper: dict[str, Any], rate: float, epochs: int | None, steps: int | None
) -> None:
    setting = made_setting(lr=0.9, momentum=0.5, inner_steps=2, finetune_batch=4, **hyper)
    plan = setting.method.personalize.phases[0].plan
    assert plan == BatchPlan((BatchSpec("adapt", 4),), epochs, steps)
    key, sent = setting.derive_keys(Stream.PERSONALIZE, 0, [2])[0], (START, no_rates())
    assert (
        distance(
            run_single_client(
                setting.method.personalize,
                sent,
                (),
                ClientWork(setting.make_client_dataset(), 2, key),
            ),
            descended(setting, Stream.PERSONALIZE, 2, plan, rate),
        )
        < 1e-12
    )
    before = setting.method.personalize._replace(phases=())
    assert (
        distance(
            run_single_client(before, sent, (), ClientWork(setting.make_client_dataset(), 2, key)),
            START,
        )
        == 0.0
    )


def test_personalizing_by_meta_sgd_goes_at_the_learned_rates() -> None:
    setting, rates = made_setting(inner="meta-sgd"), rates_like(START)
    key, plan = (
        setting.derive_keys(Stream.PERSONALIZE, 0, [2])[0],
        setting.method.personalize.phases[0].plan,
    )
    own = [START[name] for name in NAMES]
    for (batch,) in iter_batches(
        plan, ClientWork(setting.make_client_dataset(), 2, prng.fold(key, 0))
    ):
        at = [weight.clone().requires_grad_() for weight in own]
        slopes = torch.autograd.grad(mean_loss(at, *real(batch)), at)
        own = [weight - rates[name] * g for name, weight, g in zip(NAMES, own, slopes, strict=True)]
    tuned = run_single_client(
        setting.method.personalize,
        (START, rates),
        (),
        ClientWork(setting.make_client_dataset(), 2, key),
    )
    assert distance(tuned, dict(zip(NAMES, own, strict=True))) < 1e-12


@pytest.mark.parametrize(("inner", "times"), [("maml", 1), ("meta-sgd", 2)])
def test_what_travels(inner: str, times: int) -> None:
    setting = made_setting(inner=inner)
    sent = factory.make_engine(setting).train(setting.init_server_state(), np.array([0, 1, 2]), 0)
    assert sent.bytes_up == sent.bytes_down == 3 * times * trees.nbytes(START)


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"alpha": -0.1}, "fedmeta: alpha must not be negative, got -0.1."),
        ({"inner_steps": 0}, "fedmeta: inner_steps must be positive, got 0."),
        ({"order": 3}, "fedmeta: order must be 1 or 2, got 3."),
        ({"sets": "some"}, "fedmeta: sets must be batches or whole, got 'some'."),
        (
            {"inner": "meta-sgd", "finetune_lr": 0.1},
            "fedmeta: meta-sgd personalizes at the rates it has learned; leave finetune_lr out.",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(hyper: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        fedmeta.HParams(**hyper)
    assert str(caught.value) == sentence
