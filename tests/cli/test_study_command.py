"""The command `fedtailor study`, as a user would type it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fedtailor.cli import main
from fedtailor.studies.record import read_record
from small_study import COMPARISON, HEAD, PART, figures, small, written


class Said(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


Study = Callable[..., Said]


@pytest.fixture
def study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Study:
    """The command, in this process, in a folder that holds nothing but what a test puts there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "store"))

    def typed(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["fedtailor", "study", *words])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return typed


def test_quick_on_embedded_digits_runs_from_a_fresh_clone(tmp_path: Path, study: Study) -> None:
    done = study("per_fedavg", "parts=mnist-4", "rounds=2", "methods=fedavg,per-fedavg@fo")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "data set 'mnist' is not in the store (`fedtailor data add mnist`);" in done.stdout
    assert "per_fedavg, scale=quick: 2 runs of 2 rounds (mnist-4), 1 at a time.\n" in done.stdout
    out = Path("runs") / "per_fedavg-1"
    said = (
        f"Record: {out / 'mnist-4.json'}, tables: {out / 'mnist-4.md'}, figures: {out / 'figures'}"
    )
    assert done.stdout.splitlines()[-2] == said
    scores_path = out / "mnist-4.scores.json.gz"
    assert done.stdout.splitlines()[-1].startswith(f"Scores of all clients: {scores_path} (")
    record = read_record(tmp_path / out / "mnist-4.json")
    assert record.about.stands_in == "digits"
    assert [(run.name, run.rounds) for run in record.runs] == [
        ("fedavg", 2),
        ("per-fedavg@fo", 2),
    ]
    assert "| `per-fedavg@fo` | 1 |" in (tmp_path / out / "mnist-4.md").read_text()
    assert (tmp_path / out / "figures" / "mnist-4-curves.svg").read_text().startswith("<svg ")


def test_a_time_limit_stops_it_and_the_same_command_goes_on(tmp_path: Path, study: Study) -> None:
    small(tmp_path)
    words = ("small", "scale=paper", "rounds=3")
    stopped = study(*words, "max_seconds=0.001", "out=out")
    assert stopped.returncode == 130, stopped.stderr
    again = f"fedtailor study {' '.join(words)} max_seconds=0.001 out=out"
    assert stopped.stdout.splitlines()[-1] == f"Stopped and saved. Resume with: {again}"
    assert not (tmp_path / "out" / "one.json").exists()
    ended = study(*words, "max_seconds=600", "out=out")
    assert ended.returncode == 0, ended.stderr
    assert study(*words, "out=whole").returncode == 0
    resumed, whole = (read_record(tmp_path / out / "one.json") for out in ("out", "whole"))
    assert figures(resumed) == figures(whole)


WRONG = [
    (["smal"], "There is no study 'smal'; did you mean small?"),
    (["small", "parts=two"], "study small: there is no part 'two'; choose from one."),
    (["small", "scale=big"], "study: there is no scale 'big'; choose from quick, paper."),
    (["small", "jobs=0"], "study: jobs must be a positive number, got 0."),
    (["small", "max_seconds=x"], "study: max_seconds must be a positive number, got x."),
    (["small", "write=yes"], "study: write must be true or false, got yes."),
    (["small", "fedavg"], "study: 'fedavg' is not KEY=VALUE."),
    (
        ["jobs=2"],
        "study: the first argument must be a study's name, got 'jobs=2'; `fedtailor study` lists "
        "them.",
    ),
    (["small", "lrr=1"], "small, part one: There is no key 'lrr'; did you mean lr?"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_wrong_words_end_in_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, study: Study
) -> None:
    small(tmp_path)
    done = study(*words)
    assert (done.returncode, done.stderr) == (2, f"fedtailor: {sentence}\n")
    assert not (tmp_path / "runs").exists()


def test_without_a_name_studies_are_listed(tmp_path: Path, study: Study) -> None:
    two = HEAD + PART + PART.replace('"one"', '"two"')
    written(tmp_path / "studies" / "small", two, one=COMPARISON, two=COMPARISON)
    (tmp_path / "studies" / "small" / "one.json").write_text("{}")
    rows = [line.split() for line in study().stdout.splitlines()]
    assert rows == [
        ["study", "parts", "records", "about"],
        ["small", "2", "1", "Small"],
        ["one", "Two", "methods"],
        ["two", "Two", "methods"],
    ]


def test_write_keeps_records_of_paper_scale_in_a_checkout(tmp_path: Path, study: Study) -> None:
    folder = small(tmp_path).folder
    (folder / "README.md").write_text("# Small\n\n<!-- one.accuracy -->\n<!-- end -->\n")
    assert study("small", "rounds=1", "seeds=0", "out=quick").returncode == 0
    assert study("small", "scale=paper", "rounds=1", "seeds=0", "out=paper").returncode == 0
    refused = study("small", "out=paper", "write=true")
    assert (refused.returncode, "is not in a checkout; write=true is for" in refused.stderr) == (
        2,
        True,
    )
    (tmp_path / "pyproject.toml").write_text("")
    refused = study("small", "out=quick", "write=true")
    sentence = "study small: the record of one is of scale=quick; run it with scale=paper."
    assert refused.stderr == f"fedtailor: {sentence}\n"
    assert study("small", "out=paper", "write=true").returncode == 0
    assert (folder / "one.json").read_bytes() == (tmp_path / "paper" / "one.json").read_bytes()
    assert "| `fedavg` | 1 | " in (folder / "README.md").read_text()


def test_studies_need_no_plotly() -> None:
    code = "import sys, fedtailor.studies.publish, fedtailor.studies.execute\n"
    code += "heavy = ('plotly', 'fedtailor.reporting.html'); "
    code += "sys.exit(any(name.startswith(heavy) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
