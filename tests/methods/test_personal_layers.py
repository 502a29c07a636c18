"""Personal layers: FedPer, LG-FedAvg, FedRep, FedMeta-Per, and the same around other methods."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agreement import distance
from fedtailor import methods, prng
from fedtailor.core import trees
from fedtailor.core.types import BatchPlan, BatchSpec, MethodTag, Params
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.errors import InputError
from fedtailor.methods.wrappers import personal_layers
from fedtailor.prng.streams import Stream
from fedtailor.training.loop import run_rounds
from oracles import descended, module_of
from scenarios import toy_data, toy_setting, toy_task, train, trained

DATA = toy_data(sizes=(9, 1, 17, 4, 6, 3, 2, 5, 8), test=3)
"""Six clients that train, one that validates and two new ones."""
EVERYBODY = np.arange(9)
HEAD, BODY = {"head.weight", "head.bias"}, {"body.weight", "body.bias"}


def on_toy(name: str, **hyper: Any) -> EngineContext:
    return toy_setting(name, data=DATA, **{"finetune_steps": 2} | hyper)


def outcome(name: str, **hyper: Any) -> tuple[Any, ...]:
    """State, memories and scores after two rounds of three clients."""
    state, engine = train(setting := on_toy(name, **hyper), 2, 3)
    memory = engine.client_states.gather(EVERYBODY, setting.method.init_client_state(state))
    return state, memory, tuple(engine.score(state, EVERYBODY))


@pytest.mark.parametrize(
    ("name", "inner", "hyper"),
    [
        (
            "fedper",
            "fedavg",
            {"epochs": 2, "server_optimizer": "adam", "server_lr": 0.05, "weigh": "clients"},
        ),
        ("lg-fedavg", "fedavg", {"optimizer": "adam", "lr": 0.01}),
        ("fedmeta-per", "fedmeta", {"inner": "meta-sgd"}),
        ("per+fedsim", "fedsim", {}),
        ("per+fedsim", "fedsim", {"at": "mean"}),
        ("per+scaffold", "scaffold", {"epochs": 2}),
        ("fedrep", "fedavg", {"head_epochs": 0, "finetune_steps": 0, "weigh": "clients"}),
    ],
)
def test_without_personal_layers_it_is_the_method_itself(
    name: str, inner: str, hyper: dict[str, Any]
) -> None:
    plain = {key: value for key, value in hyper.items() if key != "head_epochs"}
    for ours, theirs in zip(
        outcome(name, personal="none", **hyper), outcome(inner, **plain), strict=True
    ):
        assert distance(ours, theirs) == 0.0


@pytest.mark.parametrize("name", ["fedper", "lg-fedavg"])
def test_with_all_layers_personal_everybody_trains_alone(name: str) -> None:
    ours, theirs = (
        outcome(name, personal="all", epochs=2),
        outcome("local", when="sampled", epochs=2),
    )
    assert distance(ours[1], theirs[1]) < 1e-12
    assert distance(ours[2], theirs[2]) < 1e-12
    assert distance(ours[0].params, toy_task().params) == 0.0


def test_lg_fedavg_is_fedper_with_the_other_layers() -> None:
    assert distance(outcome("lg-fedavg"), outcome("fedper", personal="all-but-last")) == 0.0


@pytest.mark.parametrize(
    ("name", "personal"), [("fedper", HEAD), ("lg-fedavg", BODY), ("fedrep", HEAD)]
)
def test_personal_layers_do_not_travel(name: str, personal: set[str]) -> None:
    setting = on_toy(name)
    cohort, state = np.array([0, 2, 5]), setting.init_server_state()
    cost = factory.make_engine(setting).train(state, cohort, 0)
    shared = {key: value for key, value in state.params.items() if key not in personal}
    assert set(setting.method.broadcast(state)) == set(cost.cohort_update.update) == set(shared)
    assert cost.bytes_down == cost.bytes_up == 3 * trees.nbytes(shared)
    assert set(setting.method.init_client_state(state)[0]) == personal


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("per+fedsim", {"at": "mean", "product": "exact"}),
        ("per+fedsim", {"at": "server"}),
        ("per+fedsim", {"at": "client", "first": "server"}),
        ("fedper", {"server_optimizer": "adam", "server_lr": 0.05}),
        ("fedper", {"server_momentum": 0.9}),
        ("per+scaffold", {}),
        ("per+feddyn", {}),
        ("fedmeta-per", {"inner": "meta-sgd"}),
    ],
)
def test_the_servers_copy_never_moves(name: str, hyper: dict[str, Any]) -> None:
    setting = on_toy(name, **hyper)
    first, (state, engine) = setting.init_server_state(), train(setting, 2, 3)
    names = frozenset(HEAD)
    for before, after in ((first.params, state.params), (first.aux, state.aux)):
        assert distance(trees.select(before, names, True), trees.select(after, names, True)) == 0.0
    assert (
        distance({key: first.params[key] for key in BODY}, {key: state.params[key] for key in BODY})
        > 1e-3
    )
    own = engine.client_states.gather(EVERYBODY, setting.method.init_client_state(state))[0]
    heads = trees.leaves(trees.select(own, names, True))
    moved = (heads[0] - heads[0][-1]).flatten(1).abs().amax(1) > 1e-4  # the last one is new
    assert moved.tolist() == engine.client_states.initialized.tolist()


def sgd(
    setting: EngineContext,
    purpose: Stream,
    client: int,
    phase: int,
    plan: BatchPlan,
    lr: float,
    start: Params,
    names: set[str],
) -> Params:
    """SGD on some of the parameters with torch.optim, on the batches of a phase."""
    model = module_of(start)
    optimizer = torch.optim.SGD(
        [value for name, value in model.named_parameters() if name in names], lr
    )
    key = prng.fold(setting.derive_keys(purpose, 0, [client])[0], phase)
    for (batch,) in iter_batches(plan, ClientWork(setting.make_client_dataset(), client, key)):
        real = batch.mask > 0
        model.zero_grad()
        nn.functional.cross_entropy(model(batch.x[real]), batch.y[real]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def test_fedrep_fits_the_head_and_then_the_base() -> None:
    setting = on_toy(
        "fedrep", head_epochs=3, head_lr=0.2, epochs=2, server_lr=0.7, finetune_steps=None
    )
    engine, state, people = (
        factory.make_engine(setting),
        setting.init_server_state(),
        np.array([0, 2, 4]),
    )
    ends = []
    for who in map(int, people):
        plans = [BatchPlan((BatchSpec("train", 8),), epochs=epochs) for epochs in (3, 2)]
        fitted = sgd(setting, Stream.CLIENT, who, 0, plans[0], 0.2, state.params, HEAD)
        ends.append(sgd(setting, Stream.CLIENT, who, 1, plans[1], 0.1, fitted, BODY))
    new = engine.update_server(state, engine.train(state, people, 0).cohort_update, 0)
    stacked = trees.stack(ends)
    for name in BODY:
        wanted = state.params[name] + 0.7 * (stacked[name].mean(0) - state.params[name])
        assert distance(new.params[name], wanted) < 1e-12
    memory = engine.client_states.gather(people, setting.method.init_client_state(state))[0]
    assert distance(memory, {name: stacked[name] for name in memory}) < 1e-12
    given, own = setting.method.broadcast(new), (trees.take_row(memory, 1), ())
    tuned = run_single_client(
        setting.method.personalize,
        given,
        own,
        ClientWork(
            setting.make_client_dataset(), 2, setting.derive_keys(Stream.PERSONALIZE, 0, [2])[0]
        ),
    )
    plan = BatchPlan((BatchSpec("adapt", 8),), epochs=5)
    assert (
        distance(
            tuned, sgd(setting, Stream.PERSONALIZE, 2, 0, plan, 0.2, {**given, **own[0]}, HEAD)
        )
        < 1e-12
    )


def test_fedmeta_per_without_an_inner_step_is_fedper_on_the_query_examples() -> None:
    plain = methods.build("fedavg", toy_task(), batch=8, epochs=2)
    (phase,) = plain.client.phases
    on_query = phase._replace(plan=phase.plan._replace(specs=(BatchSpec("query", 8),)))
    averaging = plain._replace(client=plain.client._replace(phases=(on_query,)), weight_by="query")
    setting = toy_setting(
        personal_layers.wrap_method(averaging, toy_task(), frozenset(HEAD)), data=DATA
    )
    theirs, engine = train(setting, 3, 4)
    ours, own = train(on_toy("fedmeta-per", alpha=0.0, epochs=2), 3, 4)
    assert distance(ours.params, theirs.params) < 1e-12
    rows = [
        each.client_states.read_rows(each.client_states.initialized.nonzero()[:, 0].numpy())
        for each in (engine, own)
    ]
    assert distance(*rows) < 1e-12
    assert distance(ours.params, trained("fedper", 3, 4, data=DATA, epochs=2).params) > 1e-3


def test_averaged_heads_predict_though_clients_train_their_own() -> None:
    setting = on_toy("fedper", average_heads=True, epochs=2, weigh="clients")
    engine, theta = factory.make_engine(setting), setting.task.params
    loop, heads = run_rounds(setting, engine, setting.init_server_state(), 3), dict[int, Params]()
    plan = setting.method.client.phases[0].plan
    for number in range(3):
        done, ends = next(loop), []
        for who in map(int, done.cohort):
            start = {**theta, **heads.get(who, {})}
            ends.append(descended(setting, Stream.CLIENT, who, plan, 0.1, start, number))
            heads[who] = {name: ends[-1][name] for name in HEAD}
        theta = trees.apply(lambda *each: torch.stack(each).mean(0), *ends)
        assert distance(done.state.params, theta) < 1e-12
    assert len(heads) < 9  # somebody came twice, with a head of their own
    plain = on_toy("fedavg", epochs=2)
    expected = factory.make_engine(plain).score(done.state, EVERYBODY)
    assert distance(tuple(engine.score(done.state, EVERYBODY)), tuple(expected)) < 1e-12
    cost = factory.make_engine(plain).train(plain.init_server_state(), done.cohort, 0)
    assert (done.cost.bytes_down, done.cost.bytes_up) == (cost.bytes_down, cost.bytes_up)
    assert distance(theta, trained("fedavg", 3, 3, data=DATA, epochs=2).params) > 1e-3


@pytest.mark.parametrize(
    ("personal", "names"),
    [
        ("last", HEAD),
        ("head", HEAD),
        ("all-but-last", BODY),
        ("body", BODY),
        ("body,head", HEAD | BODY),
        ("all", HEAD | BODY),
        ("none", set()),
        (None, set()),
        ("head.bias", {"head.bias"}),
    ],
)
def test_layers_are_chosen_by_word_or_by_name(personal: str | None, names: set[str]) -> None:
    assert personal_layers.select_param_names(toy_task(), personal) == names


@pytest.mark.parametrize(
    ("name", "hyper", "said"),
    [
        (
            "fedper",
            {"personal": "hed"},
            "personal: there is no layer 'hed'; there are body, head, and the words last",
        ),
        ("fedrep", {"personal": "body,"}, "personal: there is no layer ''; there are body, head"),
        ("fedper", {"personal": 1.5}, "fedper: personal must be text, got 1.5."),
        ("fedper", {"offer": -1}, "fedper: offer must not be negative, got -1."),
        (
            "fedper",
            {"offer": 2, "average_heads": True},
            "fedper: averaged heads leave none to offer; set offer=0.",
        ),
        ("fedrep", {"head_epochs": -1}, "fedrep: head_epochs must not be negative, got -1."),
        (
            "per+local",
            {"when": "sampled"},
            "personal layers: local sends nothing, so everything is personal already.",
        ),
        ("per+centralized", {}, "personal layers: centralized has one client, the pool"),
        ("per+fedper", {}, "personal layers: fedper has personal layers already."),
        ("per+per+fedavg", {}, "personal layers: fedavg has personal layers already."),
        ("per+afml", {}, "personal layers: afml adapts its head to every client already"),
        ("per+fsl-p+fedavg", {}, "personal layers: fedavg learns at the server; put it outside"),
        (
            "per+scaffold",
            {"offer": 1},
            "personal layers: scaffold keeps more at a client than layers",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, hyper: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        methods.build(name, toy_task(), **hyper)


def test_a_wrapped_method_is_tagged() -> None:
    plain = methods.build("fedavg", toy_task())
    for personal in ("last", "none"):
        hparams = personal_layers.HParams(personal=personal)
        assert personal_layers.build(toy_task(), hparams, plain).tags == {"personal-layers"}
    for name in ("fedper", "lg-fedavg", "fedrep", "fedmeta-per", "per+scaffold"):
        assert methods.build(name, toy_task()).tags == {"personal-layers"}, name
    assert methods.build("fedper", toy_task(), average_heads=True).tags == {"personal-layers"}


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("no-broadcast", "sends nothing, so everything is personal already."),
        ("personal-layers", "has personal layers already."),
        ("adapts-head", "adapts its head to every client already"),
        ("server-learning", "learns at the server; put it outside"),
    ],
)
def test_a_method_from_elsewhere_is_refused_by_its_tag(tag: MethodTag, said: str) -> None:
    method = methods.build("fedavg", toy_task())._replace(name="theirs", tags=frozenset({tag}))
    with pytest.raises(InputError, match=f"^personal layers: theirs {said}"):
        personal_layers.build(toy_task(), personal_layers.HParams(), method)


def test_layers_are_offered_only_if_a_client_keeps_nothing_else() -> None:
    stateless = methods.build("fedavg", toy_task())._replace(name="theirs")
    stateful = stateless._replace(init_client_state=lambda state: state.params)
    hparams = personal_layers.HParams(offer=2)
    assert personal_layers.build(toy_task(), hparams, stateless).num_offered_states == 2
    with pytest.raises(InputError, match=r"^personal layers: theirs keeps more at a client"):
        personal_layers.build(toy_task(), hparams, stateful)
