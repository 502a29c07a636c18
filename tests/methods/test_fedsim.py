import ast
import inspect
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agreement import distance
from fedtailor import prng
from fedtailor.core import trees
from fedtailor.core.types import Batch, Params, Routine
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import iter_batches, run_single_client
from fedtailor.methods import build, fedsim
from fedtailor.prng.streams import Stream
from scenarios import toy_data, toy_setting, toy_task, train, trained


def flat(params: Params) -> Tensor:
    return torch.cat([value.reshape(-1) for value in params.values()])


def shaped(vector: Tensor, like: Params) -> Params:
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def dense(setting: EngineContext, point: Params, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradient and whole Hessian on the real examples of a batch, as a vector and a matrix."""
    real = batch.mask > 0

    def loss(vector: Tensor) -> Tensor:
        outputs = setting.task.compute_outputs(shaped(vector, point), batch.x[real])
        return torch.nn.functional.cross_entropy(outputs, batch.y[real])

    return torch.func.grad(loss)(flat(point)), torch.func.hessian(loss)(flat(point))


def uploads(setting: EngineContext, cohort: np.ndarray) -> list[Params]:
    """The models phi_i that the clients end with, each trained by itself."""
    theta = setting.task.params
    results = [
        run_single_client(
            setting.method.client,
            theta,
            (),
            ClientWork(
                setting.make_client_dataset(), int(i), setting.derive_keys(Stream.CLIENT, 0, [i])[0]
            ),
        )
        for i in cohort
    ]
    return [trees.add(theta, result.update) for result in results]


def server_batches(setting: EngineContext) -> tuple[Batch, ...]:
    key = prng.fold(setting.derive_keys(Stream.SERVER, 0, [0])[0], 0)
    work = setting.method.correct_update or setting.method.server
    return next(
        iter(iter_batches(work.phases[0].plan, ClientWork(setting.make_server_dataset(), 0, key)))
    )


@pytest.mark.parametrize("first", ["weights", "scaled", "server"])
def test_the_round_is_algorithm_2_with_a_dense_hessian(first: str) -> None:
    beta, c, lam = 0.3, 0.2, 0.7
    setting = toy_setting(
        "fedsim", product="exact", beta=beta, c=c, lam=lam, first=first, server_batch=10
    )
    cohort, batches = setting.data.groups["train"], server_batches(setting)
    theta, corrected = flat(setting.task.params), []
    for model in uploads(setting, cohort):
        phi, hessian = flat(model), dense(setting, model, batches[0])[1]
        v = {"weights": theta - phi, "scaled": lam * (theta - phi)}.get(first)
        v = dense(setting, model, batches[1])[0] if v is None else v
        corrected.append(phi - beta * (v - c * hessian @ v))
    state, _ = train(setting, rounds=1, cohort=len(cohort))
    assert float((flat(state.params) - torch.stack(corrected).mean(0)).abs().max()) < 1e-12


def test_the_hessian_may_be_taken_at_theta_or_at_the_mean() -> None:
    for at in ("server", "mean"):
        setting = toy_setting("fedsim", product="exact", at=at, beta=0.3, c=0.2)
        cohort, batch = setting.data.groups["train"], server_batches(setting)[0]
        theta, phi = (
            flat(setting.task.params),
            torch.stack([flat(m) for m in uploads(setting, cohort)]).mean(0),
        )
        point = theta if at == "server" else phi
        hessian = dense(setting, shaped(point, setting.task.params), batch)[1]
        expected = phi - 0.3 * ((theta - phi) - 0.2 * hessian @ (theta - phi))
        state, _ = train(setting, rounds=1, cohort=len(cohort))
        assert float((flat(state.params) - expected).abs().max()) < 1e-12


def test_the_server_point_is_the_same_per_upload_and_on_the_mean() -> None:
    hyper = fedsim.HParams(at="server", product="exact", batch=8)
    on_the_mean = fedsim.build(toy_task(), hyper)
    step = on_the_mean.server.phases
    per_upload = on_the_mean._replace(
        correct_update=Routine(lambda state, change: change, step, lambda state, change: change),
        server=on_the_mean.server._replace(phases=()),
    )
    assert distance(trained(on_the_mean), trained(per_upload)) < 1e-12


IDENTITIES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("fedsim", {"beta": 0.0, "lam": 0.4}, "fedprox", {"lam": 0.4, "weigh": "clients"}),
    (
        "fedsim",
        {"c": 0.0, "beta": 0.25, "lam": 0.4},
        "fedprox",
        {"lam": 0.4, "server_lr": 1.25, "weigh": "clients"},
    ),
    ("fedprox", {"lam": 0.0}, "fedavg", {}),
    ("fedprox", {"lam": 0.0, "server_lr": 0.5}, "fedavg", {"server_lr": 0.5}),
    ("fedsim", {"beta": 0.0, "lam": 0.0}, "fedavg", {"weigh": "clients"}),
    ("fedsim", {"first": "scaled", "lam": 1.0}, "fedsim", {"lam": 1.0}),
]


@pytest.mark.parametrize(
    ("one", "its", "other", "others"), IDENTITIES, ids=[f"{i[0]}-{i[1]}" for i in IDENTITIES]
)
@pytest.mark.parametrize(
    "local", [{}, {"epochs": 3}, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "epochs", "adam"]
)
def test_identities(
    one: str, its: dict[str, Any], other: str, others: dict[str, Any], local: dict[str, Any]
) -> None:
    assert (
        distance(trained(one, **its, **local).params, trained(other, **others, **local).params)
        < 1e-12
    )


def test_the_identities_are_not_empty() -> None:
    runs = [
        trained("fedsim"),
        trained("fedsim", c=0.0),
        trained("fedsim", beta=0.0),
        trained("fedsim", lam=0.0),
    ]
    gaps = [distance(runs[0].params, other.params) for other in runs[1:]]
    assert min(gaps) > 1e-4


def test_the_finite_difference_converges_at_second_order() -> None:
    exact = trained("fedsim", rounds=1, product="exact").params
    steps = [0.4, 0.2, 0.1, 0.05]
    errors = [distance(trained("fedsim", rounds=1, h=h).params, exact) for h in steps]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(abs(order - 2.0) < 0.15 for order in orders)


def trained_once(**hyper: Any) -> Params:
    """One round at a later round number."""
    setting = toy_setting("fedsim", **hyper)
    state, engine = train(setting, rounds=0)
    state = state._replace(round=torch.tensor(hyper.pop("now", 5)))
    gathered = engine.train(state, setting.data.groups["train"], 5).cohort_update
    return engine.update_server(state, gathered, 5).params


def test_beta_decays_linearly_to_nothing() -> None:
    assert distance(trained_once(decay_rounds=10), trained_once(beta=0.125)) < 1e-12
    assert distance(trained_once(decay_rounds=5), trained_once(beta=0.0)) < 1e-12
    assert distance(trained_once(decay_rounds=10, decay="constant"), trained_once()) == 0.0


def test_one_server_batch_serves_the_whole_cohort() -> None:
    setting = toy_setting("fedsim", server_batch=4)
    engine = train(setting, rounds=0)[1]
    state, cohort = setting.init_server_state(), setting.data.groups["train"]
    alike = [engine.train(state, cohort[[i]], 0).cohort_update.update for i in range(3)]
    together = engine.train(state, cohort[:3], 0).cohort_update.update
    assert (
        distance(together, trees.scale(trees.add(trees.add(alike[0], alike[1]), alike[2]), 1 / 3))
        < 1e-12
    )


def test_without_curvature_no_server_data_is_needed() -> None:
    data = toy_data(server=0)
    setting = toy_setting("fedsim", data=data, c=0.0)
    assert distance(train(setting)[0].params, trained("fedsim", c=0.0).params) == 0.0


def count_code_lines(source: str) -> int:
    """Count the lines that are neither blank nor comments nor in docstrings."""
    docstring_rows: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        docstring_rows.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code = [
        row.partition("#")[0].strip()
        for number, row in enumerate(source.splitlines(), 1)
        if number not in docstring_rows
    ]
    return sum(bool(row) for row in code)


def test_the_code_of_fedsim_fits_beside_the_paper() -> None:
    assert count_code_lines(inspect.getsource(fedsim)) < 100
    assert build("fedsim", toy_task()).name == "fedsim"
