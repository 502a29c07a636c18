from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from agreement import distance
from fedtailor import methods, prng
from fedtailor.core import trees
from fedtailor.core.types import BatchPlan, Method, Params
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import apfl
from fedtailor.prng.streams import Stream
from fedtailor.training.loop import run_rounds
from oracles import module_of
from scenarios import toy_data, toy_setting, toy_task, train, trained

FEW = toy_data(sizes=(8, 1, 3, 17, 9, 5, 3, 2))
"""Five clients that train, one that validates and two new ones."""


def built(**hyper: Any) -> Method:
    return apfl.build(toy_task(), apfl.HParams(**{"batch": 8} | hyper))


LOCAL: list[dict[str, Any]] = [
    {"epochs": 2},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"optimizer": "adam", "lr": 0.01},
]


@pytest.mark.parametrize("local", LOCAL, ids=str)
def test_the_global_model_is_fedavgs_however_it_is_mixed(local: dict[str, Any]) -> None:
    fedavg = trained("fedavg", 2, 4, data=FEW, server_lr=0.7, weigh="clients", **local).params
    for mixing in ({"mixing": 0.3}, {"adapt": False, "mixing": 0.9}):
        assert (
            distance(
                trained(built(**mixing, **local, server_lr=0.7), 2, 4, data=FEW).params, fedavg
            )
            < 1e-12
        )


def test_without_mixing_the_global_model_predicts() -> None:
    everybody, scores = np.arange(8), []
    for method in (
        built(mixing=0.0, adapt=False, finetune_epochs=1),
        methods.build("fedavg", toy_task(), batch=8, weigh="clients"),
    ):
        state, engine = train(toy_setting(method, data=FEW), 2, 4)
        scores.append(engine.score(state, everybody))
    assert distance(scores[0].before, scores[1].before) < 1e-12
    assert distance(scores[0].after, scores[0].before) == 0.0


@pytest.mark.parametrize("local", LOCAL, ids=str)
def test_with_mixing_1_the_personal_model_is_trained_alone(local: dict[str, Any]) -> None:
    own = methods.build("local", toy_task(), when="sampled", batch=8, **local)
    people, memories = FEW.groups["train"], []
    for method in (own, built(mixing=1.0, adapt=False, **local)):
        state, engine = train(
            setting := toy_setting(method, data=FEW), rounds=2, cohort=len(people)
        )
        memories.append(
            engine.client_states.gather(people, setting.method.init_client_state(state))
        )
    assert distance(memories[0], memories[1].v) < 1e-12
    assert distance(memories[0], trees.stack([toy_task().params] * 5)) > 1e-2
    personal = run_single_client(
        setting.method.personalize._replace(phases=()),
        state.params,
        trees.take_row(memories[1], 3),
        ClientWork(None, 3, state.key),
    )
    assert distance(personal, trees.take_row(memories[0], 3)) < 1e-12


def seen(
    setting: EngineContext, purpose: Stream, number: int, client: int, plan: BatchPlan
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a client's only phase, without padding."""
    key = prng.fold(setting.derive_keys(purpose, number, [client])[0], 0)
    for (batch,) in iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)):
        yield batch.x[batch.mask > 0], batch.y[batch.mask > 0]


