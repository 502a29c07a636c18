"""Summaries of a run, against figures computed another way from what was trained."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import fedtailor as ft
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.base import ClientWork
from fedtailor.engines.context import EngineContext
from fedtailor.engines.single_client import run_single_client
from fedtailor.evaluation.evaluate import evaluate_final
from fedtailor.evaluation.per_class import MAX_CLASSES, build_class_metrics
from fedtailor.prng.streams import Stream
from fedtailor.reporting.comparison_table import build_tables
from fedtailor.training import from_config
from fedtailor.training.context import prepare_context
from fedtailor.training.overrides import read_run_config
from fedtailor.training.record.schema import Convergence, MetricInfo, RoundEntry, RunRecord
from fedtailor.training.record.summary import compute_convergence, compute_final_window
from fedtailor.training.runner import start_run
from figures import accuracy, f1, f1_of_classes, log_loss
from interruptions import small
from known import known
from rounds import make_round

WORDS = [
    "method=fedavg",
    "rounds=4",
    "seed=5",
    "finetune_epochs=3",
    "evaluate_every=1",
    "batch=20",
    "target=0.3",
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    out = tmp_path_factory.mktemp("run") / "out"
    return out, start_run(small(*WORDS), out).record


def predictions(
    made: EngineContext, out: Path, group: str, passes: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return labels and probabilities by client, from models personalized one by one."""
    data = made.data
    state = made.init_server_state(load_file(out / "model.safetensors"))
    labels = []
    probabilities = []
    work = made.method.personalize
    if passes:
        plan = work.phases[0].plan._replace(epochs=passes)
        work = work._replace(phases=(work.phases[0]._replace(plan=plan),))
    else:
        work = work._replace(phases=())
    for client_idx in data.groups[group].tolist():
        key = made.derive_keys(Stream.PERSONALIZE, 0, [client_idx])[0]
        model = run_single_client(
            work,
            made.method.broadcast(state),
            (),
            ClientWork(made.make_client_dataset(), client_idx, key),
        )
        rows = data.clients.splits["test"].get_rows(client_idx)
        x = torch.from_numpy(data.clients.x[rows]).to(made.task.dtype) * data.scale
        labels.append(data.clients.y[rows])
        probabilities.append(made.task.compute_outputs(model, x).double().softmax(1).numpy())
    return labels, probabilities


@pytest.mark.parametrize("group", ["participating", "unseen"])
@pytest.mark.parametrize(("stage", "passes"), [("before", 0), ("after", 3), ("1", 1), ("5", 5)])
def test_the_summary_is_that_of_every_clients_own_model(
    done: tuple[Path, RunRecord], group: str, stage: str, passes: int
) -> None:
    out, record = done
    made = from_config.build_context(small(*WORDS), from_config.load_dataset(small(*WORDS)))
    labels, probabilities = predictions(made, out, group, passes)
    accuracies = [accuracy(y, p.argmax(1)) for y, p in zip(labels, probabilities, strict=True)]
    scores = known(record.scores)[group]
    assert scores.get_stage(stage)["accuracy"] == pytest.approx(accuracies)
    all_labels = np.concatenate(labels)
    all_probabilities = np.concatenate(probabilities)
    predicted = all_probabilities.argmax(1)
    summary = known(record.summary)[group][stage]
    assert summary.model_dump() == {
        "tested": len(accuracies),
        "untested": 0,
        "diverged": 0,
        "acc_micro": pytest.approx(accuracy(all_labels, predicted)),
        "acc_macro": pytest.approx(np.mean(accuracies)),
        "std": pytest.approx(np.std(accuracies)),
        "worst_tenth": pytest.approx(min(accuracies)),  # of nine clients, and of two
        "loss": pytest.approx(log_loss(all_labels, all_probabilities), rel=1e-4),
        "f1_macro": pytest.approx(f1_of_classes(all_labels, predicted)),
    }


def test_nothing_but_the_last_rounds_stands_for_a_run(done: tuple[Path, RunRecord]) -> None:
    """Better rounds before them change nothing."""
    rounds = [
        _make_scored_round(number, 0.9 if number == 3 else 0.1 * (number % 3))
        for number in range(1, 21)
    ]
    window = compute_final_window(rounds, 20)
    assert window.eval_points == [17, 18, 19, 20]
    expected = np.mean([0.2, 0.0, 0.1, 0.2])
    assert window.mean["unseen"]["after"]["accuracy"] == pytest.approx(expected)
    assert window.mean["unseen"]["after"]["loss"] is None
    record = done[1]
    window = known(record.final_window)
    assert window.eval_points == [4]
    assert window.mean == record.rounds[-1].scores
    assert list(window.mean) == ["validation", "participating", "unseen"]


def _make_scored_round(number: int, value: float, every: int = 1) -> RoundEntry:
    """Return a round of a run that is evaluated every `every` rounds, with this accuracy."""
    scores = None
    if number % every == 0:
        figures = {"accuracy": value, "loss": None}
        scores = {"unseen": {"before": figures, "after": figures}}
    return make_round(number, scores, bytes_down=3, bytes_up=2)


