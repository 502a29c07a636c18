import hashlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedtailor as ft
from agreement import distance
from fedtailor import methods
from fedtailor.errors import DivergedError, InputError, RoutineError
from fedtailor.training.loop import Round
from scenarios import Net, toy_data, toy_task

DATA = toy_data()


def quick(
    method: Any = "fedavg", model: Any = Net, data: ft.FederatedDataset = DATA, **options: Any
) -> ft.FitResult:
    chosen: dict[str, Any] = {"rounds": 2, "cohort": 3, "batch": 8} | options
    fitted: ft.FitResult = ft.fit(method, model, data, **chosen)
    return fitted


def test_every_client_is_scored_before_and_after() -> None:
    fitted = quick(rounds=20, lr=0.3, cohort=9)
    assert list(fitted.scores) == ["participating", "validation", "unseen"]
    for group, scores in fitted.scores.items():
        assert list(scores.ids) == [f"client-{i}" for i in DATA.groups[group]]
        for figures in (scores.before, scores.after):
            assert set(figures) == {"loss", "accuracy"}
            assert all(values.shape == scores.ids.shape for values in figures.values())
        assert np.all(scores.weights["accuracy"] == 6)
    assert not np.array_equal(
        fitted.scores["participating"].after["loss"], fitted.scores["participating"].before["loss"]
    )


def test_scores_are_those_of_an_ordinary_loop() -> None:
    fitted = quick()
    model, rows = (
        fitted.context.task.to_module(fitted.params),
        DATA.clients.splits["test"].get_rows(4),
    )
    x = torch.from_numpy(DATA.clients.x[rows]).float()
    hits = (model(x).argmax(1).numpy() == DATA.clients.y[rows]).mean()
    assert fitted.scores["participating"].before["accuracy"][4] == pytest.approx(hits)


