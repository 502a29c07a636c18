"""Methods end where plain loops written from their papers end, which use nothing of this project.

The loops are handed initial weights, cohorts, the order of batches and the clients' weights.
"""

import ast
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agree
from anchor import page, plain_loops
from anchor.plain_loops import LOOPS, FedAvg
from anchor.published import PUBLISHED
from anchor.settings import CASES, Case, build_dataset, load_images, make_loop_settings
from anchor.sides import Loop, Ours, Way, compute_gap, prepare, weigh_clients
from fedtailor import data as sources
from fedtailor.data import FederatedDataset
from fedtailor.errors import InputError
from published_formats import write_cifar10
from results import load

ROUNDS = 2
COHORT = 3
CLIENTS = 5
TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def case() -> Case:
    return CASES["digits"]


@pytest.fixture(scope="module")
def data(case: Case) -> FederatedDataset:
    return build_dataset(case, load_images(case, None), CLIENTS, share=0.25)


def run_both(
    method: str,
    case: Case,
    data: FederatedDataset,
    *,
    engine: str = "vectorized",
    cohort: int = COHORT,
    rounds: int = ROUNDS,
    loop: type[FedAvg] | None = None,
) -> tuple[Ours, Loop]:
    """Return both sides of a method after some rounds."""
    way = Way(engine)
    context = prepare(method, case, data, cohort, 0, way)
    ours = Ours(context, cohort, way)
    theirs = Loop(method, case, context, cohort, loop)
    for _ in range(rounds):
        ours.train()
        theirs.train()
    return ours, theirs


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
@pytest.mark.parametrize("method", LOOPS)
def test_a_method_ends_where_its_plain_loop_ends(
    method: str, engine: str, case: Case, data: FederatedDataset
) -> None:
    ours, loop = run_both(method, case, data, engine=engine)
    assert compute_gap(ours, loop) < TOLERANCE
    assert ours.compute_accuracy() == pytest.approx(loop.compute_accuracy(), abs=1e-9)


@pytest.mark.parametrize("method", LOOPS)
def test_something_is_trained(method: str, case: Case, data: FederatedDataset) -> None:
    before, _ = run_both(method, case, data, rounds=0)
    after, _ = run_both(method, case, data)
    start = before.collect_predictors()
    end = after.collect_predictors()
    moved = [float((end[client] - start[client]).abs().max()) for client in end]
    assert max(moved) > 1e-3


def test_all_pairs_of_methods_end_apart(case: Case, data: FederatedDataset) -> None:
    ends = {}
    for method in LOOPS:
        _, loop = run_both(method, case, data, cohort=CLIENTS)
        predictors = loop.collect_predictors()
        ends[method] = torch.stack([predictors[client] for client in range(CLIENTS)])
    names = list(ends)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            assert float((ends[name] - ends[other]).abs().max()) > 1e-4, (name, other)


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("fedprox", {"lam": 0.11}),
        ("per-fedavg", {"alpha": 0.04}),
        ("pfedme", {"inner_steps": 4}),
        ("ditto", {"lam": 0.9}),
        ("apfl", {"alpha": 0.51}),
        ("fedrep", {"lr": 0.049}),
    ],
)
def test_another_number_in_the_loop_is_noticed(
    method: str, change: dict[str, Any], case: Case, data: FederatedDataset
) -> None:
    context = prepare(method, case, data, COHORT, 0, Way())
    ours = Ours(context, COHORT, Way())
    settings = make_loop_settings(method, case)
    loop = Loop(method, case, context, COHORT)
    loop.loop.settings = replace(settings, **change)
    for _ in range(ROUNDS):
        ours.train()
        loop.train()
    assert compute_gap(ours, loop) > 1e-6


def test_pfedme_scored_at_w_is_another_model(case: Case, data: FederatedDataset) -> None:
    ours, loop = run_both("pfedme", case, data, loop=plain_loops.PFedMeScoredAtW)
    own = ours.collect_predictors()
    theirs = loop.collect_predictors()
    assert float((ours.get_global() - loop.get_global()).abs().max()) < TOLERANCE
    assert max(float((own[client] - theirs[client]).abs().max()) for client in own) > 1e-3


