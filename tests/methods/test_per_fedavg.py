import itertools
import math
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from agreement import distance
from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.types import Batch, Method, Params
from fedtailor.data.batching import iter_batch_indices
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import per_fedavg
from fedtailor.prng.streams import Stream
from oracles import descended
from scenarios import toy_data, toy_setting, toy_task, trained

VARIANTS: tuple[Literal["exact", "fo", "hf"], ...] = ("exact", "fo", "hf")


def made(**hyper: Any) -> Method:
    return per_fedavg.build(toy_task(), per_fedavg.HParams(**{"batch": 8} | hyper))


def made_setting(**hyper: Any) -> EngineContext:
    return toy_setting(made(**hyper))


def batches_of(setting: EngineContext, client: int, number: int = 0) -> list[tuple[Batch, ...]]:
    key = prng.fold(setting.derive_keys(Stream.CLIENT, number, [client])[0], 0)
    plan = setting.method.client.phases[0].plan
    return list(iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)))


def direction(method: Method, own: Params, batches: tuple[Batch, ...]) -> Params:
    """Where one step goes: at rate 1, and with SGD, what it subtracts."""
    start = method.client.init(own, ())
    return trees.sub(own, method.client.phases[0].step(own, start, batches)[0])


def flat(params: Params) -> Tensor:
    return torch.cat([value.reshape(-1) for value in params.values()])


def forward(vector: Tensor, x: Tensor) -> Tensor:
    """The toy network by hand, from a vector of its weights."""
    body, shift, head, bias = torch.split(vector, [30, 6, 18, 3])
    return torch.tanh(x @ body.reshape(6, 5).T + shift) @ head.reshape(3, 6).T + bias


def loss_of(vector: Tensor, batch: Batch) -> Tensor:
    real = batch.mask > 0
    return torch.nn.functional.cross_entropy(forward(vector, batch.x[real]), batch.y[real])


def by_autograd(vector: Tensor, alpha: float, batch: Batch) -> Tensor:
    """The gradient of f(w - alpha grad f(w))."""
    w = vector.clone().requires_grad_()
    (inner,) = torch.autograd.grad(loss_of(w, batch), w, create_graph=True)
    return torch.autograd.grad(loss_of(w - alpha * inner, batch), w)[0]


def slope(vector: Tensor, batch: Batch) -> Tensor:
    w = vector.clone().requires_grad_()
    return torch.autograd.grad(loss_of(w, batch), w)[0]


def hessian(vector: Tensor, batch: Batch) -> Tensor:
    """The whole matrix."""
    found: Tensor = torch.func.hessian(loss_of)(vector, batch)
    return found


def by_hand(
    vector: Tensor,
    alpha: float,
    batches: tuple[Batch, ...],
    variant: str = "exact",
    h: float = 0.01,
) -> Tensor:
    """(I - alpha H(w; D'')) g(w - alpha g(w; D); D')."""
    inner, curved, outer = batches
    u = slope(vector - alpha * slope(vector, inner), outer)
    if variant == "fo":
        return u
    if variant == "exact":
        return u - alpha * hessian(vector, curved) @ u
    return u - alpha * (slope(vector + h * u, curved) - slope(vector - h * u, curved)) / (2 * h)


START = toy_task().params


def test_on_one_batch_the_exact_direction_is_the_gradient_of_the_meta_function() -> None:
    method, alpha = made(alpha=0.4, lr=1.0), 0.4
    for client in (0, 2, 8):  # of one example, of a padded batch, of two whole ones
        batch = batches_of(toy_setting(method), client)[0][-1]
        found = flat(direction(method, START, (batch,) * 3))
        assert float((found - by_autograd(flat(START), alpha, batch)).abs().max()) < 1e-12
        assert float((found - by_hand(flat(START), alpha, (batch,) * 3)).abs().max()) < 1e-12


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_batches_have_their_three_roles(variant: str) -> None:
    setting = made_setting(alpha=0.4, lr=1.0, variant=variant, hessian_batch=5, h=0.02)
    batches = batches_of(setting, 8)[0]
    assert [len(batch.mask) for batch in batches] == [8, 5, 8]
    found, wanted = (
        direction(setting.method, START, batches),
        by_hand(flat(START), 0.4, batches, variant, 0.02),
    )
    assert float((flat(found) - wanted).abs().max()) < 1e-12
    for swapped in ((1, 0, 2), (2, 1, 0), (0, 2, 1)):  # another assignment would be noticed
        other = by_hand(flat(START), 0.4, tuple(batches[place] for place in swapped), variant, 0.02)
        assert float((flat(found) - other).abs().max()) > 1e-3


def quadratic(params: Params, data: Batch) -> Tensor:
    """1/2 w'Aw + b'w with the matrix A in x and the vector b in y."""
    w = params["w"]
    return 0.5 * w @ data.x @ w + data.y @ w


