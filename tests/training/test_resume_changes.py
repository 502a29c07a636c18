"""A run that is made longer, or shorter, ends as one that had that many rounds from the start;
where it cannot, it is refused.
"""

from pathlib import Path
from typing import Any

import pytest

from fedtailor.engines.compile_policy import decide_compile
from fedtailor.errors import InputError
from fedtailor.experiments.compare import compare
from fedtailor.training import engine_choice
from fedtailor.training.overrides import read_comparison
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import resume_run, start_run
from interruptions import SMALL, left, litter, process, small

# The sixth round is evaluated as the last one at first, and not in a run of eleven.
EVERY = ["checkpoint_every=4", "evaluate_every=4"]
KINDS = {
    "client_state": ["method=local", "when=sampled", *EVERY],
    "server state": ["method=fedavg", "server_optimizer=adam", *EVERY],
    "no decay": ["method=reptile", *EVERY],
    "a decay of its own": ["method=fedsim", "decay_rounds=5", *EVERY],
}
ALL = pytest.mark.parametrize("words", KINDS.values(), ids=KINDS)


def result(out: Path) -> dict[str, Any]:
    """What a run leaves, without how it was specified when it began, and why steps were not
    compiled then.
    """
    found = left(out)
    found["record"].pop("previous_rounds")
    found["record"]["checksums"].pop("config")
    found["record"]["choices"].pop("compile_reason")
    return found


def whole(words: list[str], place: Path) -> dict[str, Any]:
    """What a run leaves that nothing has changed."""
    assert start_run(small(*words), place).record.previous_rounds == ()
    return result(place)


