"""A run's folder whose files are not what was written: noticed in one sentence, or harmless."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from damage import (
    LINE_DAMAGES,
    damage_lines,
    edit_json,
    iterate_mutations,
    list_files,
)
from fedtailor.errors import InputError
from fedtailor.reporting.html import write_report
from fedtailor.training.run_dir import RunDir, find_runs
from fedtailor.training.runner import resume_run, start_run
from fedtailor.training.trained_model import load_trained_model
from fedtailor.training.verification import verify_run
from interruptions import begin_or_go_on, left, small

MODEL_SOURCE = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())
"""
OPTIONS = ["method=local", "when=sampled", "rounds=8", "checkpoint_every=2", "evaluate_every=4"]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The specification of a run with a model of the user's."""
    path = tmp_path_factory.mktemp("model") / "mine.py"
    path.write_text(MODEL_SOURCE)
    return [*OPTIONS, f"model={path}:Net"]


@pytest.fixture(scope="module")
def finished(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    start_run(small(*words), out)
    return out


@pytest.fixture(scope="module")
def stopped(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints after rounds 4 and 5, and lines of five rounds."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    start_run(small(*words), out, should_stop=iter([False] * 4 + [True]).__next__)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["000004", "000005"]
    return out


def personalize(out: Path) -> dict[str, Any]:
    """Return what personalizing an unseen client begins with."""
    trained = load_trained_model(out)
    return {
        "params": {name: value.numpy().tobytes() for name, value in trained.state.params.items()},
        "hparams": str(trained.method),
        "example_spec": trained.example_spec,
        "seed": trained.seed,
    }


EDITS = [
    ("config.json", "config.hparams.lr", 0.3),
    ("config.json", "config.hparams.local_epochs", 3),
    ("config.json", "config.cohort", 5),
    ("config.json", "config.rounds", 9),
    ("record.json", "hparams.finetune_epochs", 4),
    ("record.json", "hparams.lr", 0.3),
    ("record.json", "data.example_spec.scale", 1.0),
]


@pytest.mark.parametrize(("name", "keys", "value"), EDITS)
def test_an_edit_is_refused_with_the_proper_way(
    name: str, keys: str, value: Any, stopped: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    edit_json(out / name, keys, value)
    for use in (resume_run, personalize, lambda path: RunDir(path).read_record()):
        with pytest.raises(InputError) as caught:
            use(out)
        assert str(caught.value) == (
            f"'{out / name}' is not what was written; put back the file that was written; to go on "
            f"with a run for longer there is `fedtailor resume {out} rounds=500`, to start a new "
            f"one from its weights `fedtailor run --from {out} lr=0.3 out=NEW`."
        )


def test_an_edited_model_file_is_refused(stopped: Path, finished: Path, tmp_path: Path) -> None:
    uses: list[tuple[Path, Callable[[Path], object]]] = [
        (stopped, resume_run),
        (finished, personalize),
    ]
    for number, (folder, use) in enumerate(uses):
        out = shutil.copytree(folder, tmp_path / str(number))
        path = out / "own_model.py"
        path.write_text(path.read_text().replace("relu", "tanh"))
        with pytest.raises(InputError, match=r"^'.*own_model.py' is not what was written; put "):
            use(out)
        path.unlink()
        with pytest.raises(InputError, match=r"^'.*own_model.py' is missing; put back the file "):
            use(out)


def test_compiled_copies_of_a_model_file_are_not_run(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    personalize(out)
    assert not (out / "__pycache__").exists()


def test_a_changed_model_is_refused(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    assert RunDir(out).find_problems()["model.safetensors"] == ""
    content = bytearray((out / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (out / "model.safetensors").write_bytes(content)
    assert RunDir(out).find_problems()["model.safetensors"] == "is not what was written"


def test_a_folder_of_another_version_gets_a_sentence(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "manifest.json").unlink()
    for use in (resume_run, personalize, lambda path: RunDir(path).read_record()):
        with pytest.raises(InputError, match=r"manifest.json' is missing: another version of "):
            use(out)


@pytest.mark.parametrize("damage", LINE_DAMAGES)
def test_damaged_rounds_before_all_checkpoints_are_refused(
    damage: Callable[[list[str]], list[str]], stopped: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    damage_lines(out / "rounds.jsonl", damage)
    with pytest.raises(InputError) as caught:
        resume_run(out)
    assert "\n" not in str(caught.value)
    assert "line 3 of 'rounds.jsonl' is not what was written" in str(caught.value)
    assert "start the run again in another folder" in str(caught.value)
    with pytest.raises(InputError, match=r"is damaged: line 3 of 'rounds.jsonl' is not what was "):
        RunDir(out).read_record()


@pytest.mark.parametrize("num_rounds", [0, 3])
def test_rounds_that_are_missing_at_the_end_are_noticed(
    num_rounds: int, stopped: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    path = out / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:num_rounds]))
    with pytest.raises(InputError, match=f"'rounds.jsonl' has {num_rounds} of 5 rounds; put back "):
        RunDir(out).read_record()


def test_rounds_of_a_run_with_another_specification_are_noticed(
    words: list[str], stopped: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    other = tmp_path / "other"
    start_run(small(*words, "lr=0.3"), other, should_stop=iter([False] * 4 + [True]).__next__)
    shutil.copy(other / "rounds.jsonl", out / "rounds.jsonl")
    with pytest.raises(InputError, match=r"line 1 of 'rounds.jsonl' is not what was written"):
        RunDir(out).read_record()


def test_damaged_rounds_behind_a_checkpoint_are_run_again(
    stopped: Path, finished: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    path = out / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], lines[4].replace('"round": 5', '"round": 6')]))
    resumed = resume_run(out).record
    (note,) = resumed.choices.notes
    assert note.startswith("checkpoint 000005 was skipped: line 5 of 'rounds.jsonl' is not what ")
    assert [entry.round for entry in resumed.rounds] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert left(out) == left(finished)


def test_damage_behind_the_last_checkpoint_is_cut_off(
    stopped: Path, finished: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    shutil.rmtree(out / "checkpoints" / "000005")
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 6, "checksum": "0"}\n[]\n{"rou')
    assert resume_run(out).record.choices.notes == ()
    assert left(out) == left(finished)


def test_damage_after_the_last_round_is_no_matter(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    rounds = iter(range(1, 9))

    def damage_at_the_end() -> bool:
        if next(rounds) == 8:
            (out / "rounds.jsonl").write_text("[]\n")
        return False

    record = start_run(small(*words), out, should_stop=damage_at_the_end).record
    assert [entry.round for entry in record.rounds] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_checkpoints_of_another_run_are_refused(
    words: list[str], stopped: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    other = tmp_path / "other"
    start_run(small(*words, "lr=0.3"), other, should_stop=iter([False] * 4 + [True]).__next__)
    for name in ("checkpoints", "client_state"):
        shutil.rmtree(out / name)
        shutil.copytree(other / name, out / name)
    for use in (resume_run, personalize):
        with pytest.raises(InputError, match=r"000005 was skipped: it is that of another run; "):
            use(out)


def test_rounds_of_another_run_are_refused(words: list[str], stopped: Path, tmp_path: Path) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    other = tmp_path / "other"
    start_run(small(*words), other, should_stop=iter([False] * 4 + [True]).__next__)
    shutil.copy(other / "rounds.jsonl", out / "rounds.jsonl")  # with other durations
    with pytest.raises(InputError, match=r"'rounds.jsonl' is not that of this run"):
        resume_run(out)


@pytest.mark.parametrize("damage", [*LINE_DAMAGES, lambda lines: []])
def test_personalizing_needs_no_intact_rounds(
    damage: Callable[[list[str]], list[str]], finished: Path, stopped: Path, tmp_path: Path
) -> None:
    for number, folder in enumerate((finished, stopped)):
        expected = personalize(folder)
        out = shutil.copytree(folder, tmp_path / str(number))
        damage_lines(out / "rounds.jsonl", damage)
        assert personalize(out) == expected
        (damaged, *_) = verify_run(RunDir(out)).list_damaged()
        assert damaged == "rounds.jsonl"


def test_a_lost_last_checkpoint_is_noticed(finished: Path, stopped: Path, tmp_path: Path) -> None:
    for number, (folder, last) in enumerate(((finished, "000008"), (stopped, "000005"))):
        out = shutil.copytree(folder, tmp_path / str(number))
        shutil.rmtree(out / "checkpoints" / last)
        with pytest.raises(InputError, match=r"^The last checkpoint of the run in .* is missing; "):
            personalize(out)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_other_damage_to_a_stopped_run_is_noticed_or_harmless(
    step: int, words: list[str], stopped: Path, finished: Path, tmp_path: Path
) -> None:
    expected = left(finished)
    num_harmless = 0
    cases = [
        (name, change, content)
        for seed, name in enumerate(list_files(stopped))
        for change, content in iterate_mutations((stopped / name).read_bytes(), seed)
    ]
    refusals = []
    for name, change, content in cases[::step]:
        out = shutil.copytree(stopped, tmp_path / "out")
        (out / name).write_bytes(content)
        try:
            begin_or_go_on(words, out)
        except InputError as problem:
            refusals.append(str(problem))
        else:
            num_harmless += 1
            assert left(out) == expected, f"{name}: {change}"
        shutil.rmtree(out)
    assert len(refusals) >= 20 // step
    assert not any("\n" in refusal for refusal in refusals)
    assert num_harmless >= 10 // step  # an earlier checkpoint was used


def test_other_damage_to_a_finished_run_is_noticed_or_harmless(
    finished: Path, tmp_path: Path
) -> None:
    expected = personalize(finished)
    expected_record = RunDir(finished).read_record()
    refusals = []
    for seed, name in enumerate(list_files(finished), start=100):
        for change, content in iterate_mutations((finished / name).read_bytes(), seed):
            out = shutil.copytree(finished, tmp_path / "out")
            (out / name).write_bytes(content)
            try:
                assert RunDir(out).read_record() == expected_record
                assert personalize(out) == expected, f"{name}: {change}"
                refusals += verify_run(RunDir(out)).list_damaged()
            except InputError as problem:
                refusals.append(str(problem))
            shutil.rmtree(out)
    assert len(refusals) >= 20
    assert not any("\n" in refusal for refusal in refusals)


def test_a_report_is_refused_if_a_record_was_edited(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    records = [run_dir.read_record() for run_dir in find_runs(out)]
    write_report(records, tmp_path / "report.html")
    path = out / "record.json"
    content = json.loads(path.read_text())
    content["rounds"][0]["seconds"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"^'.*record.json' is not what was written; "):
        find_runs(out)[0].read_record()
