import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agreement import distance
from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.task import regression
from fedtailor.core.types import Batch, BatchPlan, Method, Params
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import pfedme
from fedtailor.prng.streams import Stream
from oracles import module_of, newcomers_apart
from scenarios import toy_setting, toy_task, train, trained


def built(**hyper: Any) -> Method:
    return pfedme.build(toy_task(), pfedme.HParams(**{"batch": 8} | hyper))


# Least squares: f(theta) = |X theta - y|^2 / n has Hessian H = 2 X'X / n, and everything about it
# has a closed form.


class Quadratic:
    """One client's least squares, with its proximal point and its Moreau envelope."""

    def __init__(self, examples: int = 9, size: int = 4) -> None:
        draws = torch.Generator().manual_seed(3)
        x, y, self.w = (
            torch.randn(*shape, generator=draws, dtype=torch.float64)
            for shape in ((examples, size), (examples,), (size,))
        )
        self.batch = Batch(
            x, y, torch.ones(examples, dtype=torch.float64), torch.zeros((), dtype=torch.int64)
        )
        self.task = regression(nn.Linear(size, 1, bias=False)).to(dtype=torch.float64)
        self.hessian, self.slope = 2 * x.T @ x / examples, 2 * x.T @ y / examples

    def value(self, theta: Tensor) -> Tensor:
        return (self.batch.x @ theta - self.batch.y).square().mean()

    def held(self, lam: float) -> Tensor:
        return self.hessian + lam * torch.eye(len(self.w), dtype=torch.float64)

    def proximal_point(self, w: Tensor, lam: float) -> Tensor:
        found: Tensor = torch.linalg.solve(self.held(lam), self.slope + lam * w)
        return found

    def envelope(self, w: Tensor, lam: float) -> Tensor:
        theta = self.proximal_point(w, lam)
        return self.value(theta) + 0.5 * lam * (theta - w).square().sum()

    def local_round(self, **hyper: Any) -> tuple[Tensor, Tensor]:
        """(w_i, theta) after one local round from w."""
        work = pfedme.build(self.task, pfedme.HParams(**hyper)).client
        sent = {"weight": self.w[None]}
        result = work.finalize(
            sent, work.phases[0].step(sent, work.init(sent, sent), (self.batch,))
        )
        return self.w + result.update["weight"][0], result.state["weight"][0]


def test_inner_steps_approach_the_proximal_point_at_the_rate_of_gradient_descent() -> None:
    problem, lam, rate = Quadratic(), 3.0, 0.1
    point = problem.proximal_point(problem.w, lam)
    shrink = torch.eye(4, dtype=torch.float64) - rate * problem.held(lam)
    radius, errors = float(torch.linalg.eigvalsh(shrink).abs().max()), []
    for count in (1, 2, 5, 20, 60):
        theta = problem.local_round(lam=lam, inner_lr=rate, inner_steps=count)[1]
        expected = point + torch.linalg.matrix_power(shrink, count) @ (problem.w - point)
        assert float((theta - expected).abs().max()) < 1e-12
        errors.append(float((theta - point).norm()))
        assert errors[-1] <= radius**count * float((problem.w - point).norm()) + 1e-12
    assert errors[0] > 1e-2
    assert errors[-1] < 1e-8


def test_w_descends_the_gradient_of_the_moreau_envelope() -> None:
    problem, lam, lr, h = Quadratic(), 3.0, 0.07, 1e-3
    w, theta = problem.local_round(lam=lam, lr=lr, inner_lr=0.1, inner_steps=200)
    assert float((theta - problem.proximal_point(problem.w, lam)).abs().max()) < 1e-12
    steps = h * torch.eye(4, dtype=torch.float64)
    slope = torch.stack(
        [
            (problem.envelope(problem.w + e, lam) - problem.envelope(problem.w - e, lam)) / (2 * h)
            for e in steps
        ]
    )
    assert float(slope.norm()) > 0.1
    assert float(((problem.w - w) / lr - slope).abs().max()) < 1e-10


def test_w_tends_to_fedavgs_as_one_over_lam() -> None:
    fedavg = trained("fedavg", rounds=1, lr=0.2, weigh="clients").params
    gaps = []
    for lam in (100.0, 200.0, 400.0):
        solved = built(lr=0.2, lam=lam, inner_lr=1 / lam, inner_steps=8)
        gaps.append(distance(trained(solved, rounds=1).params, fedavg))
    assert all(abs(math.log2(a / b) - 1) < 0.1 for a, b in itertools.pairwise(gaps))
    assert gaps[-1] < 1e-2 * distance(fedavg, toy_task().params)


def test_a_single_inner_step_is_a_step_of_fedavg() -> None:
    once = built(steps=1, inner_steps=1, lr=0.3, lam=2.0, inner_lr=0.4, beta=0.7)
    fedavg = trained("fedavg", 2, steps=1, lr=0.3 * 2.0 * 0.4, server_lr=0.7, weigh="clients")
    assert distance(trained(once, 2).params, fedavg.params) < 1e-12


