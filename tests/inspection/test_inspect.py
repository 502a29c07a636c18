"""Whether the server's data help: trials against plain loops, verdicts against data whose worth is
known.
"""

import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedtailor.cli.inspect import inspect as command
from fedtailor.data import ClientExamples, FederatedDataset, single_client
from fedtailor.errors import InputError
from fedtailor.inspection.closeness import Closeness
from fedtailor.inspection.inspect import Inspection, inspect
from fedtailor.inspection.statistics.gradients import GradientGaps
from fedtailor.inspection.text import (
    describe_needed_examples,
    describe_verdict,
    draw_bars,
    format_inspection,
)
from fedtailor.inspection.trials import (
    SCORED_ROUNDS,
    TRIAL_ROUNDS,
    WARMUP_ROUNDS,
    InspectionTrial,
    build_bench,
    subsample_server,
)
from fedtailor.training import from_config
from fedtailor.training.config import RunConfig
from fedtailor.training.overrides import read_run_config
from scenarios import split

CLASSES, CLIENTS, EACH = 6, 18, 24
CENTRES = np.random.default_rng(3).normal(size=(CLASSES, 8)) * 1.2 + 4.0


def examples(labels: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """A cloud around each label's center."""
    return np.asarray(CENTRES[labels] + np.random.default_rng(seed).normal(size=(len(labels), 8)))


def clouds(server: NDArray[np.int64], given: NDArray[np.int64] | None = None) -> FederatedDataset:
    """Clients with one label each; the server sees clouds of its labels, and is told `given`."""
    y = np.repeat(np.arange(CLIENTS) % CLASSES, EACH)
    rows = np.arange(CLIENTS * EACH).reshape(CLIENTS, EACH)
    people = np.arange(CLIENTS)
    own = single_client(examples(server, 2), server if given is None else given)
    return FederatedDataset(
        name="clouds",
        clients=ClientExamples(
            examples(y, 1),
            y,
            {"train": split(list(rows[:, :16])), "test": split(list(rows[:, 16:]))},
        ),
        client_names=people.astype(str),
        groups={
            "train": people[:10],
            "participating": people[:10],
            "validation": people[10:15],
            "unseen": people[15:],
        },
        server=own,
        classes=CLASSES,
    )


LABELS = np.resize(np.arange(CLASSES), 240)
SHUFFLED = np.random.default_rng(5).permutation(LABELS)


def spec(*words: str) -> RunConfig:
    return read_run_config(
        [
            "model=linear",
            "cohort=2",
            "lr=0.1",
            "batch=8",
            "precision=float64",
            "method=fedavg",
            *words,
        ]
    )


def looked(data: FederatedDataset, **tried: Any) -> Inspection:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_config, "load_dataset", lambda _: data)
        return inspect(spec(), **tried)


@pytest.fixture(scope="module")
def right() -> Inspection:
    """Of a server whose labels are right."""
    return looked(clouds(LABELS))


def test_right_labels_help_and_shuffled_ones_harm(right: Inspection) -> None:
    wrong = looked(clouds(LABELS, SHUFFLED), betas=())
    assert right.verdict == "helps"
    assert not right.is_suspect
    assert wrong.verdict == "harms"
    assert wrong.is_suspect
    assert right.baseline == wrong.baseline
    assert right.server_score > 2 * wrong.server_score
    assert describe_verdict(right).startswith("The server's data should help (+")
    assert "labels do not match its inputs" in describe_verdict(wrong)


def test_nothing_of_test_examples_and_unseen_clients_is_looked_at(right: Inspection) -> None:
    data = clouds(LABELS)
    splits = data.clients.splits
    hidden = np.concatenate(
        [
            splits["test"].index,
            *(splits["train"].get_rows(int(one)) for one in data.groups["unseen"]),
        ]
    )
    x, y = data.clients.x.copy(), data.clients.y.copy()
    x[hidden], y[hidden] = 1e6, (y[hidden] + 3) % CLASSES
    other = replace(data, clients=data.clients._replace(x=x, y=y))
    assert looked(other, betas=(), fractions=()) == right._replace(betas=[], fractions=[])
    assert "No test example and no unseen client is used" in right.scope


def test_a_trial_goes_on_where_the_warm_model_is_and_scores_validation_clients() -> None:
    data = clouds(LABELS)
    place = build_bench(spec(), data)
    models = list(
        place.iter_rounds(
            "fsl", place.task.params, 0, WARMUP_ROUNDS + TRIAL_ROUNDS, gamma=0.0, server_lr=1.0
        )
    )
    rows = np.concatenate(
        [data.clients.splits["train"].get_rows(int(one)) for one in data.groups["validation"]]
    )
    train = np.concatenate(
        [data.clients.splits["train"].get_rows(int(one)) for one in data.groups["train"]]
    )
    seen = data.clients.x[train]
    centered = (
        (data.clients.x - seen.mean(axis=0))
        * 10
        / math.sqrt(((seen - seen.mean(axis=0)) ** 2).sum(1).mean())
    )
    hits = []
    for model in models[-SCORED_ROUNDS:]:
        weight, bias = (value.numpy() for value in model.values())
        hits.append(
            np.mean((centered[rows] @ weight.T + bias).argmax(axis=1) == data.clients.y[rows])
        )
    assert place.run_server_learning(0.0, models[WARMUP_ROUNDS - 1]).score == pytest.approx(
        np.mean(hits)
    )


def test_a_part_of_the_servers_data_is_some_of_it() -> None:
    data = clouds(LABELS)
    few = subsample_server(data, 0.25).server
    assert few is not None
    assert few.x.shape == (60, 8)
    own = {tuple(row) for row in data.server.x} if data.server else set()
    assert {tuple(row) for row in few.x} < own
    assert subsample_server(data, 1.0) is data


