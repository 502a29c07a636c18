"""AFML against plain functions of (mean, log sigma, head), torch.distributions and torch.optim; and
cutting a model.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as nnf

from agreement import distance
from examples import batch_of, draw
from fedtailor import digits, fit, prng
from fedtailor.core import trees
from fedtailor.core.functionalize import seed_initialization
from fedtailor.core.task import Task, classification
from fedtailor.core.types import Batch, Params, ServerState
from fedtailor.data import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods import afml
from fedtailor.models import mlp
from fedtailor.prng.streams import Stream
from scenarios import toy_data, toy_setting, toy_task, train

BODY, HEAD, LATENT = ("body.weight", "body.bias"), ("head.weight", "head.bias"), afml.LATENT

STRONG: dict[str, Any] = {
    "sigma": 0.3,
    "latent_sigma": 0.5,
    "alpha": 0.2,
    "beta": 0.05,
    "lr": 0.3,
    "eta_1": 0.2,
    "eta": 0.4,
}

DATA = toy_data()


def setting_of(
    task: Task | None = None, data: FederatedDataset = DATA, **hyper: Any
) -> EngineContext:
    task = task or toy_task()
    return toy_setting(afml.build(task, afml.HParams(**{"batch": 8} | hyper)), task=task, data=data)


def some_batch(examples: int = 6, seed: int = 0) -> Batch:
    return batch_of(
        draw(examples, 5, seed=seed),
        torch.from_numpy(np.random.default_rng(seed).integers(0, 3, examples)),
    )


def away_from_the_start(setting: EngineContext) -> ServerState:
    """A state in which nothing is zero: every weight, and every log sigma, is its own."""
    state = setting.init_server_state()
    moved = [
        leaf + 0.2 * draw(*leaf.shape, seed=place)
        for place, leaf in enumerate(trees.leaves(state.aux))
    ]
    return state._replace(aux=trees.unflatten(state.aux, moved), round=torch.tensor(4))


def test_the_divergence_is_that_of_torch() -> None:
    mean, log_variance = draw(4, 3), draw(4, 3, seed=1)
    wanted = kl_divergence(
        Normal(mean, (log_variance / 2).exp()), Normal(torch.zeros(4, 3), torch.ones(4, 3))
    )
    assert distance(afml.gaussian_kl(mean, log_variance), wanted) < 1e-12


def test_the_divergence_is_the_mean_of_log_ratios() -> None:
    mean, log_variance = torch.tensor([0.7, -1.2]), torch.tensor([-1.5, 0.8])
    ours, prior = Normal(mean, (log_variance / 2).exp()), Normal(torch.zeros(2), torch.ones(2))
    x = mean + (log_variance / 2).exp() * draw(400_000, 2)
    ratios = ours.log_prob(x) - prior.log_prob(x)  # type: ignore[no-untyped-call]
    error = (ratios.mean(0) - afml.gaussian_kl(mean, log_variance)).abs() / (
        ratios.std(0) / math.sqrt(len(x))
    )
    assert float(error.max()) < 4


def test_complexity_is_the_divergence_of_all_gaussian_weights() -> None:
    mean = {"w": draw(4, 3), "b": draw(3, seed=1), "head": draw(5, seed=2)}
    log_sigma = {"w": draw(4, 3, seed=3), "b": draw(3, seed=4)}
    prior = Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    wanted = sum(kl_divergence(Normal(mean[k], s.exp()), prior).sum() for k, s in log_sigma.items())
    assert distance(afml.complexity_loss(mean, log_sigma), wanted) < 1e-12


def test_the_encoding_loss_is_that_of_the_head_on_a_noisy_latent() -> None:
    task, batch, features, log_variance = (
        toy_task(),
        some_batch(),
        draw(6, 6, seed=7),
        draw(6, 6, seed=8),
    )
    noise = prng.normal(prng.fold(batch.key, "latent"), (6, 6), torch.float64)
    weight, bias = (task.params[name] for name in HEAD)
    each = []
    for i in range(6):
        z = [features[i, d] + math.exp(log_variance[i, d]) ** 0.5 * noise[i, d] for d in range(6)]
        scores = [float(sum(weight[c, d] * z[d] for d in range(6)) + bias[c]) for c in range(3)]
        each.append(math.log(sum(map(math.exp, scores))) - scores[int(batch.y[i])])
    head = {name: task.params[name] for name in HEAD}
    assert float(afml.encoder_loss(task, head, features, log_variance, batch)) == pytest.approx(
        np.mean(each), abs=1e-12
    )


def test_the_constraint_is_the_mean_divergence_of_the_real_examples() -> None:
    features, log_variance = draw(6, 4), draw(6, 4, seed=1)
    mask = torch.tensor([1.0, 1, 0, 1, 0, 1], dtype=torch.float64)
    prior = Normal(torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    each = [
        kl_divergence(Normal(f, (v / 2).exp()), prior).sum()
        for f, v in zip(features, log_variance, strict=True)
    ]
    wanted = sum(each[i] for i in (0, 1, 3, 5)) / 4
    batch = some_batch()._replace(mask=mask)
    assert distance(afml.constraint_loss(features, log_variance, batch), wanted) < 1e-12
    places = afml.constraint_loss(
        features.reshape(3, 2, 4), log_variance.reshape(3, 2, 4), some_batch(3)
    )
    assert distance(places, sum(each) / 6) < 1e-12


def scores_of(weights: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and scores of the toy network, written out."""
    features = torch.tanh(x @ weights["body.weight"].T + weights["body.bias"])
    return features, features @ weights["head.weight"].T + weights["head.bias"]