def test_costs_are_counted() -> None:
    fitted = quick(rounds=3, epochs=2)
    size = sum(p.numel() * 4 for p in Net().parameters())
    assert fitted.cost.bytes_down == fitted.cost.bytes_up == 3 * 3 * size
    seen: list[Round] = []
    again = quick(rounds=3, epochs=2, on_round_end=seen.append)
    sizes = DATA.clients.splits["train"].compute_sizes()
    assert again.cost.steps == sum(2 * -(-sizes[i] // 8) for done in seen for i in done.cohort)


def test_cohorts_are_the_same_for_every_method_and_differ_from_round_to_round() -> None:
    met: dict[str, list[list[int]]] = {name: [] for name in ("local", "fedavg", "fedsim")}
    for name, cohorts in met.items():
        quick(
            name,
            rounds=6,
            on_round_end=lambda done, cohorts=cohorts: cohorts.append(list(done.cohort)),
        )
    assert met["local"] == met["fedavg"] == met["fedsim"]
    assert len({tuple(cohort) for cohort in met["fedavg"]}) > 1
    assert all(len(set(cohort)) == 3 for cohort in met["fedavg"])


def test_first_weights_come_from_the_seed_or_from_the_model() -> None:
    drawn = [quick(model=Net, rounds=0, seed=seed).params for seed in (1, 1, 2)]
    assert distance(drawn[0], drawn[1]) == 0.0
    assert distance(drawn[0], drawn[2]) > 1e-3
    own = Net()
    assert distance(quick(model=own, rounds=0, seed=9).params, dict(own.state_dict())) == 0.0


def test_a_new_person_is_tailored_to() -> None:
    fitted = quick("fedsim", rounds=20, lr=0.2, cohort=9, finetune_epochs=30)
    rows = DATA.clients.splits["train"].get_rows(11)
    x, y = DATA.clients.x[rows], DATA.clients.y[rows]
    mine = fitted.personalize(x, y)
    inputs, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
    before = nn.functional.cross_entropy(
        fitted.context.task.to_module(fitted.params)(inputs), labels
    )
    assert nn.functional.cross_entropy(mine.compute_outputs(x), labels) < 0.8 * before
    assert (
        mine.to_module()(torch.from_numpy(x).float()).argmax(1).numpy() == mine.predict(x)
    ).all()
    assert (
        distance(
            fitted.params, quick("fedsim", rounds=20, lr=0.2, cohort=9, finetune_epochs=30).params
        )
        == 0.0
    )
    one = fitted.personalize(x[:1], y[:1])
    assert one.compute_outputs(x).shape == (len(x), 3)


def test_memory_may_live_in_files(tmp_path: Path) -> None:
    runs = [
        quick("local", when="sampled", client_state_dir=folder)
        for folder in (None, tmp_path / "client_state")
    ]
    everybody = np.arange(DATA.clients.count)
    kept = [
        run.engine.client_states.gather(everybody, run.context.method.init_client_state(run.state))
        for run in runs
    ]
    assert distance(*kept) == 0.0
    assert len(list((tmp_path / "client_state").iterdir())) == len(runs[0].params)


def test_regression_and_multilabel() -> None:
    draws = np.random.default_rng(0)
    x, client = draws.normal(size=(200, 5)).astype(np.float32), np.arange(200) % 10
    numbers = ft.from_arrays(x, (x @ draws.normal(size=5)).astype(np.float32), client)
    fitted = ft.fit("fedavg", nn.Linear(5, 1), numbers, rounds=30, cohort=5, lr=0.1)
    assert fitted.scores["unseen"].before["mae"].mean() < 0.3
    labels = ft.from_arrays(x, (x[:, :2] > 0).astype(np.float32), client)
    fitted = ft.fit("fedavg", ft.multilabel(nn.Linear(5, 2)), labels, rounds=30, cohort=5, lr=1.0)
    assert fitted.scores["unseen"].before["f1"].mean() > 0.9
    predicted = fitted.personalize(x[:9], (x[:9, :2] > 0).astype(np.float32)).predict(x)
    assert (predicted == (x[:, :2] > 0)).mean() > 0.9


def test_sequences_of_tokens() -> None:
    draws = np.random.default_rng(0)
    x = draws.integers(1, 6, size=(120, 7))
    y = (x % 5) + 1
    data = ft.from_arrays(x, y, np.arange(120) % 8, classes=6, tokens=True)
    model = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 6))
    fitted = ft.fit("fedavg", ft.sequences(model), data, rounds=40, cohort=4, lr=1.0)
    assert fitted.scores["unseen"].before["accuracy"].mean() > 0.95


class Branching(nn.Module):
    """Looks at its data, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if bool((x.abs() < 1e9).all()) else 2 * out


def test_a_model_that_cannot_be_vectorized_runs_one_by_one_and_says_why() -> None:
    fitted = quick(model=Branching)
    assert len(fitted.engine.notes) == 1
    assert "fedavg runs one client at a time, since vmap cannot run it: " in fitted.engine.notes[0]
    assert "data-dependent" in fitted.engine.notes[0]
    assert distance(fitted.params, quick(model=Branching, engine="sequential").params) == 0.0


class Picky(nn.Module):
    """Fails on one person's data."""

    def __init__(self, problem: Exception) -> None:
        super().__init__()
        self.layer, self.problem = nn.Linear(5, 3), problem

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 1234.0).any()):
            raise self.problem
        out: Tensor = self.layer(x)
        return out


