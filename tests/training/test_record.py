"""The record of a run: everything that was asked for, chosen and found, in plain files."""

import json
import re
import shlex
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedtailor as ft
from fedtailor import data as sources
from fedtailor import models
from fedtailor.training import build
from fedtailor.training.command_lines import format_run_command
from fedtailor.training.overrides import read_run_config
from fedtailor.training.provenance import get_commit, get_machine_name
from fedtailor.training.record import compute_checksums
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from interruptions import left, small, without_times

WORDS = [
    "method=fedavg",
    "server_optimizer=adam",
    "rounds=6",
    "checkpoint_every=4",
    "evaluate_every=3",
    "seed=3",
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / "my run"
    start_run(small(*WORDS), place)
    return place


@pytest.fixture(scope="module")
def record(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "record.json").read_text())
    return found


@pytest.fixture(scope="module")
def fitted(out: Path) -> ft.FitResult:
    """The same things by the Python API."""
    spec = RunDir(out).read_config()
    data = build.load_dataset(spec)
    net = build.get_model_factory(spec, data.example_spec)
    return ft.fit(spec.method, net, data, rounds=6, cohort=spec.cohort, seed=3, **spec.hparams)


def test_it_says_what_was_asked_for_and_with_what(record: dict[str, Any], out: Path) -> None:
    assert (
        record["config"]
        == small(*WORDS).model_dump(mode="json")
        == json.loads((out / "config.json").read_text())["config"]
    )
    assert record["config"]["hparams"]["finetune_epochs"] == 1
    assert record["config"]["data_options"]["labels"] == 2
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"].keys() == {"fedtailor", "python", "torch", "numpy", "platform"}
    assert record["machine"] == get_machine_name(torch.device("cpu")) != ""
    assert record["commit"] == get_commit()
    assert record["commit"] is None or re.fullmatch(r"[0-9a-f]{7,40}\+?", record["commit"])
    assert (record["format"], record["status"], record["name"]) == (1, "finished", "fedavg")
    assert record["metric"] == {"name": "accuracy", "higher_is_better": True}


def test_final_scores_are_those_of_fit(record: dict[str, Any], fitted: ft.FitResult) -> None:
    assert list(record["scores"]) == ["participating", "unseen"]
    for group, scores in record["scores"].items():
        expected = fitted.scores[group]
        assert scores["ids"] == expected.ids.tolist()
        for when in ("before", "after"):
            assert scores[when] == {
                name: found.tolist() for name, found in getattr(expected, when).items()
            }
        assert scores["weights"] == expected.weights["accuracy"].tolist()


def test_the_model_is_that_of_fit(out: Path, fitted: ft.FitResult) -> None:
    found = load_file(out / "model.safetensors")
    assert found.keys() == fitted.params.keys()
    assert all(torch.equal(found[name], value) for name, value in fitted.params.items())
    models.mlp(64, (8,), 10).load_state_dict(found)


def test_the_first_weights_checksum_does_not_depend_on_how_they_lie_in_memory() -> None:
    data, weights = sources.load("digits", clients=2), torch.arange(12.0).reshape(4, 3, 1, 1)
    other = {
        "w": weights.clone(memory_format=torch.channels_last)
    }  # contiguous, though its last stride is not 1
    assert other["w"].stride() != weights.stride()
    assert (
        compute_checksums(data, other)
        == compute_checksums(data, {"w": weights})
        != compute_checksums(data, {"w": -weights})
    )


def test_costs_are_those_of_fit_and_the_sum_of_the_rounds(
    record: dict[str, Any], fitted: ft.FitResult
) -> None:
    for name in ("bytes_down", "bytes_up", "steps"):
        assert (
            record["cost"][name]
            == sum(entry[name] for entry in record["rounds"])
            == getattr(fitted.cost, name)
            > 0
        )
    assert record["cost"]["seconds"] == pytest.approx(
        sum(entry["seconds"] for entry in record["rounds"])
    )
    assert record["cost"]["scoring_seconds"] > 0