def adapted_head(weights: Params, x: Tensor, y: Tensor, eta: float) -> Params:
    """One inner step, with the gradient of cross-entropy in closed form; `weights` may ask for
    gradients.
    """
    features, scores = scores_of(weights, x)
    errors = (scores.softmax(1) - nnf.one_hot(y, 3)) / max(1, len(x))
    moves = {"head.weight": errors.T @ features, "head.bias": errors.sum(0)}
    return {name: weights[name] - eta * move for name, move in moves.items()}


def query_loss(weights: Params, support: Batch, query: Batch, eta: float) -> Tensor:
    (x, y), (asked, truth) = real(support), real(query)
    return nnf.cross_entropy(
        scores_of({**weights, **adapted_head(weights, x, y, eta)}, asked)[1], truth
    )


def bounds(weights: Params, query: Batch) -> Tensor:
    """L_ENC + L_CONS of the toy network."""
    x, y = real(query)
    features, _ = scores_of(weights, x)
    deviation = torch.exp((features @ weights[LATENT[0]].T + weights[LATENT[1]]) / 2)
    noise = prng.normal(prng.fold(query.key, "latent"), (len(query.x), 6), torch.float64)[
        query.mask > 0
    ]
    scores = (features + deviation * noise) @ weights["head.weight"].detach().T + weights[
        "head.bias"
    ].detach()
    prior = Normal(torch.zeros_like(features), torch.ones_like(features))
    return (
        nnf.cross_entropy(scores, y)
        + kl_divergence(Normal(features, deviation), prior).sum(1).mean()
    )


def real(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.x[batch.mask > 0], batch.y[batch.mask > 0]


def client_batches(setting: EngineContext, client: int, number: int = 0) -> list[tuple[Batch, ...]]:
    key = prng.fold(setting.derive_keys(Stream.CLIENT, number, [client])[0], 0)
    plan = setting.method.client.phases[0].plan
    return list(iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)))


def leaves_of(weights: Params) -> Params:
    return {name: value.detach().clone().requires_grad_() for name, value in weights.items()}