def test_a_single_local_round_may_be_fedprox() -> None:
    once = built(steps=1, batch=100, inner_steps=4, lam=2.0, lr=0.5, inner_lr=0.2)
    assert (
        distance(
            trained(once, 2).params,
            trained("fedprox", 2, steps=4, batch=100, lam=2.0, lr=0.2, weigh="clients").params,
        )
        < 1e-12
    )


def seen(
    setting: EngineContext, purpose: Stream, number: int, client: int, plan: BatchPlan
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a client's only phase, without padding."""
    key = prng.fold(setting.derive_keys(purpose, number, [client])[0], 0)
    for (batch,) in iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)):
        yield batch.x[batch.mask > 0], batch.y[batch.mask > 0]


def algorithm_1(
    w: Params,
    theta: Params,
    batches: Iterator[tuple[Tensor, Tensor]],
    maker: Any,
    hyper: pfedme.HParams,
) -> tuple[Params, Params]:
    """The paper's local rounds with ordinary modules, autograd and torch.optim: (w_i, theta)."""
    local, personal = module_of(w), module_of(theta)
    optimizer, inner = (
        maker(local.parameters()),
        torch.optim.SGD(personal.parameters(), hyper.inner_lr),
    )
    for x, y in batches:
        for _ in range(hyper.inner_steps):
            inner.zero_grad()
            pairs = zip(personal.parameters(), local.parameters(), strict=True)
            near = torch.stack([(p - q.detach()).square().sum() for p, q in pairs]).sum()
            (nn.functional.cross_entropy(personal(x), y) + hyper.lam / 2 * near).backward()  # type: ignore[no-untyped-call]
            inner.step()
        for p, q in zip(local.parameters(), personal.parameters(), strict=True):
            p.grad = hyper.lam * (p.detach() - q.detach())
        optimizer.step()
    return dict(local.state_dict()), dict(personal.state_dict())


OPTIMISERS: list[tuple[dict[str, Any], Any]] = [
    ({"lr": 0.05}, lambda p: torch.optim.SGD(p, 0.05)),
    (
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
    ),
    ({"optimizer": "adam", "lr": 0.02}, lambda p: torch.optim.Adam(p, 0.02)),
]


@pytest.mark.parametrize(("local", "maker"), OPTIMISERS, ids=["sgd", "momentum", "adam"])
def test_rounds_are_algorithm_1(local: dict[str, Any], maker: Any) -> None:
    hyper = pfedme.HParams(
        batch=8, epochs=2, inner_steps=3, lam=4.0, inner_lr=0.1, beta=0.6, **local
    )
    setting = toy_setting(pfedme.build(toy_task(), hyper))
    state, engine = train(setting, rounds=2, cohort=9)
    people, w, thetas = setting.data.groups["train"], setting.task.params, []
    for number in range(2):
        results = [
            algorithm_1(
                w,
                w,
                seen(setting, Stream.CLIENT, number, int(i), hyper.build_batch_plan()),
                maker,
                hyper,
            )
            for i in people
        ]
        mean = trees.apply(
            lambda *each: torch.stack(each).mean(0), *(result[0] for result in results)
        )
        w = trees.add(trees.scale(w, 0.4), mean, 0.6)
        thetas = [result[1] for result in results]
    assert distance(state.params, w) < 1e-12
    assert (
        distance(engine.client_states.gather(people, setting.task.params), trees.stack(thetas))
        < 1e-12
    )


def test_personalizing_goes_on_from_the_broadcast_and_the_kept_model() -> None:
    hyper = pfedme.HParams(
        batch=8,
        inner_steps=3,
        lam=4.0,
        inner_lr=0.1,
        finetune_lr=0.2,
        finetune_epochs=2,
        finetune_batch=3,
    )
    setting = toy_setting(pfedme.build(toy_task(), hyper))
    sent, kept, work = (
        setting.task.params,
        trees.scale(setting.task.params, 0.5),
        setting.method.personalize,
    )
    key = setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0]
    found = run_single_client(work, sent, kept, ClientWork(setting.make_client_dataset(), 8, key))
    batches = seen(setting, Stream.PERSONALIZE, 0, 8, work.phases[0].plan)
    expected = algorithm_1(sent, kept, batches, lambda p: torch.optim.SGD(p, 0.2), hyper)[1]
    assert work.phases[0].plan.specs[0].split == "adapt"
    assert distance(found, expected) < 1e-12
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


def test_newcomers_begin_with_the_shared_model() -> None:
    assert newcomers_apart(built(finetune_epochs=0)) < 1e-12


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lam": 0.0}, "pfedme: lam must be positive, got 0.0."),
        ({"inner_steps": 0}, "pfedme: inner_steps must be positive, got 0."),
        ({"inner_steps": 1.5}, "pfedme: inner_steps must be a whole number, got 1.5."),
        ({"beta": 0.0}, "pfedme: beta must be positive, got 0.0."),
        (
            {"inner_lr": 0.2, "lam": 15.0},
            "pfedme: inner_lr . lam must be below 2, or inner steps run away, got 3.",
        ),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        pfedme.HParams(**wrong)