def test_a_network_with_convolutions_agrees_in_float32() -> None:
    case = CASES["cifar10"]
    images = np.random.default_rng(0).integers(0, 256, (200, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(200) % 10
    data = build_dataset(case, (images, labels), 2, share=0.2)
    for method in ("fedavg", "fedper"):
        ours, loop = run_both(method, case, data, cohort=2, rounds=1)
        assert compute_gap(ours, loop) < 1e-5


def test_weights_of_clients_are_examples_where_the_method_weighs_by_them(
    case: Case, data: FederatedDataset
) -> None:
    sizes = data.clients.splits["train"].compute_sizes()
    assert len(set(sizes.tolist())) > 1
    weighing = weigh_clients(prepare("fedavg", case, data, COHORT, 0, Way()))
    assert list(weighing.values()) == sizes.tolist()
    alike = weigh_clients(prepare("scaffold", case, data, COHORT, 0, Way()))
    assert set(alike.values()) == {1.0}


def test_the_loops_use_nothing_of_this_project() -> None:
    tree = ast.parse(Path(plain_loops.__file__).read_text())
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    assert {name.split(".")[0] for name in modules} <= {"collections", "dataclasses", "torch"}


def test_the_command_trains_resumes_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--rounds", "1", "--clients", "3", "--share", "0.1", "--seeds", "0"]
    agree.main([*small, "--methods", "fedavg"])
    kept = tmp_path / "runs/agree/digits.json"
    first = json.loads(kept.read_text())
    assert list(first["methods"]) == ["fedavg"]
    agree.main([*small, "--methods", "fedavg,pfedme", "--resume"])
    second = json.loads(kept.read_text())
    assert second["methods"]["fedavg"] == first["methods"]["fedavg"]
    assert second["methods"]["pfedme"]["scored at w_i"]["0"]
    assert "| pfedme |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="another rounds"):
        agree.main(["--clients", "3", "--share", "0.1", "--seeds", "0", "--resume"])
    assert json.loads(kept.read_text()) == second


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "fedfoo"], "there is no loop of fedfoo"),
        (["cifar10", "--images", "nowhere.npz"], "There is no file 'nowhere.npz'"),
        (["cifar10", "--images", "wrong.npz"], "it is no zip archive"),
        (["--resume"], "there is nothing to resume"),
        (["cifar10"], "add it with .fedtailor data add cifar10"),
        (["--device", "abacus", "--rounds", "1"], "device must be cpu"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    (tmp_path / "wrong.npz").write_bytes(b"images")
    with pytest.raises(SystemExit, match=sentence):
        agree.main(arguments)


def test_images_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    x = np.arange(4 * 32 * 32 * 3, dtype=np.uint16).astype(np.uint8).reshape(4, 32, 32, 3)
    y = np.array([3, 1, 2, 0], np.uint8)
    np.savez(path, x_train=x[:3], y_train=y[:3], x_test=x[3:], y_test=y[3:])
    images, labels = load_images(CASES["cifar10"], str(path))
    assert labels.tolist() == [3, 1, 2, 0]
    np.testing.assert_array_equal(images[3, 2], x[3, :, :, 2])


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    x = np.zeros((2, 4), np.uint8)
    y = np.zeros(2, np.uint8)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match=r"got shapes \[4\] and \[4, 4\]"):
        load_images(CASES["cifar10"], str(path))


def test_images_that_are_installed_come_in_the_canonical_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "data"))
    files = tmp_path / "files"
    images, labels = write_cifar10(files, pickle.dumps)
    sources.add("cifar10", files)
    x, y = load_images(CASES["cifar10"], None)
    np.testing.assert_array_equal(x, images)
    assert y.tolist() == labels


def test_the_page_shows_the_results_that_are_kept() -> None:
    results = {name: load(f"agree-{name}") for name in CASES}
    text = page.PAGE.read_text()
    assert page.render_page(text, results) == text
    for name in PUBLISHED:
        if results[name] is None:
            assert page.NOT_RUN in page.render_case(name, None)


def test_the_page_says_so_if_the_weights_are_apart() -> None:
    found = load("agree-digits")
    assert found is not None
    for results in found["methods"].values():
        assert max(results["gap"].values()) < TOLERANCE
