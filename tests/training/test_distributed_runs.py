"""Runs of several processes: one folder, one voice, the same results; a rank that is lost ends the
run on all.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

import ranks
from agreement import distance
from fedtailor.errors import InputError
from fedtailor.training import distributed_launch, from_config
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import SMALL, at_the_end, litter, small, without_times

RUN = [
    "method=fedper", "offer=3", "precision=float64", "engine=distributed", "rounds=30",
    "checkpoint_every=4", "evaluate_every=15", "client_state=files", "pretrain=1",
]  # fmt: skip


def begin(
    words: list[str], out: Path, world: int, patience: float | None = None
) -> list[ForkServerProcess]:
    """The command line on several ranks, started; what each says is in a file beside the run's
    folder.
    """
    return ranks.ranks(world, ranks.commanded, words, out.parent / f"{out.name}-said", patience)


def said(out: Path, rank: int) -> str:
    return (out.parent / f"{out.name}-said-{rank}").read_text()


def run(out: Path, world: int, *words: str) -> None:
    assert (
        ranks.ended(begin(["run", *SMALL, *RUN, *words, f"out={out}"], out, world)) == [0] * world
    )


def left(out: Path) -> dict[str, Any]:
    """What a finished run leaves: state, memories by client, what was written of these when, and
    the record.
    """
    setting, found, known = at_the_end(out)
    record = without_times(json.loads((out / "record.json").read_text()))
    record["choices"] |= {"notes": [], "ranks": 0}
    rows = setting.client_states.read_rows(known)
    manifest = json.loads(
        (out / "checkpoints" / f"{found.rounds_done:06}" / "manifest.json").read_text()
    )
    pieces = [(piece["file"], piece["clients"]) for piece in manifest["client_state"]]
    assert litter(out) == []
    return {
        "known": known.tolist(),
        "pieces": pieces,
        "tensors": (tuple(found.state), rows),
        "record": record,
    }


def assert_close(here: Any, there: Any) -> None:
    """Equal, but for the last digits of numbers."""
    assert type(here) is type(there)
    if isinstance(here, dict):
        assert list(here) == list(there)
        for key in here:
            assert_close(here[key], there[key])
    elif isinstance(here, list):
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            assert_close(one, other)
    else:
        assert here == (pytest.approx(there, abs=1e-10) if isinstance(there, float) else there)


def assert_same(out: Path, whole: dict[str, Any], exactly: bool) -> None:
    here = left(out)
    assert here["known"] == whole["known"]
    assert distance(here["tensors"], whole["tensors"]) <= (0.0 if exactly else 1e-10)
    assert_close(here["record"], whole["record"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run leaves with two ranks and no trouble."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(out, 2)
    assert said(out, 1) == ""
    assert said(out, 0).count("finished in") == 1
    assert RunDir(out).read_record().choices.ranks == 2
    assert (out / "report.html").exists()
    return left(out)


def test_one_process_leaves_the_same(whole: dict[str, Any], tmp_path: Path) -> None:
    assert start_run(small(*RUN), tmp_path / "out").is_finished
    assert_same(tmp_path / "out", whole, exactly=False)
    assert left(tmp_path / "out")["pieces"] == whole["pieces"]


def wait_for_rounds(out: Path, count: int) -> None:
    for _ in range(6000):
        if (out / "rounds.jsonl").exists() and len(RunDir(out).read_rounds()) >= count:
            return
        time.sleep(0.005)
    raise AssertionError("too few rounds have ended")


def broken(
    out: Path, lost: int, kind: signal.Signals = signal.SIGKILL, patience: float | None = None
) -> str:
    """A run of two ranks of which one is lost; what the other says last, as it ends in time and not
    well.
    """
    processes = begin(["run", *SMALL, *RUN, f"out={out}"], out, 2, patience)
    wait_for_rounds(out, 7)
    os.kill(processes[lost].pid or 0, kind)
    assert ranks.ended([processes[1 - lost]], within=45.0) == [2]
    processes[lost].kill()
    assert said(out, lost) == "" or not said(out, lost).rstrip().endswith(f"resume {out}")
    return said(out, 1 - lost).splitlines()[-1]


def assert_told(line: str, out: Path, lost: int) -> None:
    command = f"torchrun --nproc-per-node 2 -m fedtailor resume {out}"
    remedy = f"the last checkpoint is intact, so resume with: {command}"
    done = len(RunDir(out).read_rounds())
    assert line in [
        f"fedtailor: Rank {lost} of 2 was lost in round {number}; {remedy}"
        for number in (done, done + 1)
    ]


def test_a_killed_rank_ends_the_run_on_all_and_it_can_be_resumed(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert_told(broken(out, 1), out, 1)
    shutil.copytree(out, tmp_path / "alone")
    assert ranks.ended(begin(["resume", str(out)], out, 2)) == [0, 0]
    assert_same(out, whole, exactly=True)
    assert resume_run(tmp_path / "alone").is_finished
    assert_same(tmp_path / "alone", whole, exactly=False)
    notes = RunDir(tmp_path / "alone").read_record().choices.notes
    assert "resumed with 1 ranks for 2: the last digits may differ" in notes


def test_without_rank_0_another_says_what_happened(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert_told(broken(out, 0), out, 0)
    assert RunDir(out).read_record().status == "running"


def test_a_rank_that_is_there_but_silent_ends_the_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert_told(broken(out, 1, signal.SIGSTOP, patience=4.0), out, 1)


def test_one_process_goes_on_with_three(whole: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert not start_run(
        small(*RUN), out, should_stop=iter([False] * 7 + [True]).__next__
    ).is_finished
    assert ranks.ended(begin(["resume", str(out)], out, 3)) == [0, 0, 0]
    assert_same(out, whole, exactly=False)
    assert "resumed with 3 ranks for 1: the last digits may differ" in said(out, 0).replace(
        "\n", " "
    )


@pytest.mark.slow
def test_a_signal_to_rank_0_stops_all_after_the_round(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    processes = begin(["run", *SMALL, *RUN, f"out={out}"], out, 2)
    wait_for_rounds(out, 3)
    for process in processes[::-1]:
        os.kill(process.pid or 0, signal.SIGTERM)
    assert ranks.ended(processes) == [130, 0]
    again = f"torchrun --nproc-per-node 2 -m fedtailor resume {out}"
    assert said(out, 0).splitlines()[-1] == f"Stopped and saved. Resume with: {again}"
    assert RunDir(out).read_record().status == "interrupted"
    assert ranks.ended(begin(["resume", str(out)], out, 2)) == [0, 0]
    assert_same(out, whole, exactly=True)


@pytest.mark.slow
def test_a_comparison_is_made_by_all_ranks(tmp_path: Path) -> None:
    out, words = (
        tmp_path / "out",
        ["compare", "fedavg", "local", "seeds=0", *SMALL, "engine=distributed", "rounds=2"],
    )
    assert ranks.ended(begin([*words, f"out={out}"], out, 2)) == [0, 0]
    assert sorted(path.name for path in out.iterdir()) == [
        "fedavg-seed0",
        "local-seed0",
        "report.html",
    ]
    assert said(out, 1) == ""


REFUSED = [
    (
        ["run", "engine=vectorized", *SMALL],
        "engine=vectorized runs in one process, but torchrun has started 2; ",
    ),
    (["run", "engine=distributed", "rouns=3"], "There is no key 'rouns'; did you mean rounds?"),
    (["run", "engine=distributed", "device=mps", *SMALL], "Engine: "),
]


@pytest.mark.parametrize(
    ("words", "beginning"), REFUSED, ids=["another engine", "no such key", "no such device"]
)
def test_rank_0_alone_says_what_is_wrong_and_all_end(
    words: list[str], beginning: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert ranks.ended(begin([*words, f"out={out}"], out, 2)) == [2, 0]
    assert said(out, 0).startswith(f"fedtailor: {beginning}")
    assert said(out, 1) == ""


def test_what_is_only_shown_is_shown_once(tmp_path: Path) -> None:
    assert ranks.ended(begin(["run", "--show"], tmp_path / "out", 2)) == [0, 0]
    assert said(tmp_path / "out", 0).count("rounds = 50") == 1
    assert said(tmp_path / "out", 1) == ""


def test_a_half_set_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    with pytest.raises(
        InputError,
        match=r"^The environment says WORLD_SIZE=2, but not MASTER_ADDR, MASTER_PORT; start",
    ):
        distributed_launch.lead_or_follow(lambda: None)


def with_other_data(words: list[str], place: Path, how: str) -> None:
    """A rank whose data is not the same, or cannot be had."""
    plain = from_config.load_dataset

    def other(spec: Any) -> Any:
        if how == "fails":
            raise OSError("no such disk")
        return plain(spec.model_copy(update={"data_options": spec.data_options | {"seed": 5}}))

    if os.environ["RANK"] == "1":
        setattr(from_config, "load_dataset", other)  # noqa: B010
    ranks.commanded(words, place)


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("differs", "its data set 'digits' is not the same as rank 0's."),
        ("fails", "OSError: no such disk"),
    ],
)
def test_a_rank_that_cannot_take_part_is_named(how: str, end: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["run", *SMALL, *RUN, f"out={out}"]
    assert ranks.ended(ranks.ranks(2, with_other_data, words, tmp_path / "out-said", how)) == [2, 0]
    assert said(out, 0).splitlines()[-1] == f"fedtailor: Rank 1 cannot take part: {end}"
    assert litter(out) == []


@pytest.mark.slow
def test_torchrun_starts_stops_and_resumes(whole: dict[str, Any], tmp_path: Path) -> None:
    torchrun = [
        str(Path(sys.executable).with_name("torchrun")),
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "fedtailor",
    ]
    with subprocess.Popen([*torchrun, "run", *SMALL, *RUN, "out=out"], cwd=tmp_path) as child:
        wait_for_rounds(tmp_path / "out", 7)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) != 0
    assert RunDir(tmp_path / "out").read_record().status == "interrupted"
    assert subprocess.run([*torchrun, "resume", "out"], cwd=tmp_path, check=False).returncode == 0
    assert_same(tmp_path / "out", whole, exactly=True)