def found(
    gammas: tuple[float | None, ...], agreement: float = 0.8, judged: int = 1000, **more: Any
) -> Inspection:
    """An inspection with these scores; without server data it is 0.7."""
    gaps = GradientGaps(2.0, 1.0, 4.0, 4.0, 2.0, 1.0, 1.0)
    near = Closeness(0.1, 0.2, None, None, None, gaps, 0.0, None)
    trials = [
        InspectionTrial(value, score) for value, score in zip((0.1, 0.3, 1.0), gammas, strict=True)
    ]
    without, betas = (
        InspectionTrial(0.0, 0.7),
        [InspectionTrial(0.0, 0.7), InspectionTrial(0.25, 0.72)],
    )
    given = {"betas": betas, "fractions": [], "baseline": without} | more
    return Inspection(
        "toy", 100, "", judged, 0.7, agreement, 0.1, gammas=trials, closeness=near, **given
    )


@pytest.mark.parametrize(
    ("inspection", "said", "gamma"),
    [
        (found((0.705, 0.73, 0.72)), "helps", 0.3),
        (found((0.705, 0.70, 0.66)), "little", 0.1),
        (found((0.705, 0.68, 0.60)), "harms", 0.1),
        (found((0.75, 0.73, 0.68), agreement=0.12), "harms", 1.0),
        (found((0.75, 0.73, 0.75), agreement=0.12), "helps", 1.0),
        (found((0.70, None, None)), "harms", 0.1),
        (found((0.705, 0.72, 0.70), judged=60), "little", 0.3),
    ],
)
def test_verdicts_by_their_rule(inspection: Inspection, said: str, gamma: float) -> None:
    assert inspection.verdict == said
    assert inspection.best_gamma.value == gamma
    assert json.loads(json.dumps(format_inspection(inspection), allow_nan=False))["verdict"] == said


def test_the_cosine_is_of_the_two_gradients() -> None:
    assert found((0.7, 0.7, 0.7)).closeness.gradient_cosine == pytest.approx(0.5)


def test_errors_are_gained_in_parts_of_the_error() -> None:
    inspection = found((-1.0, -1.9, -2.2), baseline=InspectionTrial(0.0, -2.0))
    assert inspection.compute_gain(inspection.gammas[0]) == pytest.approx(0.5)
    assert inspection.predicted_gain == pytest.approx(-0.1)
    assert "+50.0 % of the error" in describe_verdict(inspection)


def test_how_much_would_be_enough() -> None:
    quarter, half = InspectionTrial(0.25, 0.715), InspectionTrial(0.5, 0.728)
    assert describe_needed_examples(found((0.7, 0.73, 0.7), fractions=[quarter, half])).startswith(
        "About 50 of its 100 examples would help"
    )
    assert describe_needed_examples(found((0.7, 0.73, 0.7), fractions=[quarter])).startswith(
        "Half of its 100 examples would help less"
    )


def test_the_picture_shows_gains_to_the_right_and_losses_to_the_left() -> None:
    lines = list(draw_bars(found((0.71, 0.69, None))))
    marks = {line.strip().split("  ")[0]: line for line in lines[1:]}
    assert marks["gamma = 0.1 (fsl)"].endswith("|########")
    assert marks["gamma = 0.3 (fsl)"].endswith("########|")
    assert marks["gamma = 1 (fsl)"].endswith("diverged")
    assert marks["beta = 0.25 (fedsim)"].endswith("|################")


def test_data_that_cannot_be_looked_at_are_refused_in_a_sentence() -> None:
    data = clouds(LABELS)
    with pytest.raises(
        InputError, match=r"the server of data set 'clouds' has no examples; hold some out"
    ):
        looked(replace(data, server=None))
    with pytest.raises(
        InputError, match=r"the server of data set 'clouds' must have at least 2 examples, got 1; "
    ):
        looked(subsample_server(data, 0.001))
    nobody = data.groups | {"validation": np.zeros(0, dtype=np.int64), "unseen": np.arange(10, 18)}
    with pytest.raises(
        InputError, match=r"data set 'clouds' has no validation clients to score models on; "
    ):
        looked(replace(data, groups=nobody))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("method=fedsm", "There is no method 'fedsm'; did you mean fedsim?"),
        ("fedsim", "'fedsim' is neither FILE.toml nor KEY=VALUE."),
        ("data.server=0", "inspect: the server of data set 'digits' has no examples; "),
        ("lam=1", "fedavg has no hyper-parameter 'lam'; "),
    ],
)
def test_wrong_words_end_in_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        command([words])
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_wrong_word_exits_with_2_and_no_traceback() -> None:
    words = [sys.executable, "-m", "fedtailor", "inspect", "method=fedsm"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "fedtailor: There is no method 'fedsm'; did you mean fedsim?\n"
    assert done.stdout == ""


def test_the_command_prints_reasons_bars_and_the_verdict(
    right: Inspection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedtailor.inspection.inspect.inspect", lambda *_: right)
    command([])
    shown = capsys.readouterr().out.rstrip().split("\n\n")
    assert shown[0].startswith("clouds: 240 examples at the server")
    assert "gamma = 1 (fsl)" in shown[1]
    assert shown[1].count("% of the data (fsl)") == 2
    command([], as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert " ".join(shown[2].split()) == content["message"]
    assert [each["value"] for each in content["gammas"]] == [0.1, 0.3, 1.0]
    assert content["closeness"]["conditions"]["angle"].keys() == {"left", "right", "is_met"}
