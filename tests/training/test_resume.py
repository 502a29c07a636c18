"""A run that is killed at any moment and resumed ends with the same bytes as one that is not."""

import copy
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.engines import factory
from fedtailor.errors import InputError
from fedtailor.training.record.schema import Choices, RoundEntry, RunRecord
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import begin_or_go_on, left, litter, process, small, touches

EVERY = ["rounds=12", "checkpoint_every=2", "evaluate_every=3"]
WITH_MEMORY = ["method=local", "when=sampled", *EVERY]
WITH_STATE = ["method=fedavg", "server_optimizer=adam", *EVERY]
BOTH = pytest.mark.parametrize(
    "words", [WITH_MEMORY, WITH_STATE], ids=["client_state", "server state"]
)

Whole = Callable[[list[str]], dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What the uninterrupted run leaves."""
    known: dict[str, dict[str, Any]] = {}

    def of(words: list[str]) -> dict[str, Any]:
        out = tmp_path_factory.mktemp("whole") / "out"
        if str(words) not in known:
            start_run(small(*words), out)
            known[str(words)] = left(out)
        return known[str(words)]

    return of


def killed(words: list[str], out: Path, at: int = -1, after: float | None = None) -> bool:
    """Works on a run in a process of its own until that dies; False if it came to the end."""
    child = process(words, out, at)
    child.start()
    if after is not None:
        time.sleep(after)
        child.kill()
    child.join()
    assert child.exitcode in (0, -9)
    return child.exitcode == -9


def deaths(out: Path) -> list[str]:
    return (out.parent / "deaths").read_text().splitlines()


def assert_same(words: list[str], out: Path, whole: Whole) -> None:
    assert begin_or_go_on(words, out).is_finished
    assert left(out) == whole(words)
    assert litter(out) == []


@BOTH
def test_killed_again_and_again(words: list[str], tmp_path: Path, whole: Whole) -> None:
    out = tmp_path / "out"
    for at in (9, 45, 61, 52):
        assert killed(words, out, at)
    assert deaths(out).count("in a checkpoint") >= 2
    assert 0 < len(RunDir(out).read_rounds()) < 12
    assert_same(words, out, whole)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_touches_of_the_disk(
    words: list[str], seed: int, tmp_path: Path, whole: Whole
) -> None:
    out, draws, kills = tmp_path / "out", random.Random(seed), 0
    for at in [3, *(draws.randint(20, 70) for _ in range(11))]:
        kills += killed(words, out, at)
    print(f"{kills} kills, {deaths(out).count('in a checkpoint')} in a checkpoint")
    assert kills >= 4
    assert_same(words, out, whole)


@pytest.mark.slow
@BOTH
def test_killed_at_random_times(words: list[str], tmp_path: Path, whole: Whole) -> None:
    out, draws, words = tmp_path / "out", random.Random(5), [*words, "rounds=300"]
    kills = sum(killed(words, out, after=draws.uniform(0.1, 1.2)) for _ in range(10))
    print(f"{kills} kills")
    assert kills >= 4
    assert_same(words, out, whole)


@pytest.mark.slow
@BOTH
def test_killed_at_every_touch_of_the_disk(words: list[str], tmp_path: Path, whole: Whole) -> None:
    words = [*words, "rounds=3", "checkpoint_every=1"]
    total = touches(words, tmp_path / "counted")
    for at in range(1, total + 1):
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        assert killed(words, out, at)
        assert_same(words, out, whole)
    inside = sum(
        "in a checkpoint" in deaths(tmp_path / str(at) / "out") for at in range(1, total + 1)
    )
    print(f"{total} kills, {inside} in a checkpoint")


def test_killed_while_the_end_is_written(tmp_path: Path, whole: Whole) -> None:
    words = ["method=fedavg", "rounds=1"]
    total = touches(words, tmp_path / "counted")
    for at in range(total - 13, total, 4):
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        assert killed(words, out, at)
        assert_same(words, out, whole)


def test_a_run_killed_before_it_was_written_down_can_be_started_there(tmp_path: Path) -> None:
    for at in (2, 3, 4):
        assert killed(WITH_STATE, tmp_path / "out", at)
    with pytest.raises(InputError, match=r"^'.*' holds no run: there is no config\.json in it\.$"):
        resume_run(tmp_path / "out")
    assert start_run(small("method=fedavg", "rounds=1"), tmp_path / "out").is_finished
    assert litter(tmp_path / "out") == []


@BOTH
def test_memory_in_files_gives_the_same_bytes(
    words: list[str], tmp_path: Path, whole: Whole
) -> None:
    words_in_files, out = [*words, "client_state=files"], tmp_path / "out"
    start_run(small(*words_in_files), out, should_stop=iter([False] * 4 + [True] * 9).__next__)
    assert RunDir(out).read_record().status == "interrupted"
    assert begin_or_go_on(words_in_files, out).is_finished
    found, expected = left(out), whole(words)
    assert found["record"].pop("config")["client_state"] == "files"
    assert litter(out) == []
    record = copy.deepcopy(expected["record"])
    del record["config"]
    assert found["record"]["checksums"].pop("config") != record["checksums"].pop("config")
    assert found == expected | {"record": record}


def test_stopped_after_any_round(tmp_path: Path, whole: Whole) -> None:
    out = tmp_path / "out"
    assert not start_run(small(*WITH_MEMORY), out, should_stop=lambda: True).is_finished
    while not (outcome := resume_run(out, should_stop=lambda: True)).is_finished:
        assert outcome.record.status == "interrupted"
        assert len(outcome.record.rounds) == outcome.record.rounds[-1].round
    assert left(out) == whole(WITH_MEMORY)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = start_run(small("method=fedavg", "rounds=1"), out)
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert resume_run(out) == first
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def meddling() -> bool:
        with pytest.raises(InputError) as caught:
            resume_run(out)
        assert str(caught.value) == (
            f"Another process is working on the run in '{out}'; wait until it has ended."
        )
        return False

    assert start_run(small("method=fedavg", "rounds=1"), out, should_stop=meddling).is_finished


CHOICES = ["method=fedavg", "rounds=3", "checkpoint_every=1", "chunk=3"]


def test_choices_are_written_down_before_the_first_round_and_reused(tmp_path: Path) -> None:
    out = tmp_path / "out"

    class ReadAtStart:
        """Reads the record when the run begins."""

        def on_run_start(self, record: RunRecord, rounds_done: int) -> None:
            written.append(RunDir(out).read_record().choices)
            assert written[-1] == record.choices
            assert rounds_done or not RunDir(out).read_rounds()

        def on_round_end(self, entry: RoundEntry) -> None: ...
        def on_run_end(self, record: RunRecord) -> None: ...

    written: list[Choices] = []
    start_run(small(*CHOICES), out, (ReadAtStart(),), should_stop=lambda: True)
    resume_run(out, (ReadAtStart(),))
    first, resumed = written
    assert first == resumed
    assert first.compile_reason.endswith("are too few for compiling 1 kind of steps to pay")
    assert first == Choices(
        engine="vectorized",
        chunk=3,
        compile=False,
        compile_reason=first.compile_reason,
        ranks=None,
        precision="float32",
        threads=1,
        threads_reason="asked for",
        notes=first.notes,
    )


def test_an_automatic_chunk_is_kept_whatever_would_be_chosen_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    asked: list[tuple[str, int | None, bool]] = []
    start_run(small("method=fedavg", "rounds=2"), out, should_stop=lambda: True)
    chosen = RunDir(out).read_record().choices.chunk
    make = factory.make_engine

    def watched(setting: Any, name: str, chunk: int | None, compile: bool) -> Any:
        asked.append((name, chunk, compile))
        return make(setting, name, chunk, compile)

    monkeypatch.setattr(factory, "make_engine", watched)
    resume_run(out)
    assert set(asked) == {("vectorized", chosen, False)}  # to train, and to score in the end
    assert isinstance(chosen, int)


def test_running_one_by_one_after_all_is_written_down_and_reused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n\nclass Net(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(64, 10)\n\n"
        "    def forward(self, x):\n"
        "        return super().forward(x.flatten(1) if x.sum() > 0 else -x.flatten(1))\n"
    )
    spec = small("method=fedavg", "rounds=2", f"model={tmp_path / 'own.py'}:Net")
    first = start_run(spec, tmp_path / "out", should_stop=lambda: True).record.choices
    again = resume_run(tmp_path / "out").record.choices
    assert (first.engine, first.chunk, first.compile) == ("sequential", None, False)
    assert first.notes[0].startswith("fedavg runs one client at a time, since vmap cannot run it: ")
    assert again == first


def test_a_choice_that_cannot_be_honoured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    start_run(small(*CHOICES), out, should_stop=lambda: True)
    record = RunDir(out).read_record()
    choices = record.choices.model_copy(update={"compile": True})
    RunDir(out).write_record(record.model_copy(update={"choices": choices}))
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(factory, "get_compile_error", lambda _: "no compiler")
    with pytest.raises(InputError) as caught:
        resume_run(out)
    assert str(caught.value) == (
        "The run began with compile=True, which is not possible here (fedavg runs uncompiled, "
        "since torch.compile does not work here: no compiler); "
        "resume it on a machine like the first one."
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == kept


def test_another_version_is_noted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start_run(small(*CHOICES), out, should_stop=lambda: True)
    record = RunDir(out).read_record()
    versions = record.versions | {"torch": "1.0"}
    RunDir(out).write_record(record.model_copy(update={"versions": versions}))
    resumed = resume_run(out).record
    assert resumed.versions["torch"] == "1.0"
    (note,) = resumed.choices.notes
    assert note.startswith("resumed with torch 2")
    assert note.endswith(" for 1.0: the last digits may differ")