def mixed_loss(v: nn.Module, w: Params, alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The loss of alpha v + (1 - alpha) w, through which autograd can see v and alpha."""
    weights = {name: alpha * p + (1 - alpha) * w[name] for name, p in v.named_parameters()}
    return nn.functional.cross_entropy(functional_call(v, weights, (x,)), y)


def copy_of(model: nn.Module) -> Params:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def algorithm_1(
    w: Params,
    kept: tuple[Params, float],
    batches: Iterator[tuple[Tensor, Tensor]],
    maker: Any,
    alpha_lr: float,
) -> tuple[Params, tuple[Params, float]]:
    """The paper's local steps by modules, autograd and torch.optim: w_i, and (v, alpha)."""
    local, personal = module_of(w), module_of(kept[0])
    optimizers = [maker(model.parameters()) for model in (local, personal)]
    alpha = kept[1]
    for number, (x, y) in enumerate(batches):
        for optimizer in optimizers:
            optimizer.zero_grad()
        share = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        mixed_loss(personal, copy_of(local), share, x, y).backward()  # type: ignore[no-untyped-call]
        nn.functional.cross_entropy(local(x), y).backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        if number == 0 and share.grad is not None:
            alpha = min(1.0, max(0.0, alpha - alpha_lr * float(share.grad)))
    return copy_of(local), (copy_of(personal), alpha)


CASES: dict[str, tuple[float, dict[str, Any], Any]] = {
    "held": (0.0, {}, lambda p: torch.optim.SGD(p, 0.1)),
    "sgd": (0.7, {}, lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (
        0.7,
        {"momentum": 0.9, "weight_decay": 0.1, "lr": 0.05},
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1),
    ),
    "adam": (0.7, {"optimizer": "adam", "lr": 0.02}, lambda p: torch.optim.Adam(p, 0.02)),
}


@pytest.mark.parametrize(("alpha_lr", "local", "maker"), CASES.values(), ids=CASES)
def test_rounds_are_algorithm_1(alpha_lr: float, local: dict[str, Any], maker: Any) -> None:
    adapting = {"alpha_lr": alpha_lr} if alpha_lr else {"adapt": False}
    setting = toy_setting(built(mixing=0.4, epochs=2, server_lr=0.8, **adapting, **local))
    engine, plan = factory.make_engine(setting), setting.method.client.phases[0].plan
    loop = run_rounds(setting, engine, setting.init_server_state(), 6)
    w = setting.task.params
    own: dict[int, tuple[Params, float]] = {}
    for number in range(2):
        state, cohort = (ended := next(loop)).state, ended.cohort
        models = []
        for i in map(int, cohort):
            batches = seen(setting, Stream.CLIENT, number, i, plan)
            model, own[i] = algorithm_1(w, own.get(i, (w, 0.4)), batches, maker, alpha_lr)
            models.append(model)
        mean = trees.apply(lambda *each: torch.stack(each).mean(0), *models)
        w = trees.add(trees.scale(w, 0.2), mean, 0.8)
    assert distance(state.params, w) < 1e-12
    kept = engine.client_states.gather(np.array(list(own)), setting.method.init_client_state(state))
    assert distance(kept.v, trees.stack([v for v, _ in own.values()])) < 1e-12
    assert (
        distance(
            kept.alpha, torch.tensor([alpha for _, alpha in own.values()], dtype=torch.float64)
        )
        < 1e-12
    )
    assert bool((kept.alpha - 0.4).abs().max() > 1e-3) == bool(alpha_lr)


def one_step(alpha: float, alpha_lr: float) -> tuple[float, float]:
    """alpha after a single step, and the derivative by alpha of what the mixture loses there, from
    autograd.
    """
    setting = toy_setting(built(steps=1, alpha_lr=alpha_lr))
    w, v = setting.task.params, trees.apply(lambda p: torch.cos(7 * p), setting.task.params)
    kept, work = (
        apfl.ClientState(v, torch.tensor(alpha, dtype=torch.float64)),
        setting.method.client,
    )
    found = run_single_client(
        work,
        w,
        kept,
        ClientWork(setting.make_client_dataset(), 8, setting.derive_keys(Stream.CLIENT, 0, [8])[0]),
    ).state
    x, y = next(seen(setting, Stream.CLIENT, 0, 8, work.phases[0].plan))
    leaf = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(mixed_loss(module_of(v), w, leaf, x, y), leaf)
    return float(found.alpha), float(slope)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_alpha_descends_its_gradient_and_stays_in_range(alpha: float) -> None:
    for rate in (1e-3, 0.1, 1e4):
        found, slope = one_step(alpha, rate)
        assert abs(slope) > 1e-2
        assert abs(found - min(1.0, max(0.0, alpha - rate * slope))) < 1e-12


def test_alpha_first_moves_in_a_clients_second_round() -> None:
    people = toy_data().groups["train"]
    alphas = []
    for rounds in (1, 2):
        state, engine = train(setting := toy_setting(built()), rounds=rounds, cohort=len(people))
        alphas.append(
            engine.client_states.gather(people, setting.method.init_client_state(state)).alpha
        )
    assert bool((alphas[0] == 0.5).all())
    assert bool((alphas[1] != 0.5).all())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_personalizing_trains_v_in_a_mixture_with_the_broadcast(alpha: float) -> None:
    setting = toy_setting(built(finetune_lr=0.2, finetune_epochs=2, finetune_batch=3))
    w, v, work = (
        setting.task.params,
        trees.scale(setting.task.params, -0.5),
        setting.method.personalize,
    )
    kept = apfl.ClientState(v, torch.tensor(alpha, dtype=torch.float64))
    key, plan = setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0], work.phases[0].plan
    model = module_of(v)
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for x, y in seen(setting, Stream.PERSONALIZE, 0, 8, plan):
        optimizer.zero_grad()
        mixed_loss(model, w, kept.alpha, x, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for phases, personal in (((), v), (work.phases, copy_of(model))):
        found = run_single_client(
            work._replace(phases=phases), w, kept, ClientWork(setting.make_client_dataset(), 8, key)
        )
        assert distance(found, {k: alpha * personal[k] + (1 - alpha) * w[k] for k in w}) < 1e-12
    assert plan.specs[0].split == "adapt"


def test_newcomers_begin_with_the_global_model() -> None:
    state, engine = train(setting := toy_setting(built(mixing=0.8, finetune_epochs=0)), rounds=2)
    plain, newcomers = toy_setting("fedavg", finetune_epochs=0), setting.data.groups["unseen"]
    expected = factory.make_engine(plain).score(
        plain.init_server_state()._replace(params=state.params), newcomers
    )
    assert distance(engine.score(state, newcomers).before, expected.before) < 1e-12


def test_short_floats_keep_their_type() -> None:
    task = toy_task(dtype=torch.bfloat16)
    method = apfl.build(task, apfl.HParams(batch=8))
    state, engine = train(setting := toy_setting(method, task=task, data=FEW), rounds=2, cohort=4)
    memory = engine.client_states.gather(np.arange(5), setting.method.init_client_state(state))
    assert {leaf.dtype for leaf in trees.leaves((state.params, memory))} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mixing": 1.5}, r"apfl: mixing must be in \[0, 1\], got 1.5."),
        ({"mixing": -0.1}, r"apfl: mixing must be in \[0, 1\], got -0.1."),
        ({"adapt": 1}, "apfl: adapt must be true or false, got 1."),
        ({"alpha_lr": 0.0}, "apfl: alpha_lr must be positive, got 0.0."),
        (
            {"adapt": False, "alpha_lr": 0.1},
            "apfl: alpha_lr moves alpha, which adapt=false holds; leave it out.",
        ),
        ({"server_lr": 0.0}, "apfl: server_lr must be positive, got 0.0."),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        apfl.HParams(**wrong)