def slope(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def test_the_round_descends_the_whole_objective() -> None:
    """The mean over clients of L_q + alpha (L_ENC + L_CONS), plus beta L_CMPX, differentiated by
    tau and the head.
    """
    setting = setting_of(sets="whole", **STRONG)
    state, people = away_from_the_start(setting), setting.data.groups["train"]
    sample = setting.method.broadcast(state).sample
    start, log_sigma = {**state.params, **state.aux.latent}, leaves_of(state.aux.log_sigma)
    noise = {
        name: (sample[name] - start[name]) / value.exp()
        for name, value in state.aux.log_sigma.items()
    }
    weights = leaves_of(start)
    theta = {
        name: weights[name] + value.exp() * noise[name] for name, value in log_sigma.items()
    } | {name: weights[name] for name in HEAD}
    total = torch.zeros((), dtype=torch.float64)
    for client in people:
        for support, query in client_batches(setting, int(client)):
            total = total + query_loss(theta, support, query, STRONG["eta"]) / len(people)
            total = total + STRONG["alpha"] * bounds(theta, query) / len(people)
    prior = Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
    for name, value in log_sigma.items():
        total = (
            total + STRONG["beta"] * kl_divergence(Normal(weights[name], value.exp()), prior).sum()
        )
    total.backward()  # type: ignore[no-untyped-call]

    engine = factory.make_engine(setting, "sequential")
    after = engine.update_server(state, engine.train(state, people, 0).cohort_update, 0)
    rates = {name: STRONG["eta_1"] if name in HEAD else STRONG["lr"] for name in weights}
    wanted = {name: start[name] - rates[name] * slope(value) for name, value in weights.items()}
    assert (
        distance({name: {**after.params, **after.aux.latent}[name] for name in wanted}, wanted)
        < 1e-12
    )
    spread = {
        name: state.aux.log_sigma[name] - STRONG["lr"] * slope(v) for name, v in log_sigma.items()
    }
    assert distance(after.aux.log_sigma, spread) < 1e-12
    assert (
        min(float(slope(leaf).abs().max()) for leaf in (*weights.values(), *log_sigma.values()))
        > 1e-3
    )
    assert list(after.params) == list(setting.task.params)


@pytest.mark.parametrize(
    "hyper", [{}, {"momentum": 0.9, "weight_decay": 0.05}], ids=["plain", "momentum"]
)
def test_further_steps_descend_from_the_sample(hyper: dict[str, Any]) -> None:
    setting = setting_of(epochs=2, **STRONG, **hyper)
    state, client = away_from_the_start(setting), 7
    sent = setting.method.broadcast(state)
    own = leaves_of(sent.sample)
    groups = [
        {"params": [own[name] for name in own if name not in HEAD], "lr": STRONG["lr"]},
        {"params": [own[name] for name in HEAD], "lr": STRONG["eta_1"]},
    ]
    optimizer, batches = torch.optim.SGD(groups, **hyper), client_batches(setting, client)
    for support, query in batches:
        optimizer.zero_grad()
        loss = query_loss(own, support, query, STRONG["eta"]) + STRONG["alpha"] * bounds(own, query)
        loss.backward()
        optimizer.step()
    result = run_single_client(
        setting.method.client,
        sent,
        (),
        ClientWork(
            setting.make_client_dataset(),
            client,
            setting.derive_keys(Stream.CLIENT, 0, [client])[0],
        ),
    )
    assert len(batches) == 4
    assert (
        distance(
            result.update, {name: own[name].detach() - value for name, value in sent.sample.items()}
        )
        < 1e-12
    )


def with_query_alone(data: FederatedDataset) -> FederatedDataset:
    """The same people, whose train examples are their query examples."""
    splits = data.with_support().clients.splits
    return replace(
        data,
        clients=data.clients._replace(splits={**splits, "train": splits["query"]}),
        should_check=False,
    )


PLAIN: dict[str, Any] = {"sigma": 1e-40, "alpha": 0.0, "beta": 0.0}


def test_without_variance_and_bounds_it_is_fedmeta_with_an_inner_loop_of_the_head() -> None:
    setting = setting_of(epochs=2, lr=0.3, eta_1=0.2, eta=0.5, **PLAIN)
    people, theta = setting.data.groups["train"], dict(setting.task.params)
    for number in range(2):
        models = []
        for client in people:
            own = leaves_of(theta)
            for support, query in client_batches(setting, int(client), number):
                (x, y), (asked, truth) = real(support), real(query)
                head = [own[name] for name in HEAD]
                inner = torch.autograd.grad(
                    nnf.cross_entropy(scores_of(own, x)[1], y), head, create_graph=True
                )
                phi = {name: w - 0.5 * g for name, w, g in zip(HEAD, head, inner, strict=True)}
                outer = nnf.cross_entropy(scores_of({**own, **phi}, asked)[1], truth)
                slopes = torch.autograd.grad(outer, list(own.values()))
                rates = [0.2 if name in HEAD else 0.3 for name in own]
                own = leaves_of(
                    {n: w - r * g for (n, w), r, g in zip(own.items(), rates, slopes, strict=True)}
                )
            models.append({name: value.detach() for name, value in own.items()})
        theta = {name: torch.stack([model[name] for model in models]).mean(0) for name in theta}
    state, _ = train(setting, rounds=2, cohort=len(people))
    assert distance(state.params, theta) < 1e-12
    assert distance(theta, setting.task.params) > 0.1


@pytest.mark.parametrize(
    "hyper", [{}, {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2}], ids=["sgd", "momentum"]
)
def test_without_an_inner_step_besides_it_is_fedavg_on_the_query_examples(
    hyper: dict[str, Any],
) -> None:
    task, data = toy_task(dropout=0.3), toy_data(sizes=(2, 3, 5, 8, 13, 20, 21, 40))
    fedavg = toy_setting(
        "fedavg", task=task, data=with_query_alone(data), lr=0.3, weigh="clients", **hyper
    )
    rest = {**PLAIN, **hyper, "lr": 0.3}
    runs = [
        fedavg,
        setting_of(task, data, eta=0.0, **rest),
        setting_of(task, data, eta=0.1, **rest),
    ]
    ended = [train(each, rounds=2)[0].params for each in runs]
    assert distance(ended[0], ended[1]) < 1e-12
    assert distance(ended[0], ended[2]) > 1e-4


def test_samples_have_the_mean_and_the_deviation_of_the_weights() -> None:
    setting = setting_of()
    state = away_from_the_start(setting)
    means = {**state.params, **state.aux.latent}

    def in_round(number: Tensor) -> Params:
        sample: Params = setting.method.broadcast(state._replace(round=number)).sample
        return sample

    sent = torch.func.vmap(in_round)(torch.arange(400))
    for name, log_sigma in state.aux.log_sigma.items():
        noise = (sent[name] - means[name]) / log_sigma.exp()
        assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 1e-3
        assert float((noise.mean(0) * math.sqrt(400)).abs().max()) < 4.5
        assert float((noise.std(0) - 1).abs().max()) < 4.5 / math.sqrt(800)
    assert all(
        distance(sent[name], means[name].expand(400, *means[name].shape)) == 0 for name in HEAD
    )
    assert all(distance(sent[name][0], sent[name][1]) > 1e-4 for name in state.aux.log_sigma)


def test_the_first_deviations_are_those_asked_for() -> None:
    setting = setting_of(sigma=0.02, latent_sigma=0.3)
    kept = setting.init_server_state().aux
    assert kept.log_sigma.keys() == {*BODY, *LATENT}
    assert all(float((value.exp() - 0.02).abs().max()) < 1e-15 for value in kept.log_sigma.values())
    log_variance = nnf.linear(draw(4, 6), kept.latent[LATENT[0]], kept.latent[LATENT[1]])
    assert float(((log_variance / 2).exp() - 0.3).abs().max()) < 1e-15


def test_client_and_server_have_the_same_noise_in_a_round() -> None:
    setting = setting_of(beta=0.0)
    state = away_from_the_start(setting)
    sample, means = setting.method.broadcast(state).sample, {**state.params, **state.aux.latent}
    found = {name: draw(*value.shape, seed=9) for name, value in sample.items()}
    after = afml.server_step(0.0, state, found)
    spread = {
        name: v + found[name] * (sample[name] - means[name])
        for name, v in state.aux.log_sigma.items()
    }
    assert distance(after.aux.log_sigma, spread) < 1e-14
    assert distance({**after.params, **after.aux.latent}, trees.add(means, found)) == 0
    later = afml.server_step(0.0, state._replace(round=torch.tensor(5)), found)
    assert distance(later.aux.log_sigma, after.aux.log_sigma) > 1e-3


def test_latent_noise_is_new_in_every_step_and_for_every_client() -> None:
    setting = setting_of(batch=4)
    keys = [int(query.key) for client in (5, 6, 7) for _, query in client_batches(setting, client)]
    assert len(keys) == len(set(keys)) > 5


def test_personalizing_adapts_the_head_on_the_mean_weights() -> None:
    rows: list[tuple[dict[str, Any], float]] = [
        ({"eta": 0.2}, 0.2),
        ({"eta": 0.2, "finetune_lr": 0.07}, 0.07),
    ]
    for hyper, rate in rows:
        setting = setting_of(finetune_epochs=3, finetune_batch=6, sigma=0.5, **hyper)
        state, work = away_from_the_start(setting), setting.method.personalize
        sent, key = (
            setting.method.broadcast(state),
            setting.derive_keys(Stream.PERSONALIZE, 0, [8])[0],
        )
        wanted = dict(state.params)
        batches = list(
            iter_batches(
                work.phases[0].plan, ClientWork(setting.make_client_dataset(), 8, prng.fold(key, 0))
            )
        )
        for (batch,) in batches:
            wanted |= adapted_head(wanted, *real(batch), rate)
        tuned = run_single_client(work, sent, (), ClientWork(setting.make_client_dataset(), 8, key))
        assert work.phases[0].plan.specs[0] == ("adapt", 6)
        assert len(batches) == 9
        assert distance(tuned, wanted) < 1e-12
        assert (
            distance(
                run_single_client(work._replace(phases=()), sent, (), ClientWork(None, 8, key)),
                state.params,
            )
            == 0
        )
        assert list(tuned) == list(setting.task.params)


def test_clients_without_query_examples_change_nothing() -> None:
    data = toy_data(sizes=(1, 1, 1, 1, 8))
    for hyper in ({}, {"steps": 2}, {"sets": "whole", "steps": 1}):
        setting = setting_of(data=data, beta=0.0, **hyper)
        state, first = train(setting, rounds=2, cohort=1)[0], setting.init_server_state()
        assert distance((state.params, state.aux), (first.params, first.aux)) == 0


def test_it_learns_digits() -> None:
    with seed_initialization(0):
        task = classification(mlp(64, (32,), 10))
    method, data = afml.build(task, afml.HParams(finetune_epochs=2)), digits(clients=30)
    accuracy = []
    for rounds in (0, 12):
        scored = fit(method, task, data, rounds=rounds, cohort=8).scores["unseen"]
        accuracy.append(np.average(scored.after["accuracy"], weights=scored.weights["accuracy"]))
    assert accuracy[0] < 0.7
    assert accuracy[1] > 0.85


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"lr": -1.0}, "afml: lr must be positive, got -1.0."),
        ({"eta_1": 0.0}, "afml: eta_1 must be positive, got 0.0."),
        ({"eta": -0.1}, "afml: eta must not be negative, got -0.1."),
        ({"alpha": -0.1}, "afml: alpha must not be negative, got -0.1."),
        ({"beta": -0.1}, "afml: beta must not be negative, got -0.1."),
        ({"sigma": 0.0}, "afml: sigma must be positive, got 0.0."),
        ({"latent_sigma": 0.0}, "afml: latent_sigma must be positive, got 0.0."),
        ({"sets": "all"}, "afml: sets must be batches or whole, got 'all'."),
        (
            {"optimizer": "adam"},
            "afml: the server's chain rule needs gradients; optimizer must be sgd, got adam.",
        ),
    ],
)
def test_values_out_of_range_are_refused(hyper: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        afml.HParams(**hyper)
    assert str(caught.value) == sentence


def test_a_model_with_a_layer_of_the_latents_name_is_refused() -> None:
    model = nn.Sequential()
    model.add_module("log-variance", nn.Linear(5, 4))
    model.add_module("head", nn.Linear(4, 3))
    with pytest.raises(
        InputError, match=r"must have other names than log-variance.weight, log-variance.bias"
    ):
        afml.build(classification(model), afml.HParams())