def test_every_round_has_its_figures(
    record: dict[str, Any], out: Path, fitted: ft.FitResult
) -> None:
    assert [entry["round"] for entry in record["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert [bool(entry["scores"]) for entry in record["rounds"]] == [False, False, True] * 2
    last = record["rounds"][-1]["scores"]
    assert list(last) == ["validation", "participating", "unseen"]
    for group in ("participating", "unseen"):
        expected = np.mean(fitted.scores[group].after["accuracy"])
        assert last[group]["after"]["accuracy"] == pytest.approx(expected)
    lines = (out / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == record["rounds"]


def test_the_data_are_described(record: dict[str, Any]) -> None:
    data, said = build.load_dataset(small(*WORDS)), record["data"]
    assert said["clients"] == data.client_names.tolist()
    assert said["groups"].keys() == {"train", "participating", "validation", "unseen"}
    assert (
        np.sum(said["labels"], axis=1).tolist()
        == np.add(said["train_sizes"], said["test_sizes"]).tolist()
    )
    assert (
        sum(said["server_labels"])
        == said["server_examples"]
        == len(data.server.x if data.server else [])
    )
    assert (
        np.sum(said["labels"], axis=0).tolist()
        == np.bincount(data.clients.y, minlength=10).tolist()
    )
    assert re.fullmatch("[0-9a-f]{64}", said["checksum"])


def test_rounds_are_there_while_it_runs(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def look() -> bool:
        found = RunDir(tmp_path / "out").read_record()
        seen.append((found["status"], len(found["rounds"])))
        return False

    start_run(small("method=fedavg", "rounds=3"), tmp_path / "out", should_stop=look)
    assert seen == [("running", 0), ("running", 1), ("running", 2)]
    assert RunDir(tmp_path / "out").read_record()["status"] == "finished"


AWKWARD = [
    WORDS,
    [
        "method=local",
        "when=sampled",
        "rounds=2",
        "client_state=files",
        "precision=float64",
        "chunk=2",
    ],
    [
        "method=fedsim",
        "rounds=2",
        "model=linear",
        "engine=sequential",
        "finetune_lr=0.05",
        "data.server=70",
    ],
    [
        "method=fedprox",
        "rounds=2",
        "hidden=",
        "eval_clients=1",
        "steps=2",
        "data.seed=4",
        "data.test_share=0.5",
    ],
]


@pytest.mark.parametrize("words", AWKWARD, ids=[words[0] for words in AWKWARD])
def test_the_command_repeats_the_run(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "my 'run'"
    start_run(small(*words), out)
    first = left(out)
    program, run, *said = shlex.split(RunDir(out).read_record()["command"])
    assert (program, run, said[-1]) == ("fedtailor", "run", f"out={out}")
    assert read_run_config(said[:-1]) == small(*words)
    start_run(read_run_config(said[:-1]), tmp_path / "again")
    assert left(tmp_path / "again") == first


def test_a_command_with_awkward_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(60, 3)), np.repeat(np.arange(6), 10)
    np.savez(tmp_path / "my data.npz", x=x, y=np.arange(60) % 3, client=client)
    words = [
        f"data={tmp_path / 'my data.npz'}",
        "data.classes=3",
        'data.overlap="5"',
        "method=fedavg",
        "finetune_lr=none",
    ]
    for more in (
        "data.overlap=true and none",
        'data.overlap="none"',
        "data.overlap=",
        "data.scale=1e-3",
    ):
        spec = read_run_config([*words, more])
        assert read_run_config(shlex.split(format_run_command(spec, tmp_path))[2:-1]) == spec
    assert read_run_config(words).data_options["overlap"] == "5"


def test_files_are_of_plain_kinds(tmp_path: Path) -> None:
    start_run(
        small("method=local", "when=sampled", "rounds=4", "checkpoint_every=2"), tmp_path / "out"
    )
    for path in (path for path in (tmp_path / "out").rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            length = int.from_bytes(content[:8], "little")
            assert json.loads(content[8 : 8 + length])
        else:
            assert path.suffix in (".json", ".jsonl")
            assert [
                json.loads(each)
                for each in (content.splitlines() if path.suffix == ".jsonl" else [content])
            ]


def test_nothing_on_disk_is_pickled() -> None:
    source = Path(ft.__file__).parent
    for path in source.rglob("*.py"):
        if path == source / "data" / "readers" / "pickled.py":
            continue  # reads what others have pickled, without running anything of it
        with path.open("rb") as file:
            names = {
                token.string
                for token in tokenize.tokenize(file.readline)
                if token.type == tokenize.NAME
            }
        assert not names & {"pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"}, path
        text = path.read_text()
        assert "torch.save" not in text, path
        assert "torch.load" not in text, path
        assert "allow_pickle=True" not in text, path


def test_equal_runs_have_equal_records(out: Path, tmp_path: Path) -> None:
    start_run(small(*WORDS), tmp_path / "again")
    again = json.loads((tmp_path / "again" / "record.json").read_text())
    assert without_times(again) == without_times(json.loads((out / "record.json").read_text()))


def test_no_more_clients_are_scored_in_the_end_than_asked_for(tmp_path: Path) -> None:
    words = [
        "data=digits",
        "data.clients=20",
        "method=fedavg",
        "rounds=1",
        "cohort=2",
        "finetune_epochs=1",
    ]
    some, everybody = (
        start_run(read_run_config([*words, *more]), tmp_path / str(len(more)))
        for more in (["final_eval_clients=3"], [])
    )
    few, all_ = (
        json.loads((tmp_path / name / "record.json").read_text())["scores"] for name in "10"
    )
    assert some.is_finished
    assert everybody.is_finished
    for group in ("participating", "unseen"):
        assert len(few[group]["ids"]) == 3 < len(all_[group]["ids"])
        place = [all_[group]["ids"].index(who) for who in few[group]["ids"]]
        assert few[group]["after"]["accuracy"] == [
            all_[group]["after"]["accuracy"][at] for at in place
        ]
