"""The record of a run: everything that was asked for, chosen and found, in plain files."""

import json
import re
import shlex
import tokenize
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedtailor as ft
from fedtailor import data as sources
from fedtailor import models
from fedtailor.cli.progress import describe_data
from fedtailor.data.row_counts import RowCounts
from fedtailor.errors import InputError
from fedtailor.storage.manifest import ListedFolder
from fedtailor.training import from_config
from fedtailor.training.overrides import read_run_config
from fedtailor.training.record.build import compute_checksums
from fedtailor.training.record.provenance import get_commit, get_machine_name
from fedtailor.training.record.schema import FORMAT, GroupScores, MetricInfo, RunRecord
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from fedtailor.training.shell_commands import format_run_command
from interruptions import left, small, without_times
from known import known

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
def record(out: Path) -> RunRecord:
    return RunDir(out).read_record()


@pytest.fixture(scope="module")
def fitted(out: Path) -> ft.FitResult:
    """The same things by the Python API."""
    spec = RunDir(out).read_config()
    data = from_config.load_dataset(spec)
    net = from_config.get_model_factory(spec, data.example_spec)
    return ft.fit(spec.method, net, data, rounds=6, cohort=spec.cohort, seed=3, **spec.hparams)


def test_it_says_what_was_asked_for_and_with_what(record: RunRecord, out: Path) -> None:
    config = small(*WORDS)
    assert record.config == config
    config_file = json.loads((out / "config.json").read_text())
    assert config_file == {"format": FORMAT, "config": config.model_dump(mode="json")}
    assert record.config.hparams["finetune_epochs"] == 1
    assert record.config.data_options["labels"] == 2
    assert record.versions["torch"] == torch.__version__
    assert record.versions.keys() == {"fedtailor", "python", "torch", "numpy", "platform"}
    assert record.machine == get_machine_name(torch.device("cpu")) != ""
    assert record.commit == get_commit()
    assert record.commit is None or re.fullmatch(r"[0-9a-f]{7,40}\+?", record.commit)
    assert (record.format, record.status, record.name) == (FORMAT, "finished", "fedavg")
    assert record.metric == MetricInfo(name="accuracy", higher_is_better=True)


def test_the_record_on_disk_is_laid_out_like_its_model(record: RunRecord, out: Path) -> None:
    content = json.loads((out / "record.json").read_text())
    assert list(content) == list(RunRecord.model_fields)
    assert content == record.model_dump(mode="json")
    example_spec = json.loads(json.dumps(record.data.example_spec._asdict()))
    assert content["data"]["example_spec"] == example_spec
    assert example_spec["shape"] == [1, 8, 8]
    assert content["scores"]["unseen"].keys() == GroupScores.model_fields.keys()
    assert content["rounds"][2]["scores"]["unseen"].keys() == {"before", "after"}


def test_final_scores_are_those_of_fit(record: RunRecord, fitted: ft.FitResult) -> None:
    group_scores = known(record.scores)
    assert list(group_scores) == ["participating", "unseen"]
    for group, scores in group_scores.items():
        expected = fitted.scores[group]
        assert scores.ids == expected.ids.tolist()
        for stage in ("before", "after"):
            figures = getattr(expected, stage)
            assert scores.get_stage(stage) == {
                name: values.tolist() for name, values in figures.items()
            }
        assert scores.weights == expected.weights["accuracy"].tolist()


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
        compute_checksums(b"", data, other)
        == compute_checksums(b"", data, {"w": weights})
        != compute_checksums(b"", data, {"w": -weights})
    )


def test_costs_are_those_of_fit_and_the_sum_of_the_rounds(
    record: RunRecord, fitted: ft.FitResult
) -> None:
    cost = known(record.cost)
    for name in ("bytes_down", "bytes_up", "steps"):
        total = getattr(cost, name)
        assert total == sum(getattr(entry, name) for entry in record.rounds) > 0
        assert total == getattr(fitted.cost, name)
    assert cost.seconds == pytest.approx(sum(entry.seconds for entry in record.rounds))
    assert cost.scoring_seconds > 0


