"""Training stops when validation clients improve no more; test clients have no part in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.cli.train import _make_title
from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import InputError
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.tune import compute_validation_score
from fedtailor.reporting.html.wording import describe_run_state
from fedtailor.training import from_config
from fedtailor.training.early_stopping import has_stopped_improving
from fedtailor.training.overrides import read_comparison
from fedtailor.training.record.schema import MetricInfo, RoundEntry, RunRecord
from fedtailor.training.record.summary import compute_convergence, compute_final_window
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import SMALL, left, process, small

# Such steps make models worse soon, so that some rounds are enough.
WORDS = [
    "method=fedavg", "lr=1.5", "rounds=30", "evaluate_every=2", "patience=2", "checkpoint_every=5",
    "data.validation_clients=0.2",
]  # fmt: skip


def make_entries(values: list[float | None]) -> list[RoundEntry]:
    """Rounds with these figures of validation clients, and others of test clients; a round without
    scores after each.
    """
    work = dict.fromkeys(set(RoundEntry.model_fields) - {"round", "scores"}, 0)
    entries = []
    for index, value in enumerate(values):
        scores: Any = {
            "participating": {"before": {"accuracy": 0.0}, "after": {"accuracy": index / 9}},
            "validation": {"before": {"accuracy": index / 9}, "after": {"accuracy": value}},
        }
        entries.append(RoundEntry(round=2 * index + 1, scores=scores, **work))
        entries.append(RoundEntry(round=2 * index + 2, scores=None, **work))
    return entries


@pytest.mark.parametrize(
    ("values", "patience", "expected"),
    [
        ([0.1, 0.2, 0.3], 1, False),
        ([0.1, 0.3, 0.2], 1, True),
        ([0.1, 0.3, 0.3], 1, True),  # equal is no better
        ([0.1, 0.3, 0.2], 2, False),
        ([0.1, 0.3, 0.2, 0.25], 2, True),  # better than the one before, not than the best
        ([0.1, 0.3, 0.2, 0.31], 2, False),
        ([0.3, None], 1, True),
        ([None, None], 2, True),
        ([None, 0.1], 1, False),
        ([0.3, 0.2, 0.1, 0.0], None, False),
        ([], 1, False),
    ],
)
def test_patience(values: list[float | None], patience: int | None, expected: bool) -> None:
    higher = MetricInfo(name="accuracy", higher_is_better=True)
    assert has_stopped_improving(make_entries(values), higher, patience) == expected
    lower = MetricInfo(name="accuracy", higher_is_better=False)
    losses = [None if value is None else -value for value in values]
    assert has_stopped_improving(make_entries(losses), lower, patience) == expected


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has stopped early."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert start_run(small(*WORDS), out).is_finished
    return out


def test_it_stops_at_the_first_round_where_it_should(whole: Path) -> None:
    record = RunDir(whole).read_record()
    figures = [
        entry.scores["validation"]["after"]["accuracy"] for entry in record.rounds if entry.scores
    ]
    best, stop = -1.0, 0
    for index, figure in enumerate(figures):
        assert figure is not None
        if figure > best:
            best, stop = figure, index + 2
    assert len(figures) == stop + 1
    rounds_done = 2 * len(figures)
    assert rounds_done < 30
    assert record.stopped_early_after == record.num_rounds == len(record.rounds) == rounds_done
    assert (record.status, record.config.rounds) == ("finished", 30)


def test_the_last_round_stands(whole: Path, tmp_path: Path) -> None:
    """The run is one of as many rounds, without patience."""
    record = RunDir(whole).read_record()
    words = [word for word in WORDS if word != "patience=2"]
    start_run(small(*words, f"rounds={record.num_rounds}"), tmp_path / "out")
    found, expected = left(whole), left(tmp_path / "out")
    for kept in (found, expected):
        for key in ("config", "stopped_early_after"):
            kept["record"].pop(key)
        kept["record"]["choices"].pop("compile_reason")
        kept["record"]["checksums"].pop("config")
    assert found == expected


def test_what_is_computed_from_the_number_of_rounds(whole: Path) -> None:
    record = RunDir(whole).read_record()
    total = len(record.rounds)
    assert record.final_window == compute_final_window(record.rounds, total)
    assert record.convergence == compute_convergence(record.rounds, total, record.metric, None)
    window = record.final_window
    assert window is not None
    assert window.eval_points[-1] == total
    value = window.mean["validation"]["after"]["accuracy"]
    assert compute_validation_score(record) == value


def with_other_test_labels(data: FederatedDataset) -> FederatedDataset:
    """The same, but that every test label of participating and unseen clients is another."""
    changed = data.clients.y.copy()
    split = data.clients.splits["test"]
    for client in np.concatenate([data.groups["participating"], data.groups["unseen"]]):
        rows = split.index[split.offsets[client] : split.offsets[client + 1]]
        changed[rows] = (changed[rows] + 1) % 10
    other = object.__new__(FederatedDataset)
    other.__dict__.update(data.__dict__ | {"clients": data.clients._replace(y=changed)})
    return other


def test_test_clients_have_no_part_in_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = from_config.load_dataset
    monkeypatch.setattr(
        from_config, "load_dataset", lambda spec: with_other_test_labels(load(spec))
    )
    other = start_run(small(*WORDS), tmp_path / "out").record
    record = RunDir(whole).read_record()
    assert other.stopped_early_after == record.stopped_early_after
    model = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert model == (whole / "model.safetensors").read_bytes()
    assert other.summary is not None
    assert record.summary is not None
    for group in ("participating", "unseen"):
        assert other.summary[group] != record.summary[group]


def test_stopped_or_killed_it_stops_where_it_would_have(whole: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    stops = iter([False] * 2 + [True])
    start_run(small(*WORDS), stopped, should_stop=stops.__next__)
    assert resume_run(stopped).is_finished
    assert left(stopped) == left(whole)
    # The last time, before it writes the model: after the checkpoint of the last round.
    ends = set()
    for at in (40, 75):
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        child = process(WORDS, out, at)
        child.start()
        child.join()
        ends.add(child.exitcode)
        resume_run(out)
        assert left(out) == left(whole)
    assert -9 in ends


def test_killed_between_the_last_round_and_the_end(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedtailor.training import runner

    class Stop(Exception):  # noqa: N818
        pass

    def stop(*_: object) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(runner, "evaluate_final", stop)
        with pytest.raises(Stop):
            start_run(small(*WORDS), tmp_path / "out")
    assert len(RunDir(tmp_path / "out").read_rounds()) == len(RunDir(whole).read_record().rounds)
    resume_run(tmp_path / "out")
    assert left(tmp_path / "out") == left(whole)


def test_without_validation_clients_it_is_refused_at_the_start(tmp_path: Path) -> None:
    config = small("method=fedavg", "patience=2", "data.validation_clients=0")
    with pytest.raises(InputError) as caught:
        start_run(config, tmp_path / "out")
    assert str(caught.value) == (
        "patience: validation clients decide when to stop, but data set 'digits' has none; give it "
        "some (data.validation_clients=0.1) or leave patience out."
    )
    assert not (tmp_path / "out").exists()


def test_more_rounds_change_nothing(whole: Path) -> None:
    stop = RunDir(whole).read_record().stopped_early_after
    with pytest.raises(InputError) as caught:
        resume_run(whole, changes={"rounds": 50})
    assert str(caught.value).startswith(
        f"resume: the run in '{whole}' has stopped after {stop} rounds since patience=2, as it "
        "would have with 50; "
    )


def test_it_is_said(whole: Path) -> None:
    record = RunDir(whole).read_record()
    stop = record.num_rounds
    assert _make_title([record]) == (
        f"digits: {stop} rounds (of 30, stopped early by validation clients) of 4 clients"
    )
    other: RunRecord = record.model_copy(update={"stopped_early_after": None})
    assert _make_title([record, other]) == (
        f"digits: {stop} to 30 rounds (1 of 2 runs stopped early by validation clients) of 4 "
        "clients"
    )
    assert f"finished, stopped early after {stop} of 30 rounds, " in describe_run_state(record)
    words = [*SMALL, "fedavg", "budget=gradients", "seeds=0", "rounds=2", "patience=3"]
    comparison = read_comparison(words)
    _, message = apply_budget(comparison, comparison.make_run_configs())
    assert message.endswith(" With patience=3 a run may stop earlier and take less.")
