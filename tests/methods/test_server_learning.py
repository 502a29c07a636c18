"""Server learning: FSL, FSL-p, and the same learning around other methods."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from agreement import distance
from fedtailor import methods, prng
from fedtailor.core import trees
from fedtailor.core.types import MethodTag, Params
from fedtailor.engines import factory
from fedtailor.engines.context import EngineContext
from fedtailor.errors import InputError
from fedtailor.methods import fsl, fsl_p
from fedtailor.methods.hparams import RunFacts
from fedtailor.methods.wrappers import server_learning
from fedtailor.prng.streams import Stream
from oracles import descended, server_descended
from scenarios import toy_data, toy_setting, toy_task, train, trained

SERVER: dict[str, Any] = {"gamma": 0.7, "learn_lr": 0.2, "learn_epochs": 2, "learn_batch": 5}
RATE = 0.7 * 0.2
FEW = toy_data(sizes=(5, 1, 9, 3, 2, 2, 2))


def server_sgd(
    setting: EngineContext,
    start: Params,
    number: int,
    phase: int,
    rate: float,
    epochs: int,
    size: int,
) -> Params:
    """SGD on the server's examples with torch.optim, on the batches of a phase of the server's
    work.
    """
    key = prng.fold(setting.derive_keys(Stream.SERVER, number, [0])[0], phase)
    return server_descended(setting, key, rate, epochs, size, start)


def clients_mean(setting: EngineContext, start: Params, people: np.ndarray, number: int) -> Params:
    """The mean change of clients who run SGD, each with torch.optim."""
    plan = setting.method.client.phases[0].plan
    ends = [descended(setting, Stream.CLIENT, int(who), plan, 0.1, start, number) for who in people]
    return trees.sub(trees.apply(lambda *each: torch.stack(each).mean(0), *ends), start)


@pytest.mark.parametrize("name", ["fsl", "fsl-p", "fsl+fedavg"])
def test_without_weight_it_is_fedavg(name: str) -> None:
    hyper: dict[str, Any] = {
        "rounds": 2,
        "cohort": 3,
        "server_lr": 0.8,
        "data": FEW,
        "weigh": "clients",
    }
    assert (
        distance(trained(name, gamma=0.0, **hyper).params, trained("fedavg", **hyper).params) == 0.0
    )
    assert (
        distance(trained(name, gamma=0.1, **hyper).params, trained("fedavg", **hyper).params) > 1e-3
    )


def test_without_weight_no_server_data_is_needed() -> None:
    data = toy_data(server=0)
    assert train(toy_setting("fsl", data=data, gamma=0.0), 1)[0].params
    for name in ("fsl", "fsl-p", "fsl+fedprox"):
        with pytest.raises(
            InputError,
            match=r"the server's work needs data, but data set 'toy' gives the server none",
        ):
            toy_setting(name, data=data)


def test_rounds_of_fsl_are_a_plain_loop() -> None:
    setting = toy_setting("fsl", server_lr=1.5, epochs=2, **SERVER)
    engine, state, x = (
        factory.make_engine(setting),
        setting.init_server_state(),
        setting.task.params,
    )
    for number, people in enumerate((np.array([2, 5, 8]), np.array([0, 5]))):
        state = engine.update_server(
            state, engine.train(state, people, number).cohort_update, number
        )
        average = trees.add(x, clients_mean(setting, x, people, number), 1.5)
        x = server_sgd(
            setting, average, number, 1, RATE, 2, 5
        )  # phase 0 ends the update, phase 1 learns
        assert distance(state.params, x) < 1e-12
    assert distance(x, average) > 1e-2


def test_fsl_p_adds_both_changes() -> None:
    setting, plain = (
        toy_setting("fsl-p", server_lr=1.5, **SERVER),
        toy_setting("fedavg", server_lr=1.5, weigh="clients"),
    )
    engine, people, state = (
        factory.make_engine(setting),
        np.array([1, 4, 7]),
        setting.init_server_state(),
    )
    x = setting.task.params
    found = engine.update_server(state, engine.train(state, people, 0).cohort_update, 0).params
    averaging = factory.make_engine(plain)
    fedavg = averaging.update_server(
        plain.init_server_state(),
        averaging.train(plain.init_server_state(), people, 0).cohort_update,
        0,
    ).params
    alone = server_sgd(setting, x, 0, 0, RATE, 2, 5)
    assert (
        distance(trees.sub(found, x), trees.add(trees.sub(fedavg, x), trees.sub(alone, x))) < 1e-12
    )
    assert (
        distance(found, server_sgd(setting, fedavg, 0, 0, RATE, 2, 5)) > 1e-4
    )  # which FSL would do


@pytest.mark.parametrize(("name", "phase"), [("fsl", 1), ("fsl-p", 0)])
def test_with_clients_that_hardly_move_it_is_sgd_on_the_servers_data(name: str, phase: int) -> None:
    hyper: dict[str, Any] = {"learn_lr": 0.3, "learn_batch": 4, "gamma": 0.5}
    gaps = []
    for lr in (1e-3, 1e-6):
        setting = toy_setting(name, lr=lr, data=FEW, **hyper)
        central = setting.task.params
        for number in range(3):
            central = server_sgd(setting, central, number, phase, 0.15, 1, 4)
        gaps.append(distance(train(setting, 3, 3)[0].params, central))
    assert gaps[1] < 2e-3 * gaps[0] < 1e-3
    assert distance(central, setting.task.params) > 1e-2


def test_learning_follows_the_update_of_any_method() -> None:
    setting, inner = toy_setting("fsl+fedsim", **SERVER), toy_setting("fedsim")
    state, people = setting.init_server_state(), np.array([2, 5, 8])
    outer, within = factory.make_engine(setting), factory.make_engine(inner)
    found = outer.update_server(state, outer.train(state, people, 0).cohort_update, 0)
    update = within.update_server(state, within.train(state, people, 0).cohort_update, 0).params
    assert distance(found.params, server_sgd(setting, update, 0, 1, RATE, 2, 5)) < 1e-12


def test_left_open_in_python_the_servers_rates_are_the_clients() -> None:
    said: dict[str, Any] = {"learn_lr": 0.2, "learn_epochs": 1, "learn_batch": 5}
    open_ = trained("fsl", 2, data=FEW, lr=0.2, batch=5)
    assert (
        distance(
            open_.params, trained("fsl", 2, data=FEW, lr=0.2, batch=5, server_lr=1.0, **said).params
        )
        == 0.0
    )


def test_scenario_1_of_the_paper() -> None:
    facts = RunFacts(
        rounds=1000,
        cohort_size=4,
        num_clients=10,
        examples_per_client=5000.0,
        num_server_examples=500,
    )
    found = fsl.HParams(lr=0.01, batch=50).resolve(facts)
    # K = ceil(5000/50) = 100; E_s = ceil(5000/500) = 10; K0 = 10 ceil(500/50) = 100; eta_0 = 2 0.01
    # 100/100
    assert (found.server_lr, found.learn_epochs, found.learn_batch) == (2.0, 10, 50)
    assert found.learn_lr == pytest.approx(0.02)
    emnist = fsl.HParams(lr=0.01, batch=50).resolve(RunFacts(1000, 5, 45, 2400.0, 225))
    # K = 48; E_s = ceil(10.67) = 11; K0 = 11 ceil(225/50) = 55
    assert (emnist.learn_epochs, emnist.server_lr) == (11, sqrt(5))
    assert emnist.learn_lr == pytest.approx(sqrt(5) * 0.01 * 48 / 55)


@pytest.mark.parametrize(
    "kind", [fsl.HParams, fsl_p.HParams, type(methods.make_hparams("fsl+fedavg"))], ids=str
)
def test_the_rules_with_several_epochs_steps_and_batches(kind: Any) -> None:
    facts = RunFacts(
        rounds=9, cohort_size=9, num_clients=20, examples_per_client=100.0, num_server_examples=30
    )
    found = kind(lr=0.1, batch=30, epochs=3, learn_batch=20).resolve(facts)
    # K = 3 ceil(100/30) = 12; E_s = ceil(100/30 3) = 10; K0 = 10 ceil(30/20) = 20
    assert (found.learn_epochs, found.learn_batch) == (10, 20)
    assert found.learn_lr == pytest.approx(3 * 0.1 * 12 / 20)
    by_steps = kind(lr=0.1, batch=30, steps=6).resolve(facts)  # 6 steps are 1.5 passes of 4
    assert (by_steps.learn_epochs, by_steps.learn_batch) == (5, 30)
    assert by_steps.learn_lr == pytest.approx(3 * 0.1 * 6 / 5)
    said = kind(lr=0.1, batch=30, learn_lr=0.5, learn_epochs=2).resolve(facts)
    assert (said.learn_lr, said.learn_epochs) == (0.5, 2)
    assert (
        kind(batch=3, epochs=5)
        .resolve(facts._replace(examples_per_client=55.0, num_server_examples=25))
        .learn_epochs
        == 11
    )


def test_what_is_left_open_inside_is_filled_in_too() -> None:
    found = methods.make_hparams("fsl+fedsim").resolve(RunFacts(30, 4, 10, 40.0, 20))
    assert (found.decay_rounds, found.learn_epochs, found.server_lr) == (30, 2, 1.0)


@pytest.mark.parametrize("name", ["fsl", "fsl-p", "per", "ds"])
@pytest.mark.parametrize("inner", ["fedmeta", "afml", "per-fedavg", "fedavg"])
def test_a_wrapper_leaves_the_defaults_as_they_are(name: str, inner: str) -> None:
    own, made = methods.make_hparams(inner), methods.make_hparams(f"{name}+{inner}")
    assert {key: getattr(made, key) for key in vars(own)} == vars(own)


def test_personalizing_is_the_methods_own() -> None:
    setting, state = (
        toy_setting("fsl", data=FEW, finetune_lr=0.05),
        toy_setting("fedavg").init_server_state(),
    )
    plain = toy_setting("fedavg", data=FEW, finetune_lr=0.05)
    scores = [factory.make_engine(each).score(state, np.arange(7)) for each in (setting, plain)]
    assert distance(tuple(scores[0]), tuple(scores[1])) == 0.0


@pytest.mark.parametrize(
    ("name", "hyper", "said"),
    [
        ("fsl+local", {}, "server learning: the clients of local never see the server's model"),
        (
            "fsl+local",
            {"when": "sampled"},
            "server learning: the clients of local never see the server's model",
        ),
        ("fsl+fsl", {}, "server learning: the server of fsl learns already."),
        ("fsl-p+fsl", {}, "server learning: the server of fsl learns already."),
        ("fsl+fsl-p", {}, "server learning: the server of fsl-p learns already."),
        ("fsl+fsl+fedavg", {}, "server learning: the server of fedavg learns already."),
        ("per+fsl", {}, "personal layers: fsl learns at the server; put it outside"),
        (
            "fsll+fedavg",
            {},
            "There is no wrapper 'fsll', as in .*; did you mean fsl?",
        ),
        ("fsl", {"gamma": -0.1}, "fsl: gamma must not be negative, got -0.1."),
        ("fsl", {"learn_lr": 0.0}, "fsl: learn_lr must be positive, got 0.0."),
        ("fsl-p", {"learn_epochs": 0}, "fsl-p: learn_epochs must be positive, got 0."),
        ("fsl", {"server_lr": 0.0}, "fsl: server_lr must be positive, got 0.0."),
        (
            "fsl+fedavg",
            {"learn_batch": 1.5},
            r"fsl\+fedavg: learn_batch must be a whole number, got 1.5.",
        ),
        (
            "fsl+fedavg",
            {"gama": 1.0},
            r"fsl\+fedavg has no hyper-parameter 'gama'; did you mean gamma?",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        methods.build(name, toy_task(), **hyper)


def test_a_method_whose_server_learns_is_tagged() -> None:
    for name in ("fsl", "fsl-p", "fsl+fedsim", "fsl-p+scaffold"):
        assert methods.build(name, toy_task()).tags == {"server-learning"}, name
    assert methods.build("fsl+fedavg", toy_task(), gamma=0.0).tags == frozenset()
    both = methods.build("ds+fsl+per+fedavg", toy_task())
    assert both.tags == {"server-learning", "personal-layers"}


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("server-learning", "the server of theirs learns already."),
        ("no-broadcast", "the clients of theirs never see the server's model"),
    ],
)
@pytest.mark.parametrize("is_parallel", [False, True])
def test_a_method_from_elsewhere_is_refused_by_its_tag(
    tag: MethodTag, said: str, is_parallel: bool
) -> None:
    method = methods.build("fedavg", toy_task())._replace(name="theirs", tags=frozenset({tag}))
    with pytest.raises(InputError, match=f"^server learning: {said}"):
        server_learning.build(toy_task(), server_learning.HParams(), method, is_parallel)
