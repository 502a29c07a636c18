"""What a record says in short, against figures worked out another way from what was trained."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import fedtailor as ft
from fedtailor.data.dataset import FederatedDataset
from fedtailor.engines import factory
from fedtailor.engines.context import EngineContext
from fedtailor.engines.sequential import run_single_client
from fedtailor.evaluation.evaluate import evaluate_final
from fedtailor.evaluation.per_class import MAX_CLASSES, build_class_metrics
from fedtailor.evaluation.summary import compute_convergence, compute_final_window
from fedtailor.prng.streams import Stream
from fedtailor.reporting.comparison_table import build_table
from fedtailor.training import build
from fedtailor.training.overrides import read_run_config
from fedtailor.training.prepare import prepare_context
from fedtailor.training.runner import start_run
from figures import accuracy, f1, f1_of_classes, log_loss
from interruptions import small

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
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("run") / "out"
    return out, start_run(small(*WORDS), out).record


def predictions(
    made: EngineContext, out: Path, group: str, passes: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every client's true labels and probabilities, by models that are tailored one by one."""
    params, data = load_file(out / "model.safetensors"), made.data
    state, true, said = made.init_server_state(params), [], []
    work = made.method.personalize
    if passes:
        plan = work.phases[0].plan._replace(epochs=passes)
        work = work._replace(phases=(work.phases[0]._replace(plan=plan),))
    else:
        work = work._replace(phases=())
    for who in data.groups[group].tolist():
        key = made.derive_keys(Stream.PERSONALIZE, 0, [who])[0]
        model = run_single_client(
            work, made.method.broadcast(state), (), made.make_client_dataset(), who, key
        )
        split = data.clients.splits["test"]
        rows = split.index[split.offsets[who] : split.offsets[who + 1]]
        x = torch.from_numpy(data.clients.x[rows]).to(made.task.dtype) * data.scale
        true.append(data.clients.y[rows])
        said.append(made.task.compute_outputs(model, x).double().softmax(1).numpy())
    return true, said


@pytest.mark.parametrize("group", ["participating", "unseen"])
@pytest.mark.parametrize(("when", "passes"), [("before", 0), ("after", 3), ("1", 1), ("5", 5)])
def test_the_summary_is_that_of_everybodys_own_model(
    done: tuple[Path, dict[str, Any]], group: str, when: str, passes: int
) -> None:
    out, record = done
    made = build.build_context(small(*WORDS), build.load_dataset(small(*WORDS)))
    true, said = predictions(made, out, group, passes)
    each = [accuracy(y, p.argmax(1)) for y, p in zip(true, said, strict=True)]
    scores = record["scores"][group]
    found = scores[when] if when in scores else scores["after_passes"][when]
    assert found["accuracy"] == pytest.approx(each)
    everything, probable = np.concatenate(true), np.concatenate(said)
    summary = record["summary"][group][when]
    assert summary == {
        "acc_micro": pytest.approx(accuracy(everything, probable.argmax(1))),
        "acc_macro": pytest.approx(np.mean(each)),
        "std": pytest.approx(np.std(each)),
        "worst_tenth": pytest.approx(min(each)),  # nine local clients and two new ones
        "loss": pytest.approx(log_loss(everything, probable), rel=1e-4),
        "f1_macro": pytest.approx(f1_of_classes(everything, probable.argmax(1))),
    }


def test_nothing_but_the_last_rounds_stands_for_a_run(done: tuple[Path, dict[str, Any]]) -> None:
    """Better rounds before them change nothing."""
    looks = [_look(number, 0.9 if number == 3 else 0.1 * (number % 3)) for number in range(1, 21)]
    found = compute_final_window(looks, 20)
    assert found["eval_points"] == [17, 18, 19, 20]
    assert found["mean"]["unseen"]["after"]["accuracy"] == pytest.approx(
        np.mean([0.2, 0.0, 0.1, 0.2])
    )
    record = done[1]
    assert record["final_window"]["eval_points"] == [4]
    assert record["final_window"]["mean"] == record["rounds"][-1]["scores"]
    assert list(record["final_window"]["mean"]) == ["validation", "participating", "unseen"]


def _look(number: int, value: float, every: int = 1) -> dict[str, Any]:
    figures = {"accuracy": value, "loss": None}
    scores = {"unseen": {"before": figures, "after": figures}}
    return {
        "round": number,
        "bytes_down": 3,
        "bytes_up": 2,
        "scores": scores if number % every == 0 else None,
    }


def test_how_fast_it_got_there() -> None:
    record = {
        "metric": {"name": "accuracy", "higher_is_better": True},
        "config": {"rounds": 100, "target": 0.31},
    }
    looks = [
        _look(number, number / 100, every=2) for number in range(1, 101)
    ]  # rolling over two rounds: one look
    assert compute_convergence(looks, record)["unseen"]["after"] == {
        "rise_time": 90,
        "T_0.5": 50,
        "target": 0.31,
        "rounds_to_target": 32,
        "bytes_to_target": 32 * 5,
    }
    falling = record | {
        "metric": {"name": "mae", "higher_is_better": False},
        "config": {"rounds": 100, "target": 0.04},
    }
    looks = [_look(number, 1 / number, every=5) | {} for number in range(1, 101)]
    for look in looks:
        if look["scores"]:
            look["scores"]["unseen"]["after"] = {"mae": 1 / look["round"]}
            look["scores"]["unseen"]["before"] = {"mae": 9.0}
    found = compute_convergence(looks, falling)["unseen"]
    assert (found["after"]["rounds_to_target"], found["after"]["T_0.5"]) == (25, None)
    assert (found["before"]["rounds_to_target"], found["before"]["bytes_to_target"]) == (None, None)


def test_the_record_tells_pace_and_where_values_come_from(
    done: tuple[Path, dict[str, Any]],
) -> None:
    record = done[1]
    looks = [entry["scores"]["participating"]["after"]["accuracy"] for entry in record["rounds"]]
    expected = next((number for number, value in enumerate(looks, 1) if value >= 0.3), None)
    assert record["convergence"]["participating"]["after"]["rounds_to_target"] == expected
    assert {name for name, where in record["origins"].items() if where == "given"} == {
        "finetune_epochs"
    }
    assert set(record["origins"].values()) == {"given", "default"}


def test_classes_are_counted_where_there_are_not_too_many(
    done: tuple[Path, dict[str, Any]],
) -> None:
    made = build.build_context(small(*WORDS), build.load_dataset(small(*WORDS)))
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
    rows = np.concatenate(
        [
            split.index[split.offsets[who] : split.offsets[who + 1]]
            for who in data.groups["participating"]
        ]
    )
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
    summary = record["summary"]["unseen"]
    assert list(summary) == ["before", "after", "1", "5"]
    assert "f1_macro" not in summary["after"]
    assert (
        summary["after"]["worst_tenth"] >= summary["after"]["acc_macro"]
    )  # an error: the worst is the largest
    assert record["convergence"]["unseen"]["after"]["T_0.5"] is None
    console = Console(file=StringIO(), width=100)
    console.print(build_table([record], "numbers"))
    printed = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert "Test figures (mae)" in printed
    assert f"{summary['1']['acc_macro']:.3f}" in printed