def bowl(seed: int) -> Batch:
    source = torch.Generator().manual_seed(seed)
    half = torch.randn(4, 4, generator=source, dtype=torch.float64)
    linear = torch.randn(4, generator=source, dtype=torch.float64)
    return Batch(
        half @ half.T + torch.eye(4), linear, torch.ones(4), torch.zeros((), dtype=torch.int64)
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_on_quadratics_have_a_closed_form(variant: Literal["exact", "fo", "hf"]) -> None:
    alpha, lr = 0.05, 0.03
    work = per_fedavg.build_training_routine(
        per_fedavg.HParams(alpha=alpha, lr=lr, variant=variant), quadratic
    )
    w = torch.linspace(-1, 1, 4, dtype=torch.float64)
    carry, given = work.init({"w": w}, ()), {"w": w}
    for step in range(3):
        batches = (d, d2, d1) = tuple(bowl(3 * step + i) for i in range(3))
        carry = work.phases[0].step(given, carry, batches)
        u = d1.x @ (w - alpha * (d.x @ w + d.y)) + d1.y
        w = w - lr * (u if variant == "fo" else u - alpha * d2.x @ u)
    assert float((work.finalize(given, carry).update["w"] + given["w"] - w).abs().max()) < 1e-12


def test_the_minimum_over_quadratic_clients_stays_where_it_is() -> None:
    alpha, clients, one = 0.05, [bowl(seed) for seed in range(5)], torch.eye(4, dtype=torch.float64)
    weights = [
        (one - alpha * c.x) @ c.x @ (one - alpha * c.x) for c in clients
    ]  # the Hessian of f_i(w - alpha g_i(w))
    pulls = [
        weight @ torch.linalg.solve(c.x, -c.y) for weight, c in zip(weights, clients, strict=True)
    ]
    best = torch.linalg.solve(torch.stack(weights).sum(0), torch.stack(pulls).sum(0))
    moves = {}
    for variant in VARIANTS:
        work = per_fedavg.build_training_routine(
            per_fedavg.HParams(alpha=alpha, lr=1.0, variant=variant), quadratic
        )
        start = work.init({"w": best}, ())
        ends = [work.phases[0].step(start[0], start, (c,) * 3)[0]["w"] - best for c in clients]
        moves[variant] = float(torch.stack(ends).mean(0).abs().max())
    assert moves["exact"] < 1e-12
    assert moves["hf"] < 1e-10  # exact on quadratics too, up to the rounding of a difference
    assert moves["fo"] > 1e-2


def orders(steps: list[float], errors: list[float]) -> list[float]:
    pairs = itertools.pairwise(zip(steps, errors, strict=True))
    return [math.log(one / other) / math.log(a / b) for (a, one), (b, other) in pairs]


def test_errors_fall_at_their_orders() -> None:
    def error(variant: str, alpha: float, h: float = 0.01) -> float:
        exact = direction(made(alpha=alpha, lr=1.0), START, batches)
        return float(
            trees.norm(
                trees.sub(
                    direction(made(alpha=alpha, lr=1.0, variant=variant, h=h), START, batches),
                    exact,
                )
            )
        )

    batches = batches_of(made_setting(), 8)[0]
    alphas, steps = [0.04, 0.02, 0.01, 0.005], [0.1, 0.05, 0.025, 0.0125]
    assert orders(alphas, [error("fo", alpha) for alpha in alphas]) == pytest.approx(
        [1.0] * 3, abs=0.05
    )
    assert orders(alphas, [error("hf", alpha / 8, 0.5) for alpha in alphas]) == pytest.approx(
        [1.0] * 3, abs=0.05
    )
    assert orders(steps, [error("hf", 0.1, h) for h in steps]) == pytest.approx([2.0] * 3, abs=0.1)
    product = hessian(flat(START), batches[1]) @ slope(flat(START), batches[2])
    assert error("fo", 1e-5) / 1e-5 == pytest.approx(float(product.norm()), rel=1e-3)


LOCALS: list[dict[str, Any]] = [
    {"epochs": 2},
    {"steps": 3, "server_lr": 0.5},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "adamw", "lr": 0.01},
    {"momentum": 0.9, "weight_decay": 0.01},
]


@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_without_an_inner_step_it_is_fedavg(local: dict[str, Any]) -> None:
    few = toy_data(sizes=(17, 1, 9, 4, 2, 2, 2))
    fedavg = trained("fedavg", rounds=1, cohort=4, data=few, weigh="clients", **local).params
    for variant in VARIANTS:
        same = trained(
            made(alpha=0.0, variant=variant, **local), rounds=1, cohort=4, data=few
        ).params
        assert distance(same, fedavg) == 0.0
    assert (
        distance(trained(made(alpha=0.1, **local), rounds=1, cohort=4, data=few).params, fedavg)
        > 1e-4
    )


