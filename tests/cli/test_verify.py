"""`fedtailor verify`: what is damaged, what survives, and the command that goes on from it."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from damage import damage_lines, delete_line, edit_json
from fedtailor.cli import main
from fedtailor.personalization.service import export_client
from fedtailor.training.runner import start_run
from interruptions import left, small

WORDS = ["method=local", "when=sampled", "rounds=8", "checkpoint_every=2", "evaluate_every=8"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, an interrupted one and a model."""
    place = tmp_path_factory.mktemp("place")
    start_run(small(*WORDS), place / "finished")
    start_run(small(*WORDS), place / "stopped", should_stop=iter([False] * 4 + [True]).__next__)
    export_client(place / "finished", "0", place / "model")
    return place


class Command:
    """The command line within this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def run(self, *words: str) -> tuple[int, list[str], str]:
        """Return the exit code, the lines that were printed, and the error."""
        self._monkeypatch.setattr(sys, "argv", ["fedtailor", *words])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = self._capfd.readouterr()
        return code, printed.out.splitlines(), printed.err


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capfd)


def test_whole_folders_are_said_to_be_whole(place: Path, command: Command) -> None:
    code, lines, error = command.run("verify", str(place))
    assert (code, error) == (0, "")
    assert all(line.endswith(": is what was written") for line in lines[:-1])
    assert lines[-1] == f"Everything in {place} is what was written."
    paths = {Path(line.rpartition(":")[0]).relative_to(place).as_posix() for line in lines[:-1]}
    assert paths >= {"finished/config.json", "finished/model.safetensors", "stopped/rounds.jsonl"}
    assert paths >= {"stopped/checkpoints/000005", "model/model.safetensors", "model/manifest.json"}


def test_a_damaged_checkpoint_and_the_command_that_goes_on(
    place: Path, command: Command, tmp_path: Path
) -> None:
    out = shutil.copytree(place / "stopped", tmp_path / "stopped")
    (out / "checkpoints" / "000005" / "state.safetensors").write_bytes(b"half")
    code, lines, error = command.run("verify", str(out))
    assert code == 2
    assert f"{out}/checkpoints/000005: 'state.safetensors' is not what was written" in lines
    assert error == (
        f"fedtailor: '{out}' is damaged (checkpoints/000005); go on from checkpoint 4 with: "
        f"fedtailor resume {out}\n"
    )
    assert command.run(*shlex.split(error.rpartition(": ")[2])[1:])[0] == 0
    assert left(out) == left(place / "finished")
    assert command.run("verify", str(out))[0] == 0


def test_an_edited_specification(place: Path, command: Command, tmp_path: Path) -> None:
    out = shutil.copytree(place / "stopped", tmp_path / "stopped")
    edit_json(out / "config.json", "config.rounds", 9)
    code, lines, error = command.run("verify", str(out))
    assert code == 2
    assert f"{out}/config.json: is not what was written" in lines
    assert error.startswith(f"fedtailor: '{out}' is damaged (config.json); what survives is ")
    assert "checkpoints/000005; put back what was written, or run it again with: fed" in error
    new_out = tmp_path / "new"
    again = shlex.split(error.rpartition(": ")[2].replace("out=NEW", f"out={new_out}"))
    assert command.run(*again[1:])[0] == 0
    assert left(new_out) == left(place / "finished")


def test_damaged_rounds(place: Path, command: Command, tmp_path: Path) -> None:
    out = shutil.copytree(place / "finished", tmp_path / "finished")
    damage_lines(out / "rounds.jsonl", delete_line)
    code, lines, error = command.run("verify", str(out))
    assert code == 2
    assert f"{out}/rounds.jsonl: line 3 of 'rounds.jsonl' is not what was written" in lines
    survivors = "what survives is manifest.json, config.json, record.json, model.safetensors"
    assert f"{survivors} and the model, so `personalize` and `export` work; put back" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("last", ["000008", "000005"])
def test_a_missing_checkpoint(last: str, place: Path, command: Command, tmp_path: Path) -> None:
    name = {"000008": "finished", "000005": "stopped"}[last]
    out = shutil.copytree(place / name, tmp_path / "out")
    shutil.rmtree(out / "checkpoints" / last)
    code, lines, _ = command.run("verify", str(out))
    assert code == 2
    assert f"{out}/checkpoints/{last}: is missing" in lines


def test_several_damaged_folders(place: Path, command: Command, tmp_path: Path) -> None:
    folder = shutil.copytree(place, tmp_path / "place")
    (folder / "model" / "model.safetensors").write_bytes(b"half")
    (folder / "stopped" / "manifest.json").write_text("{}")
    code, lines, error = command.run("verify", str(folder))
    assert code == 2
    assert error == (f"fedtailor: 2 of 3 folders in '{folder}' are damaged: model, stopped.\n")
    assert (
        f"'{folder}/model' is damaged (model.safetensors); write the model again with "
        "`fedtailor personalize` or `fedtailor export`."
    ) in lines


def test_what_cannot_be_verified(place: Path, command: Command, tmp_path: Path) -> None:
    for target, sentence in {
        str(tmp_path / "none"): f"There is no folder '{tmp_path}/none'.",
        str(tmp_path): f"'{tmp_path}' holds no run, model or data set.",
        "no-such-set": "no-such-set: there is no such data set in ",
    }.items():
        code, lines, error = command.run("verify", target)
        assert (code, lines) == (2, [])
        assert error.startswith(f"fedtailor: {sentence}")