def test_how_fast_it_got_there() -> None:
    accuracy_metric = MetricInfo(name="accuracy", higher_is_better=True)
    rounds = [_make_scored_round(number, number / 100, every=2) for number in range(1, 101)]
    # The mean rolls over two rounds, which is one evaluation.
    convergence = compute_convergence(rounds, 100, accuracy_metric, target=0.31)["unseen"]
    assert convergence["after"] == Convergence(
        rise_time=90,
        rounds_to_half=50,
        target=0.31,
        rounds_to_target=32,
        bytes_to_target=32 * 5,
    )


def test_how_fast_an_error_fell() -> None:
    error_metric = MetricInfo(name="mae", higher_is_better=False)
    rounds = []
    for number in range(1, 101):
        scores = None
        if number % 5 == 0:
            scores = {"unseen": {"before": {"mae": 9.0}, "after": {"mae": 1 / number}}}
        rounds.append(make_round(number, scores))
    convergence = compute_convergence(rounds, 100, error_metric, target=0.04)["unseen"]
    after = convergence["after"]
    assert (after.rise_time, after.rounds_to_half, after.rounds_to_target) == (None, None, 25)
    before = convergence["before"]
    assert (before.rounds_to_target, before.bytes_to_target) == (None, None)


def test_the_record_tells_pace_and_where_values_come_from(done: tuple[Path, RunRecord]) -> None:
    record = done[1]
    rounds_to_target = None
    for entry in record.rounds:
        value = known(known(entry.scores)["participating"]["after"]["accuracy"])
        if rounds_to_target is None and value >= 0.3:
            rounds_to_target = entry.round
    convergence = known(record.convergence)["participating"]["after"]
    assert convergence.target == 0.3
    assert convergence.rounds_to_target == rounds_to_target
    given = {name for name, origin in record.origins.items() if origin == "given"}
    assert given == {"finetune_epochs"}
    assert set(record.origins.values()) == {"given", "default"}


def test_classes_are_counted_where_there_are_not_too_many() -> None:
    made = from_config.build_context(small(*WORDS), from_config.load_dataset(small(*WORDS)))
    assert len(build_class_metrics(made)) == 10

    def with_classes(count: int | None) -> EngineContext:
        data: FederatedDataset = made.data
        held = {
            name: getattr(made, name)
            for name in ("method", "task", "seed", "device", "client_states")
        }
        changed = object.__new__(FederatedDataset)
        changed.__dict__.update(data.__dict__ | {"classes": count})
        return EngineContext(data=changed, **held)

    assert build_class_metrics(with_classes(None)) == ()
    assert len(build_class_metrics(with_classes(MAX_CLASSES))) == MAX_CLASSES
    assert build_class_metrics(with_classes(MAX_CLASSES + 1)) == ()


def test_several_labels_are_counted_one_by_one() -> None:
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(120, 5)), draws.integers(0, 2, (120, 3))
    data = ft.from_arrays(x, y, np.repeat(np.arange(10), 12), classes=None)
    made = prepare_context(
        "fedavg",
        ft.multilabel(torch.nn.Linear(5, 3).double()),
        data,
        rounds=1,
        cohort=2,
        finetune_epochs=0,
    )
    full = evaluate_final(
        made, factory.make_engine(made, "vectorized"), made.init_server_state(), ("participating",)
    )["participating"]
    split = data.clients.splits["test"]
    rows = np.concatenate([split.get_rows(idx) for idx in data.groups["participating"].tolist()])
    said = made.task.compute_outputs(made.task.params, torch.from_numpy(data.clients.x[rows])) > 0
    assert full.f1["before"] == pytest.approx(
        np.mean([*map(f1, data.clients.y[rows].T, said.numpy().T)])
    )
    assert full.after_passes == {}
    assert list(full.scores.after) == ["loss", "f1", "accuracy"]


NUMBERS = """
from torch import nn
def make():
    return nn.Linear(4, 1)
"""


def test_numbers_to_predict_have_no_accuracy(tmp_path: Path) -> None:
    draws = np.random.default_rng(1)
    x = draws.normal(size=(200, 4))
    np.savez(
        tmp_path / "my.npz",
        x=x,
        y=x.sum(1) + 0.1 * draws.normal(size=200),
        client=np.repeat(np.arange(10), 20),
    )
    (tmp_path / "own.py").write_text(NUMBERS)
    words = [
        f"data={tmp_path / 'my.npz'}",
        f"model={tmp_path / 'own.py'}:make",
        "method=fedavg",
        "rounds=3",
        "cohort=2",
    ]
    record = start_run(read_run_config([*words, "target=0.5", "lr=0.05"]), tmp_path / "out").record
    summary = known(record.summary)["unseen"]
    assert list(summary) == ["before", "after", "1", "5"]
    after = summary["after"]
    assert after.f1_macro is None
    # Of an error the worst is the largest.
    assert known(after.worst_tenth) >= known(after.acc_macro)
    assert known(record.convergence)["unseen"]["after"].rounds_to_half is None
    console = Console(file=StringIO(), width=100)
    console.print(build_tables([record], "numbers"))
    printed = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert "mae, before and after personalizing" in printed
    assert f"{summary['1'].acc_macro:.3f}" in printed