def test_every_round_has_its_figures(record: RunRecord, out: Path, fitted: ft.FitResult) -> None:
    assert [entry.round for entry in record.rounds] == [1, 2, 3, 4, 5, 6]
    assert [bool(entry.scores) for entry in record.rounds] == [False, False, True] * 2
    last = known(record.rounds[-1].scores)
    assert list(last) == ["validation", "participating", "unseen"]
    for group in ("participating", "unseen"):
        expected = np.mean(fitted.scores[group].after["accuracy"])
        assert last[group]["after"]["accuracy"] == pytest.approx(expected)
    lines = (out / "rounds.jsonl").read_text().splitlines()
    entries = [entry.model_dump(mode="json") for entry in record.rounds]
    contents = [json.loads(line) for line in lines]
    assert all(re.fullmatch("[0-9a-f]{64}", content.pop("checksum")) for content in contents)
    assert contents == entries


def test_the_data_are_described(record: RunRecord) -> None:
    data = from_config.load_dataset(small(*WORDS))
    summary = record.data
    assert summary.clients == data.client_names.tolist()
    assert summary.groups.keys() == {"train", "participating", "validation", "unseen"}
    assert summary.example_spec == data.example_spec
    labels = np.array(known(summary.labels))
    sizes = np.add(summary.train_sizes, summary.test_sizes)
    assert labels.sum(1).tolist() == sizes.tolist()
    assert labels.sum(0).tolist() == np.bincount(data.clients.y, minlength=10).tolist()
    assert sum(known(summary.server_labels)) == summary.server_examples
    assert summary.server_examples == len(known(data.server).x)
    assert re.fullmatch("[0-9a-f]{64}", summary.checksum)


def test_rounds_are_there_while_it_runs(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    def read_while_running() -> bool:
        record = RunDir(tmp_path / "out").read_record()
        seen.append((record.status, len(record.rounds)))
        return False

    start_run(small("method=fedavg", "rounds=3"), tmp_path / "out", should_stop=read_while_running)
    assert seen == [("running", 0), ("running", 1), ("running", 2)]
    assert RunDir(tmp_path / "out").read_record().status == "finished"


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
    program, run, *said = shlex.split(RunDir(out).read_record().command)
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
    for more_seeds in (["seed=3"], ["seed=3", "data.seed=0"], ["data.seed=3"]):
        spec = read_run_config([*words, *more_seeds])
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


def test_a_folder_says_whether_it_holds_a_run_and_how_far_that_is(
    out: Path, tmp_path: Path
) -> None:
    fresh = RunDir(tmp_path / "fresh")
    assert not fresh.exists()
    assert fresh.read_status() is None
    with fresh.create(small("method=fedavg", "rounds=3")):
        assert fresh.exists()
        assert fresh.read_status() is None
    assert RunDir(out).read_status() == "finished"
    content = json.loads((out / "record.json").read_text()) | {"format": FORMAT + 1}
    ListedFolder(tmp_path / "fresh").write({"record.json": json.dumps(content).encode()})
    with pytest.raises(InputError, match="was written in format 5"):
        fresh.read_status()


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
    sampled = start_run(read_run_config([*words, "final_eval_clients=3"]), tmp_path / "sampled")
    complete = start_run(read_run_config(words), tmp_path / "complete")
    assert sampled.is_finished
    assert complete.is_finished
    for group in ("participating", "unseen"):
        some = known(RunDir(tmp_path / "sampled").read_record().scores)[group]
        all_ = known(RunDir(tmp_path / "complete").read_record().scores)[group]
        assert len(some.ids) == 3 < len(all_.ids)
        positions = [all_.ids.index(client) for client in some.ids]
        all_accuracies = all_.after["accuracy"]
        assert some.after["accuracy"] == [all_accuracies[position] for position in positions]


def test_the_record_says_what_became_of_every_row(tmp_path: Path) -> None:
    """A table of repeated rows loses none: not to the server's draw, and not unsaid."""
    y = np.arange(120) % 2
    np.savez(tmp_path / "table.npz", x=np.ones((120, 2)), y=y, client=np.arange(120) % 6)
    words = ["data.server=0.1", "method=fedavg", "rounds=1", "cohort=2", "finetune_epochs=1"]
    start_run(read_run_config([f"data={tmp_path / 'table.npz'}", *words]), tmp_path / "run")
    record = RunDir(tmp_path / "run").read_record()
    assert record.data.rows == RowCounts(
        read=120, clients=108, server=12, shared=0, left_out={}, elsewhere=0, given_up=0, equal=0
    )
    assert record.data.overlap is False
    lines = describe_data(record.data)
    assert lines[1].startswith("120 rows read: 108 used by clients, 12 held by the server")