FULL = "CUDA out of memory. Tried to allocate 2 GiB. Process 1 has 70 GiB in use."


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (RuntimeError("cannot digest 1234"), r"RuntimeError: cannot digest 1234$"),
        (
            torch.OutOfMemoryError(FULL),
            r"the device's memory is full; stack fewer clients \(chunk=8, say\) or .* "
            r"\(jobs=1\)\.$",
        ),
    ],
    ids=["any", "client_state"],
)
def test_an_error_names_stage_round_and_client(problem: Exception, said: str) -> None:
    data = toy_data()
    data.clients.x[data.clients.splits["train"].get_rows(3)] = 1234.0
    with pytest.raises(
        RoutineError, match=rf"fedavg: client work failed in round 0 for client 'client-3': {said}"
    ):
        quick(model=partial(Picky, problem), data=data, cohort=9, engine="sequential")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "fedsm"}, "There is no method 'fedsm'; did you mean fedsim?"),
    ({"lr": -1.0}, "fedavg: lr must be positive, got -1.0."),
    ({"lr": float("nan")}, "fedavg: lr must be a number, got nan."),
    ({"lr": "fast"}, "fedavg: lr must be a number, got 'fast'."),
    ({"epochs": 0}, "fedavg: epochs must be positive, got 0."),
    ({"optimizer": "sdg"}, "fedavg: optimizer must be sgd or adam or adamw, got 'sdg'."),
    ({"lamda": 1.0}, "fedavg has no hyper-parameter 'lamda'; "),
    ({"rounds": -1}, "fit: rounds must be a whole number and not negative, got -1."),
    (
        {"cohort": 10},
        "fedavg: 10 clients a round were asked for, but data set 'toy' has 9 to train on; ",
    ),
    ({"cohort": 0}, "fedavg: 0 clients a round were asked for"),
    ({"engine": "vectorised"}, "There is no engine 'vectorised'; did you mean vectorized?"),
    ({"chunk": 0}, "Engine: chunk must be a whole number of at least 1 client, got 0."),
    ({"device": "tpu"}, "Engine: device must be cpu, cuda or mps, got 'tpu'."),
    (
        {"method": "fedsim", "data": toy_data(server=0)},
        "fedsim: the server's work needs data, but data set 'toy' gives",
    ),
    ({"model": nn.Linear(4, 3)}, "Task: the model, run on 2 examples with x"),
    (
        {"model": nn.Linear(5, 1)},
        "Task: the model has outputs for 1 classes, but there is a label 2.",
    ),
    (
        {"model": nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))},
        "Task: layer '1' (BatchNorm1d) mixes the examples of a batch and keeps running "
        "statistics; convert the model "
        "with fedtailor.with_group_norm(model).",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_refused_with_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        quick(**options)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_converted_model_is_accepted() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    assert quick(model=ft.with_group_norm(model)).engine.notes == ()


def test_a_built_method_takes_no_more_options() -> None:
    task = toy_task()
    built = methods.build("fedavg", task, lr=0.2, batch=8)
    assert (
        distance(
            ft.fit(built, task, DATA, rounds=2, cohort=3).params, quick(model=task, lr=0.2).params
        )
        == 0.0
    )
    with pytest.raises(InputError, match="takes no more hyper-parameters, got lr"):
        ft.fit(built, task, DATA, rounds=2, cohort=3, lr=0.1)


def test_divergence_is_told() -> None:
    with pytest.raises(
        DivergedError,
        match=r"fedavg: the model's parameters were no longer finite after round \d; lower",
    ):
        quick(model=ft.regression(nn.Linear(5, 1)), data=_numbers(), rounds=9, lr=1e30)


