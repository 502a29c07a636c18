"""Code that comes with a folder runs only if this machine has run it before, or is told to."""

import importlib.util
import os
import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from fedtailor.errors import InputError
from fedtailor.experiments.compare import compare
from fedtailor.personalization.service import (
    export_client,
    format_load_snippet,
    load_personal_model,
    personalize,
    predict,
)
from fedtailor.reporting.html import write_report
from fedtailor.storage.manifest import ListedFolder
from fedtailor.storage.trusted_code import require_trusted_code
from fedtailor.training.from_config import trust_folder, trust_folders
from fedtailor.training.overrides import read_comparison
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import SMALL, command, small

OWN = """
from pathlib import Path

from torch import nn

Path({marker!r}).write_text("run")


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


class Place:
    """A run that was stopped, a personal model of it, data for both, and a mark that their code
    leaves when it runs.
    """

    def __init__(self, folder: Path) -> None:
        self.run, self.model, self.marker = folder / "run", folder / "model", folder / "marker"
        self.data = folder / "mine.npz"
        rows = np.arange(20)
        np.savez(self.data, x=np.ones((20, 1, 8, 8), dtype=np.uint8), y=rows % 2)
        (folder / "mine.py").write_text(OWN.format(marker=str(self.marker)))
        words = ["method=fedavg", "rounds=3", f"model={folder / 'mine.py'}:make"]
        start_run(small(*words), self.run, should_stop=lambda: True)
        personalize(self.run, self.data, self.model)
        self.marker.unlink()

    def uses(self, to: Path) -> dict[str, Callable[[], Any]]:
        """What may be done with the folders; each runs the code in one of them."""
        return {
            "personalize": lambda: personalize(self.run, self.data, to / "personalized"),
            "export": lambda: export_client(self.run, "0", to / "exported"),
            "predict": lambda: predict(self.model, self.data),
            "load": lambda: load_personal_model(self.model),
            "snippet": lambda: format_load_snippet(self.model),
            "resume": lambda: resume_run(self.run),
        }


USES = pytest.mark.parametrize(
    "use", ["personalize", "export", "predict", "load", "snippet", "resume"]
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    (tmp_path / "place").mkdir()
    return Place(tmp_path / "place")


@pytest.fixture
def elsewhere(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The same on another machine."""
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "other"))
    return place


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(place: Place, use: str, to: Path) -> None:
    before = contents(place.run.parent)
    with pytest.raises(InputError) as caught:
        place.uses(to)[use]()
    folder = place.model if use in ("predict", "load", "snippet") else place.run
    assert str(caught.value) == (
        f"'{folder}/own_model.py' is Python code that this machine has not run before, and which "
        "can do anything that you can; look at the file, then repeat with --trust-code."
    )
    assert contents(place.run.parent) == before
    assert not place.marker.exists()
    assert not to.exists()


@USES
def test_folders_made_here_need_nothing(use: str, place: Place, tmp_path: Path) -> None:
    place.uses(tmp_path / "to")[use]()
    assert place.marker.exists()


@USES
def test_folders_from_elsewhere_are_refused_until_they_are_trusted(
    use: str, elsewhere: Place, tmp_path: Path
) -> None:
    assert_refused(elsewhere, use, tmp_path / "to")
    trust_folder(elsewhere.run)
    elsewhere.uses(tmp_path / "to")[use]()
    assert elsewhere.marker.exists()


@USES
def test_code_that_has_changed_is_refused(use: str, place: Place, tmp_path: Path) -> None:
    for folder in (place.run, place.model):
        source = (folder / "own_model.py").read_bytes() + b"# another one\n"
        ListedFolder(folder).write({"own_model.py": source})
    assert_refused(place, use, tmp_path / "to")


def test_from_python(elsewhere: Place) -> None:
    load_personal_model(elsewhere.model, trust_code=True)
    assert elsewhere.marker.exists()


def test_a_report_runs_no_code(elsewhere: Place, tmp_path: Path) -> None:
    write_report([RunDir(elsewhere.run).read_record()], tmp_path / "report.html")
    assert not elsewhere.marker.exists()


def test_a_compiled_copy_beside_the_file_is_not_run(place: Place, tmp_path: Path) -> None:
    file, evil = place.model / "own_model.py", tmp_path / "evil.py"
    evil.write_text(OWN.format(marker=str(tmp_path / "evil")))
    compiled = Path(importlib.util.cache_from_source(str(file)))
    compiled.parent.mkdir()
    py_compile.compile(
        str(evil), str(compiled), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    predict(place.model, place.data)
    assert place.marker.exists()
    assert not (tmp_path / "evil").exists()


def test_a_folder_names_no_code_outside_of_it(place: Place) -> None:
    (place.model / "own_model.py").unlink()
    with pytest.raises(InputError, match=r"^'.*model/own_model.py' is missing; put back the file"):
        predict(place.model, place.data)
    assert not place.marker.exists()


def test_a_built_in_model_needs_no_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    start_run(small("method=fedavg", "rounds=1"), tmp_path / "run")
    export_client(tmp_path / "run", "0", tmp_path / "model")
    np.savez(tmp_path / "x.npz", x=np.ones((2, 1, 8, 8), dtype=np.uint8))
    assert len(predict(tmp_path / "model", tmp_path / "x.npz")) == 2
    assert not (tmp_path / "state").exists()


def test_a_state_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "file"))
    (tmp_path / "mine.py").write_text(OWN.format(marker=str(tmp_path / "marker")))
    with pytest.raises(InputError) as caught:
        start_run(small("rounds=1", f"model={tmp_path / 'mine.py'}:make"), tmp_path / "run")
    assert str(caught.value).endswith("so set FEDTAILOR_STATE to another folder.")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_processes_of_a_comparison_and_their_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(OWN.format(marker=str(tmp_path / "marker")))
    words = ["fedavg", "fedprox", "baselines=false", "seeds=0", "rounds=2"]
    words = [*SMALL, *words, f"model={tmp_path / 'mine.py'}:make"]
    compare(read_comparison(words), tmp_path / "out", jobs=2, should_stop=lambda: True)
    outcomes = compare(read_comparison(words), tmp_path / "out", jobs=2)
    assert [outcome.is_finished for outcome in outcomes] == [True, True]


