"""Threads, processes and memory that a machine does not have are refused in a sentence, before
anything is taken.
"""

from pathlib import Path

import pytest
import torch

from fedtailor.engines import factory
from fedtailor.errors import InputError
from fedtailor.experiments.compare import compare
from fedtailor.inspection.inspect import inspect
from fedtailor.ops import cpu
from fedtailor.training.overrides import read_comparison, read_run_config
from fedtailor.training.resources import check_jobs, check_threads, set_threads
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import SMALL, small

TOO_MANY = "threads must be at most 2, the number of processors, got 1000000."


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two processors, whose threads are counted but never started."""
    monkeypatch.setattr(cpu, "count_processors", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)


def test_processors_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(InputError, match="threads must be at most"):
        check_threads(100_000)
    check_threads(1)
    check_threads(None)


def test_a_new_run_takes_no_more_threads_than_there_are_processors(tmp_path: Path) -> None:
    config = small("threads=1000000", "rounds=1")
    with pytest.raises(InputError) as caught:
        start_run(config, tmp_path / "out")
    assert str(caught.value) == TOO_MANY
    with pytest.raises(InputError) as caught:
        inspect(config)
    assert str(caught.value) == TOO_MANY
    words = ["fedavg", *SMALL, "threads=1000000"]
    with pytest.raises(InputError) as caught:
        compare(read_comparison(words), tmp_path / "out")
    assert str(caught.value) == TOO_MANY
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_keeps_its_threads_unless_they_are_absurd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    set_threads(1024)
    assert taken == [1024]
    start_run(small("method=fedavg", "rounds=3"), tmp_path, should_stop=lambda: True)
    record = RunDir(tmp_path).read_record()
    for threads in (1_000_000, 0):
        choices = record.choices.model_copy(update={"threads": threads})
        RunDir(tmp_path).write_record(record.model_copy(update={"choices": choices}))
        with pytest.raises(InputError, match=f"^The run began with {threads} threads, but from 1"):
            resume_run(tmp_path)


def test_processes_are_limited_by_the_processors() -> None:
    check_jobs(8)
    with pytest.raises(InputError, match=r"^jobs must be at most 8, 4 for each processor, got 9"):
        check_jobs(9)
    with pytest.raises(InputError, match=r"^jobs must be at least 1, got 0"):
        check_jobs(0)


TOO_LARGE = [
    ("hidden=1000000000", "model: mlp with hidden=1000000000 needs at least "),
    ("hidden=1000000,1000000", "model: mlp with hidden=1000000,1000000 needs at least "),
    (
        "hidden=9223372036854775807",
        "model: mlp with hidden=9223372036854775807 is too large for any machine",
    ),
    ("epochs=10000000000000", "fedavg: laying out "),
    ("epochs=9223372036854775807", "fedavg: laying out "),
    ("steps=9223372036854775807", "fedavg: laying out "),
    ("finetune_epochs=10000000000000", "fedavg: laying out "),
    ("batch=1000000000000", "fedavg: a batch of 1,000,000,000,000 examples needs at least "),
    ("cohort=1000000000000", "fedavg: 1000000000000 clients a round were asked for, but data set "),
    ("cohort=9223372036854775808", "cohort: input should be less than 9223372036854775808, got "),
    ("chunk=1" + "0" * 400, "chunk: input should be less than 9223372036854775808, got "),
    ("rounds=9223372036854775808", "rounds: input should be less than 9223372036854775808, got "),
    ("batch=9223372036854775808", "fedavg: batch must be a whole number of at most 64 bits, got "),
    ("lr=9223372036854775808", "fedavg: lr must be a number of at most 64 bits, got "),
    ("data.clients=9223372036854775808", "digits: clients must be a whole number from 1 to 2**63 "),
    ("data.clients=true", "digits: clients must be a whole number of at least 1, got True."),
    ("device=cpu:1", "Engine: device 'cpu:1' was asked for, but PyTorch sees no device of that "),
    ("device=cpu:x", "Engine: device 'cpu:x' was asked for, but PyTorch sees no device of that "),
]


@pytest.mark.parametrize(("word", "sentence"), TOO_LARGE, ids=[row[0][:40] for row in TOO_LARGE])
def test_what_no_machine_has_is_refused_before_it_is_allocated(
    word: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("an engine is made")

    monkeypatch.setattr(factory, "make_engine", fail)
    with pytest.raises(InputError) as caught:
        start_run(read_run_config([*SMALL, "method=fedavg", word]), tmp_path / "out")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