def _numbers() -> ft.FederatedDataset:
    draws = np.random.default_rng(0)
    return ft.from_arrays(draws.normal(size=(60, 5)), draws.normal(size=60), np.arange(60) % 6)


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (
            np.ones((2, 4)),
            np.zeros(2, np.int64),
            "personalize: x must hold examples of shape (5,), as in training, got an array of "
            "shape (2, 4).",
        ),
        (np.full((2, 5), np.nan), np.zeros(2, np.int64), "personalize: x must be finite"),
        (np.ones((2, 5)), np.array([0, 7]), "personalize: "),
        (np.ones((0, 5)), np.zeros(0, np.int64), "personalize: "),
        (np.ones((2, 5)), np.zeros(3, np.int64), "personalize: "),
    ],
)
def test_a_new_person_with_bad_data_is_refused(x: np.ndarray, y: np.ndarray, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        quick(rounds=0).personalize(x, y)
    assert str(caught.value).startswith(sentence)


PROGRAM = """
import hashlib, numpy as np, torch
from functools import partial
import fedtailor as ft
from fedtailor.models import mlp
data = ft.digits(clients=12)
for name, options in (("fedsim", {}), ("local", {"when": "sampled"})):
    fitted = ft.fit(name, partial(mlp, 64, (16,), 10), data, rounds=3, cohort=4, seed=3, **options)
    digest = hashlib.sha256()
    template = fitted.context.method.init_client_state(fitted.state)
    memory = fitted.engine.client_states.gather(np.arange(12), template)
    for tensor in [*fitted.params.values(), *(memory.values() if memory else ())]:
        digest.update(tensor.contiguous().numpy().tobytes())
    print(digest.hexdigest())
"""


def test_two_processes_give_the_same_bytes() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(set(runs[0].stdout.split())) == 2
    assert hashlib.sha256(b"").hexdigest().encode() not in runs[0].stdout


ODD: list[tuple[dict[str, Any], str]] = [
    ({"rounds": "3"}, "fit: rounds must be a whole number and not negative, got '3'."),
    ({"cohort": 2.5}, "fit: cohort must be a whole number and not negative, got 2.5."),
    ({"seed": 1.5}, "fit: seed must be a whole number, got 1.5."),
    ({"method": None}, "fit: method must be a name or a Method, got None."),
    (
        {"model": "mlp"},
        "fit: model must be an nn.Module, a function that makes one, or a Task, got 'mlp'.",
    ),
    ({"data": (1, 2)}, "fit: data must be a FederatedDataset, got tuple."),
    ({"optimizer": "adam", "momentum": 0.9}, "fedavg: adam takes no momentum; it is for sgd."),
    (
        {"server_optimizer": "adam", "server_momentum": 0.9},
        "fedavg: adam takes no server_momentum.",
    ),
    ({"chunk": 2.5}, "Engine: chunk must be a whole number of at least 1 client, got 2.5."),
    ({"compile": "no"}, "Engine: compile must be True, False or 'training', got 'no'."),
    ({"batch": True}, "fedavg: batch must be a whole number, got True."),
]


@pytest.mark.parametrize(("options", "sentence"), ODD, ids=[row[1][:40] for row in ODD])
def test_values_of_odd_kinds_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        quick(**options)
    assert str(caught.value) == sentence


def test_numbers_of_numpy_will_do() -> None:
    fitted = quick(rounds=np.int64(2), lr=np.float32(0.1), batch=np.int64(8), seed=np.int64(3))
    assert distance(fitted.params, quick(lr=float(np.float32(0.1)), seed=3).params) == 0.0


class Centerd(nn.Linear):
    """Mixes the examples of a batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_a_model_that_mixes_examples_is_refused() -> None:
    with pytest.raises(InputError, match="depends on the others in its batch"):
        quick(model=Centerd(5, 3))


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_tokens_outside_the_vocabulary_are_refused_wherever_they_are(engine: str) -> None:
    x = np.ones((40, 4), dtype=np.int64)
    x[33, 2] = 25
    data = ft.from_arrays(x, np.ones_like(x), np.arange(40) % 8, classes=20, tokens=True)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 20))
    with pytest.raises(InputError, match="Task: the model, run on 4 examples"):
        ft.fit("fedavg", ft.sequences(model), data, rounds=1, cohort=2, engine=engine)


def test_personal_models_that_diverge_count_as_worst() -> None:
    fitted = quick(model=ft.classification(nn.Linear(5, 3)), finetune_lr=3e38)
    scores = fitted.scores["participating"]
    assert np.isinf(scores.after["loss"]).any()
    assert (scores.after["accuracy"][np.isinf(scores.after["loss"])] == 0.0).all()
    assert np.isfinite(scores.before["loss"]).all()
    rows = DATA.clients.splits["train"].get_rows(11)
    with pytest.raises(DivergedError, match="the personalized model is no longer finite"):
        fitted.personalize(DATA.clients.x[rows], DATA.clients.y[rows])


def test_divergence_is_told_in_the_round_in_which_it_happens() -> None:
    with pytest.raises(DivergedError, match="after round 2;"):
        quick(model=ft.regression(nn.Linear(5, 1)), data=_numbers(), rounds=30, lr=1e20)


def test_dense_classification_predicts_along_the_classes() -> None:
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(60, 1, 4, 4)).astype(np.float32), draws.integers(0, 3, (60, 4, 4))
    data = ft.from_arrays(x, y, np.arange(60) % 6, classes=3)
    fitted = ft.fit("fedavg", nn.Conv2d(1, 3, 1), data, rounds=1, cohort=2)
    assert fitted.personalize(x[:5], y[:5]).predict(x).shape == (60, 4, 4)


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (
            np.ones((2, 4)),
            r"predict: x must hold examples of shape \(5,\), as in training, got an array of "
            r"shape \(2, 4\)",
        ),
        (np.full((2, 5), np.nan), "predict: x must be finite, but has NaN or infinity"),
        (np.ones(5), r"got an array of shape \(5,\)"),
    ],
)
def test_predicting_from_bad_inputs_is_refused(x: np.ndarray, sentence: str) -> None:
    rows = DATA.clients.splits["train"].get_rows(11)
    mine = quick(rounds=0).personalize(DATA.clients.x[rows], DATA.clients.y[rows])
    with pytest.raises(InputError, match=sentence):
        mine.predict(x)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (1e300, "predict: x overflows the model's torch.float32 for example 2; check its numbers."),
        (3e38, "predict: the model's output is not finite for example 2; check its numbers."),
    ],
)
def test_predictions_that_overflow_are_refused(value: float, sentence: str) -> None:
    rows = DATA.clients.splits["train"].get_rows(11)
    model = nn.Linear(5, 3)
    nn.init.constant_(model.weight, 4.0)
    personal = quick(model=model, rounds=0, finetune_lr=1e-6).personalize(
        DATA.clients.x[rows], DATA.clients.y[rows]
    )
    x = np.ones((4, 5))
    x[2] = value
    with pytest.raises(InputError) as caught:
        personal.predict(x)
    assert str(caught.value) == sentence
    assert personal.predict(x[:2]).shape == (2,)


def test_scaled_integers_must_come_as_integers() -> None:
    data = ft.digits(clients=12)
    fitted = ft.fit(
        "fedavg", nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data, rounds=1, cohort=3
    )
    x, y = data.clients.x[:5], data.clients.y[:5]
    assert fitted.personalize(x, y).predict(x).shape == (5,)
    with pytest.raises(
        InputError, match="the training data were integers, which are scaled for the model"
    ):
        fitted.personalize(x, y).predict(x / 16.0)


def test_people_are_served_beside_each_other() -> None:
    fitted = quick(rounds=3)
    rows = [DATA.clients.splits["train"].get_rows(client) for client in (9, 10, 11)] * 4

    def serve(some: np.ndarray) -> Any:
        return fitted.personalize(DATA.clients.x[some], DATA.clients.y[some]).params

    with ThreadPoolExecutor(3) as pool:
        beside = list(pool.map(serve, rows))
    assert all(
        distance(params, serve(some)) == 0.0 for params, some in zip(beside, rows, strict=True)
    )


def test_what_was_fitted_pickles() -> None:
    fitted = quick(model=Net())
    copied = pickle.loads(pickle.dumps(fitted))
    assert distance(copied.params, fitted.params) == 0.0


def test_numbers_of_a_type_that_torch_lacks_are_converted() -> None:
    x = np.random.default_rng(0).normal(size=(40, 5))
    data = ft.from_arrays(x.astype(np.float32), (x[:, 0] > 0).astype(np.int64), np.arange(40) % 4)
    mine = ft.fit("fedavg", nn.Linear(5, 2), data, rounds=1, cohort=2).personalize(x, x[:, 0] > 0)
    expected = mine.predict(x)
    for other in (x.astype(np.longdouble), tuple(x.astype(np.longdouble).tolist())):
        assert mine.predict(other).tolist() == expected.tolist()