def on_another_machine(words: list[str], said: Path, state: Path) -> None:
    """The command line on ranks, of which all but rank 0 have a state directory of their own."""
    if os.environ["RANK"] != "0":
        os.environ["FEDTAILOR_STATE"] = str(state)
    ranks.commanded(words, said)


def test_ranks_on_other_machines_trust_rank_0(place: Place, tmp_path: Path) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    words = [f"model={place.run.parent / 'mine.py'}:make", "engine=distributed", "rounds=2"]
    start = ["run", *SMALL, "method=fedavg", *words, f"out={run}"]
    state = tmp_path / "other"
    assert ranks.ended(ranks.ranks(2, on_another_machine, start, said, state)) == [0, 0]
    shutil.rmtree(run / "checkpoints")
    resume = ["resume", str(run), "rounds=3"]
    assert ranks.ended(ranks.ranks(2, on_another_machine, resume, said, state)) == [0, 0]
    assert not state.exists()
    assert RunDir(run).read_status() == "finished"


def test_the_option_of_the_commands(elsewhere: Place, tmp_path: Path) -> None:
    to, said = tmp_path / "to", tmp_path / "said"
    lines = [
        ["predict", str(elsewhere.model), "--data", str(elsewhere.data), "--to", str(to)],
        ["resume", str(elsewhere.run)],
    ]
    for index, words in enumerate(lines):
        child = command(words, said)
        child.join()
        assert child.exitcode == (2 if index == 0 else 0)  # the second is asked no more
        assert elsewhere.marker.exists() == (index > 0)
        child = command([*words, "--trust-code"], said)
        child.join()
        assert child.exitcode == 0
        assert elsewhere.marker.exists()
    sentences = [line for line in said.read_text().splitlines() if line.startswith("fedtailor: ")]
    assert len(sentences) == 1


def begin_comparison(folder: Path) -> tuple[list[str], Path]:
    """A comparison that was stopped, and the words that go on with it."""
    folder.mkdir()
    (folder / "mine.py").write_text(OWN.format(marker=str(folder / "marker")))
    words = ["fedavg", "baselines=false", "seeds=0", "rounds=3"]
    words = [*SMALL, *words, f"model={folder / 'mine.py'}:make"]
    compare(read_comparison(words), folder / "out", should_stop=iter([False, True]).__next__)
    (folder / "marker").unlink()
    return words, folder / "out"


def test_a_comparison_runs_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    words, out = begin_comparison(tmp_path / "here")
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "other"))
    (outcome,) = compare(read_comparison(words), out)
    assert outcome.is_finished


def test_a_comparison_runs_no_other_file_until_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    words, out = begin_comparison(tmp_path / "here")
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "other"))
    with (tmp_path / "here" / "mine.py").open("a") as file:
        file.write("# another one\n")
    said = tmp_path / "said"
    line = ["compare", *words, f"out={out}"]
    for words_of_command, exit_code in ((line, 2), ([*line, "--trust-code"], 0), (line, 0)):
        child = command(words_of_command, said)
        child.join()
        assert child.exitcode == exit_code
    sentences = [line for line in said.read_text().splitlines() if line.startswith("fedtailor: ")]
    assert len(sentences) == 1
    assert sentences[0].endswith("look at the file, then repeat with --trust-code.")


@pytest.mark.parametrize("name", ["compare", "tune", "study"])
def test_code_is_trusted_in_folders_that_are_named(name: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    child = command([name, "fedavg", "--trust-code"], said)
    child.join()
    assert child.exitcode == 2
    assert "--trust-code is for runs that are there already; name them by out=DIR." in (
        said.read_text()
    )


def test_files_of_all_runs_below_a_folder_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_STATE", str(tmp_path / "state"))
    sources = [b"1", b"2", b"3"]
    names = ["part/tune/trials/fedavg-0", "part/fedavg-seed0", "fedavg-seed0"]
    for name, source in zip(names, sources, strict=True):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "own_model.py").write_bytes(source)
    trust_folders(tmp_path / "out")
    for source in sources:
        require_trusted_code(tmp_path / "own_model.py", source)
    with pytest.raises(InputError, match="has not run before"):
        require_trusted_code(tmp_path / "own_model.py", b"4")