@ALL
def test_a_finished_run_goes_on_to_what_a_longer_one_is(words: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    short = start_run(small(*words, "rounds=6"), out).record
    assert short.rounds[-1].scores is not None
    outcome = resume_run(out, changes={"rounds": 11})
    assert outcome.is_finished
    assert outcome.record.previous_rounds == (6,)
    assert result(out) == whole([*words, "rounds=11"], tmp_path / "straight")
    assert litter(out) == []


@pytest.mark.parametrize("rounds", [5, 8, 20], ids=["where it is", "shorter", "longer"])
def test_an_interrupted_run_may_have_another_length(rounds: int, tmp_path: Path) -> None:
    words, out = KINDS["server state"], tmp_path / "out"
    stops = iter([False] * 4 + [True])
    start_run(small(*words, "rounds=12"), out, should_stop=stops.__next__)
    assert RunDir(out).read_record().status == "interrupted"
    assert resume_run(out, changes={"rounds": rounds}).record.previous_rounds == (12,)
    assert result(out) == whole([*words, f"rounds={rounds}"], tmp_path / "straight")


def test_a_longer_run_that_is_stopped_keeps_its_length(tmp_path: Path) -> None:
    words, out = KINDS["client_state"], tmp_path / "out"
    start_run(small(*words, "rounds=6"), out)
    stopped = resume_run(out, should_stop=lambda: True, changes={"rounds": 9}).record
    assert (stopped.status, stopped.config.rounds, stopped.scores) == ("interrupted", 9, None)
    assert stopped.summary is None
    assert RunDir(out).read_config().rounds == 9
    assert not (out / "model.safetensors").exists()  # that of the six rounds is no result now
    assert resume_run(out).is_finished
    assert resume_run(out, changes={"rounds": 11}).record.previous_rounds == (6, 9)
    assert result(out) == whole([*words, "rounds=11"], tmp_path / "straight")


def test_the_record_says_which_run_it_equals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    start_run(small("method=fedavg", "rounds=20"), out)
    record = resume_run(out, changes={"rounds": 21}).record
    same = "21 rounds, of which 20 were asked for at first: the figures equal those of a run with "
    assert same + "rounds=21 evaluate_every=2" in record.choices.notes
    assert "rounds=21" in record.command
    monkeypatch.setattr(
        engine_choice,
        "decide_compile",
        lambda *args: decide_compile(*args)._replace(compile="training"),
    )
    record = resume_run(out, changes={"rounds": 22}).record
    assert record.choices.compile is False
    assert record.choices.notes[-1].endswith(
        "rounds=22 evaluate_every=2, but for the last digits, since that one would be compiled"
    )


def test_other_keys_that_change_no_figure(tmp_path: Path) -> None:
    words, out = [*KINDS["client_state"], "rounds=6"], tmp_path / "out"
    start_run(small(*words), out, should_stop=lambda: True)
    changes = {"checkpoint_every": 1, "client_state": "files"}
    record = resume_run(out, changes=changes).record
    assert (record.config.checkpoint_every, record.config.client_state) == (1, "files")
    assert (record.previous_rounds, record.choices.notes) == ((), ())
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["000005", "000006"]
    found, expected = result(out), whole(words, tmp_path / "straight")
    for kept in (found, expected):
        kept["record"].pop("config")
    assert found == expected


def refused(out: Path, **changes: Any) -> str:
    """The sentence, after which everything is as before."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        resume_run(out, changes=changes)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("method", ["fedsim", "fsl+fedsim", "reptile"])
def test_a_decay_that_ends_with_the_run_is_refused(method: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    start_run(small(f"method={method}", "decay=cosine", "rounds=2"), out)
    assert refused(out, rounds=50) == (
        f"resume: {method} has computed decay_rounds=2 from the 2 rounds that the run in '{out}' "
        "began with, and with 50 it would have been 50 from the first round on; begin a new run "
        f"with rounds=50, or one from its weights with: fedtailor run --from {out} rounds=50 "
        "out=NEW"
    )


def test_other_changes_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start_run(small("method=fedavg", "rounds=3"), out)
    assert refused(out, lr=0.3) == (
        "resume: only rounds, checkpoint_every, client_state, log may change in a run, not lr; "
        f"begin a new run from its weights with: fedtailor run --from {out} lr=0.3 out=NEW"
    )
    for key, value in {"engine": "sequential", "seed": 2, "data": "synthetic"}.items():
        assert f"not {key}; " in refused(out, rounds=9, **{key: value})
    assert refused(out, rounds=2).startswith(
        f"resume: the run in '{out}' has done 3 rounds already, so there cannot be 2; ask for "
        "more, or begin a new run with: fedtailor run method=fedavg data=digits rounds=2 seed=0 "
    )
    assert refused(out, rounds="x").startswith("rounds: input should be a valid integer, got 'x'")
    assert refused(out, rounds=0).startswith("rounds: ")


def test_what_cannot_go_on_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "diverged"
    start_run(small("method=fedavg", "rounds=3"), out, should_stop=lambda: True)
    RunDir(out).write_record(RunDir(out).read_record().model_copy(update={"status": "diverged"}))
    assert refused(out, rounds=9).startswith(f"resume: the run in '{out}' has diverged, so it ")
    out = tmp_path / "budget"
    start_run(small("method=fedavg", "rounds=3", "budget=bytes"), out)
    assert refused(out, rounds=9).startswith(
        f"resume: the 3 rounds of the run in '{out}' follow from budget=bytes, so there can be "
    )


def test_a_comparison_does_not_take_a_longer_run_for_its_own(tmp_path: Path) -> None:
    comparison = read_comparison([*SMALL, "fedavg", "baselines=false", "rounds=2", "seeds=0"])
    compare(comparison, tmp_path / "out")
    resume_run(tmp_path / "out" / "fedavg-seed0", changes={"rounds": 3})
    with pytest.raises(InputError, match="holds a run with another specification; "):
        compare(comparison, tmp_path / "out")


def test_killed_at_any_moment_while_it_goes_on(tmp_path: Path) -> None:
    """Either it is as long as before, or it goes on to its new length."""
    words = [*KINDS["server state"], "rounds=6"]
    expected = whole([*words, "rounds=8"], tmp_path / "straight")
    lengths = set()
    for at in (1, 2, 3, 5, 8, 13, 21):
        out = tmp_path / str(at) / "out"
        out.parent.mkdir()
        start_run(small(*words), out)
        child = process(words, out, at, {"rounds": 8})
        child.start()
        child.join()
        assert child.exitcode == -9
        lengths.add(RunDir(out).read_config().rounds)
        resume_run(out, changes={"rounds": 8})
        assert result(out) == expected
    assert lengths == {6, 8}