def test_the_three_streams_are_independent_and_the_last_is_that_of_fedavg() -> None:
    setting, client, rounds = made_setting(batch=8, epochs=1), 11, 100
    train_split = setting.data.clients.splits["train"]
    who, own = np.full(rounds, client), set(train_split.get_rows(client).tolist())
    keys = prng.fold(prng.key(7, "client", torch.arange(rounds), client), 0)
    plan = setting.method.client.phases[0].plan
    seen = [
        torch.stack(rows, 1).flatten(1)
        for rows in zip(
            *(
                [place.rows for place in step]
                for step in iter_batch_indices(plan, setting.data.clients, who, keys, 5)
            ),
            strict=True,
        )
    ]
    for stream in seen:  # each is a pass over all forty examples, in every round
        assert all(set(row.tolist()) == own for row in stream)
    for one, other in itertools.combinations(seen, 2):
        met = float(
            (one == other).double().mean()
        )  # 4000 places, at each of which 1/40 of them meet by chance
        assert abs(met - 1 / 40) < 5 * math.sqrt(1 / 40 * 39 / 40 / 4000)
    alone_plan = toy_setting("fedavg").method.client.phases[0].plan
    fedavg = torch.stack(
        [
            step[0].rows
            for step in iter_batch_indices(alone_plan, setting.data.clients, who, keys, 5)
        ],
        1,
    )
    assert torch.equal(seen[-1], fedavg.flatten(1))
    drawn = batches_of(setting, 8)[0]
    assert len({int(batch.key) for batch in drawn}) == 3  # dropout of the three is independent too


RULES: list[tuple[str, dict[str, Any], Any]] = [
    ("exact", {"lr": 0.2}, partial(torch.optim.SGD, lr=0.2)),
    ("fo", {"lr": 0.2}, partial(torch.optim.SGD, lr=0.2)),
    ("hf", {"lr": 0.2, "momentum": 0.9}, partial(torch.optim.SGD, lr=0.2, momentum=0.9)),
    ("exact", {"lr": 0.2, "weight_decay": 0.1}, partial(torch.optim.SGD, lr=0.2, weight_decay=0.1)),
    ("exact", {"lr": 0.01, "optimizer": "adam"}, partial(torch.optim.Adam, lr=0.01)),
    ("hf", {"lr": 0.01, "optimizer": "adamw"}, partial(torch.optim.AdamW, lr=0.01)),
]


@pytest.mark.parametrize(
    ("variant", "local", "rule"), RULES, ids=[f"{row[0]}-{row[1]}" for row in RULES]
)
def test_a_round_is_algorithm_1(variant: str, local: dict[str, Any], rule: Any) -> None:
    setting = made_setting(alpha=0.3, variant=variant, steps=3, hessian_batch=4, **local)
    people, ends = setting.data.groups["train"][[0, 4, 8]], []
    for client in people:
        w = flat(START).clone().requires_grad_()
        optimizer = rule([w])
        for batches in batches_of(setting, int(client)):
            w.grad = by_hand(w.detach(), 0.3, batches, variant)
            optimizer.step()
        ends.append(w.detach())
    engine, state = factory.make_engine(setting), setting.init_server_state()
    state = engine.update_server(state, engine.train(state, people, 0).cohort_update, 0)
    assert float((flat(state.params) - torch.stack(ends).mean(0)).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("hyper", "rate", "steps", "epochs"),
    [
        ({}, 0.3, 1, None),
        ({"finetune_lr": 0.07}, 0.07, 1, None),
        ({"finetune_steps": None, "finetune_epochs": 2}, 0.3, None, 2),
    ],
    ids=str,
)
def test_personalizing_is_sgd_at_alpha(
    hyper: dict[str, Any], rate: float, steps: int | None, epochs: int | None
) -> None:
    setting = made_setting(alpha=0.3, lr=0.9, finetune_batch=5, momentum=0.5, **hyper)
    plan = setting.method.personalize.phases[0].plan
    assert (plan.steps, plan.epochs, plan.specs) == (steps, epochs, (("adapt", 5),))
    key = setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0]
    tuned = run_single_client(
        setting.method.personalize, START, (), ClientWork(setting.make_client_dataset(), 8, key)
    )
    assert distance(tuned, descended(setting, Stream.PERSONALIZE, 8, plan, rate)) < 1e-12


def test_without_a_rate_personalizing_does_nothing() -> None:
    assert made(alpha=0.0).personalize.phases == ()
    assert made(alpha=0.0, finetune_steps=None).personalize.phases == ()
    assert len(made(alpha=0.0, finetune_lr=0.1).personalize.phases) == 1


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"alpha": -0.1}, "per-fedavg: alpha must not be negative, got -0.1."),
        ({"h": 0.0}, "per-fedavg: h must be positive, got 0.0."),
        ({"hessian_batch": 0}, "per-fedavg: hessian_batch must be positive, got 0."),
        ({"server_lr": 0.0}, "per-fedavg: server_lr must be positive, got 0.0."),
        ({"variant": "second"}, "per-fedavg: variant must be exact or fo or hf, got 'second'."),
    ],
)
def test_what_cannot_be_used_is_refused(hyper: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        per_fedavg.HParams(**hyper)
    assert str(caught.value) == sentence
