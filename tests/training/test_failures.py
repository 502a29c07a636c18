"""What goes wrong ends in one sentence and exit code 2, damages nothing, and can be resumed."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.cli import main
from fedtailor.errors import InputError
from fedtailor.training.overrides import read_run_config
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from interruptions import (
    SMALL,
    Fault,
    begin_or_go_on,
    command,
    faulty,
    full_disk,
    left,
    litter,
    small,
    touches,
)

SHORT = [
    "method=local",
    "when=sampled",
    "rounds=2",
    "checkpoint_every=1",
    "evaluate_every=2",
    "eval_clients=1",
]
SENTENCE = re.compile(r"'.+' could not be written: No space left on device; .+")


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """numpy leaves a file open that is no archive; it must not be found open in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def files_in(place: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in place.rglob("*")
    }


def meet_full_disk(at: int, out: Path) -> str:
    """Meets a full disk at the n-th touch; what was met, "" if that did not matter."""
    fault = Fault(at, full_disk)
    try:
        with faulty(fault):
            begin_or_go_on(SHORT, out)
        return ""
    except InputError as problem:
        said = str(problem)
    assert SENTENCE.fullmatch(said), said
    assert litter(out) == [], fault.met
    can_be_resumed = "the last checkpoint is intact, so fix that and resume with: fedtailor resume"
    assert (out / "config.json").exists() == (can_be_resumed in said)
    assert out.exists() == (out / "config.json").exists()
    return fault.met


def every_full_disk(tmp_path: Path, step: int) -> list[str]:
    """Meets a full disk at every `step`-th touch, each in a run of its own; makes room; goes on."""
    total, met = touches(SHORT, tmp_path / "whole"), []
    expected = left(tmp_path / "whole")
    for at in range(1, total + 1, step):
        out = tmp_path / f"{at}"
        met.append(meet_full_disk(at, out))
        assert begin_or_go_on(SHORT, out).is_finished
        assert left(out) == expected
        assert litter(out) == []
    return met


def test_a_full_disk_at_some_touches(tmp_path: Path) -> None:
    met = every_full_disk(tmp_path, 6)
    assert len([each for each in met if each]) >= 8


@pytest.mark.slow
def test_a_full_disk_at_every_touch(tmp_path: Path) -> None:
    met = every_full_disk(tmp_path, 1)
    print(f"{len(met)} faults, {met.count('')} of them of no matter")
    assert {"open", "write", "fsync", "replace", "mkdir"} <= {*met}


def test_a_full_disk_again_and_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start_run(small(*SHORT), tmp_path / "whole")
    met = [meet_full_disk(at, out) for at in (1, 4, 12, 20, 33, 9, 21, 25, 3)]
    assert "" not in met
    assert begin_or_go_on(SHORT, out).is_finished
    assert left(out) == left(tmp_path / "whole")


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    out, said, words = tmp_path / "out", tmp_path / "said", ["rounds=2", *SMALL, "method=fedavg"]
    # The record before the first round has about 5 KB, the last one 14 KB.
    for most, end in (
        (1500, "nothing has begun, so fix that and run it again."),
        (8000, f"the last checkpoint is intact, .*: fedtailor resume {out}"),
    ):
        assert not out.exists()
        said.unlink(missing_ok=True)
        child = command(["run", *words, f"out={out}"], said, most=most)
        child.join()
        assert child.exitcode == 2
        (sentence,) = [
            line for line in said.read_text().splitlines() if line.startswith("fedtailor:")
        ]
        assert re.fullmatch(
            rf"fedtailor: '.+' could not be written: File too large; {end}", sentence
        )
    assert "Traceback" not in said.read_text()
    assert litter(out) == []
    resumed = command(["resume", str(out)], said)
    resumed.join()
    assert resumed.exitcode == 0
    start_run(small("rounds=2", "method=fedavg"), tmp_path / "whole")
    assert left(out) == left(tmp_path / "whole")


LONG = [
    "method=local",
    "when=sampled",
    "rounds=8",
    "epochs=25",
    "checkpoint_every=100",
    "evaluate_every=8",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("whole") / "out"
    start_run(small(*LONG), out)
    return left(out)


def wait_for_round(out: Path) -> None:
    for _ in range(3000):
        if (out / "rounds.jsonl").exists() and len(RunDir(out).read_rounds()) >= 2:
            return
        time.sleep(0.01)
    raise AssertionError("no round has ended")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_round(
    kind: signal.Signals, tmp_path: Path, whole: dict[str, Any]
) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    child = command(["run", *SMALL, *LONG, f"out={out}"], said)
    wait_for_round(out)
    os.kill(child.pid or 0, kind)
    child.join()
    assert child.exitcode == 130
    assert said.read_text().splitlines()[-2:] == [
        "Stopping after this round; interrupt again to stop immediately.",
        f"Stopped and saved. Resume with: fedtailor resume {out}",
    ]
    record = RunDir(out).read_record()
    assert record.status == "interrupted"
    done = len(record.rounds)
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"{done:06}"]
    assert (out / "report.html").exists()
    resumed = command(["resume", str(out)], said)
    resumed.join()
    assert resumed.exitcode == 0
    assert f"resuming after round {done}\n" in said.read_text()
    assert left(out) == whole


def replace_words(words: list[str], *new_words: str) -> list[str]:
    """Return KEY=VALUE words with other values for some keys."""
    new_keys = {word.partition("=")[0] for word in new_words}
    return [*(word for word in words if word.partition("=")[0] not in new_keys), *new_words]


def test_a_second_signal_stops_at_once_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    out, said, words = (
        tmp_path / "out",
        tmp_path / "said",
        [*replace_words(LONG, "rounds=3", "epochs=400", "checkpoint_every=1")],
    )
    child = command(["run", *SMALL, *words, f"out={out}"], said)
    wait_for_round(out)
    for _ in range(2):
        os.kill(child.pid or 0, signal.SIGINT)
        time.sleep(0.1)
    child.join()
    assert child.exitcode == 130
    assert said.read_text().splitlines()[-2:] == [
        "Stopping after this round; interrupt again to stop immediately.",
        "fedtailor: stopped immediately; what was saved before is intact.",
    ]
    assert litter(out) == []
    assert len(RunDir(out).read_rounds()) == 2
    assert begin_or_go_on(words, out).is_finished
    start_run(small(*words), tmp_path / "whole")
    assert left(out) == left(tmp_path / "whole")


def test_a_comparison_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    out, said = tmp_path / "my runs", tmp_path / "said"
    words = [
        "compare",
        "fedavg",
        "local",
        "when=sampled",
        "seeds=0",
        *SMALL,
        *LONG[2:],
        f"out={out}",
    ]
    child = command(words, said)
    for _ in range(3000):
        if (out / "local-seed0" / "rounds.jsonl").exists():
            break
        time.sleep(0.01)
    os.kill(child.pid or 0, signal.SIGTERM)
    child.join()
    assert child.exitcode == 130
    assert said.read_text().splitlines()[-1].endswith(f"'out={out}'")
    again = command(words, said)
    again.join()
    assert again.exitcode == 0
    start_run(small(*LONG), tmp_path / "whole")
    assert left(out / "local-seed0") == left(tmp_path / "whole")


def test_the_real_command_stops_and_says_how_to_go_on(tmp_path: Path) -> None:
    words = ["run", *SMALL, *replace_words(LONG, "rounds=500"), "out=out"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedtailor", *words], cwd=tmp_path, stdout=subprocess.PIPE
    ) as child:
        wait_for_round(tmp_path / "out")
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate()
    assert child.returncode == 130
    assert (
        printed.decode().splitlines()[-1] == "Stopped and saved. Resume with: fedtailor resume out"
    )


@pytest.mark.parametrize(
    "words",
    [
        "methods",
        "compare local fedavg rounds=1 local_epochs=1 seeds=0 data.clients=12 cohort=4 out=out",
    ],
)
def test_a_closed_pipe_is_no_traceback(words: str, tmp_path: Path) -> None:
    shell = f"{sys.executable} -m fedtailor {words} | head -c 5"
    done = subprocess.run(
        shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stderr, len(done.stdout)) == ("", 5)


def prepare_files(place: Path) -> None:
    """Things that are not what they ought to be."""
    x, y, client = np.zeros((40, 3)), np.arange(40) % 2, np.repeat(np.arange(8), 5)
    x += np.arange(120).reshape(40, 3) / 120
    np.savez(place / "good.npz", x=x, y=y, client=client)
    (place / "text.npz").write_text("x,y\n1,2\n")
    (place / "cut.npz").write_bytes((place / "good.npz").read_bytes()[:-300])
    (place / "empty.npz").write_bytes(b"")
    np.savez(place / "pickled.npz", x=np.array([{}] * 40), y=y, client=client)
    np.savez(place / "lacking.npz", x=x, y=y)
    np.savez(place / "short.npz", x=x, y=y[:-1], client=client)
    np.save(place / "array.npy", x)
    (place / "array.npy").rename(place / "array.npz")
    (place / "folder.npz").mkdir()
    (place / "bad.toml").write_text("rounds = = 3\n")
    (place / "key.toml").write_text("round = 3\n")
    (place / "hyper.toml").write_text("lr = 0.1\n")
    (place / "table.toml").write_text("hparams = 3\n")
    (place / "tables.toml").write_text("[hparams]\nfedavg = 3\n")
    (place / "binary.toml").write_bytes(b"\xff\xfe")
    (place / "raises.py").write_text("1 / 0\n")
    (place / "syntax.py").write_text("def f(:\n")
    (place / "own.py").write_text(
        "def needs(x):\n    return x\n\ndef text():\n    return 'text'\n\nthing = 3\n"
    )
    (place / "file").write_text("mine")
    (place / "full").mkdir()
    (place / "full" / "mine.txt").write_text("mine")
    start_run(small("method=fedavg", "rounds=1"), place / "run")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    prepare_files(place)
    return place


WRONG = [
    ("run method=fedsm", "There is no method 'fedsm'; did you mean fedsim?"),
    ("run data=digit", "There is no data set 'digit'; did you mean digits?"),
    ("run round=3", "There is no key 'round'; did you mean rounds?"),
    ("run model=mpl", "There is no model 'mpl'; did you mean mlp?"),
    ("run data.client=3", "digits: there is no option 'client'; did you mean clients?"),
    ("run method=fedavg lr=fast", "fedavg: lr must be a number, got 'fast'."),
    ("run method=local when=never", "local: when must be end or sampled, got 'never'."),
    ("run rounds=many", "rounds: input should be a valid integer, got 'many'."),
    ("run rounds=true", "rounds: input should be a valid integer, got True."),
    ("run rounds=1.5", "rounds: input should be a valid integer, got 1.5."),
    ("run hidden=8,x", "hidden: input should be a valid integer, got 'x'."),
    ("run hidden=0", "hidden: input should be greater than or equal to 1, got 0."),
    ("run seed=-1", "seed: input should be greater than or equal to 0, got -1."),
    (
        "run compile=perhaps",
        "compile: input should be true or false, or 'auto' or 'training', got 'perhaps'.",
    ),
    ("run method=fedavg fedsim.lam=1", "'fedsim' is not the method of this run, which is fedavg."),
    ("run device=abacus", "Engine: device must be cpu, cuda or mps, got 'abacus'."),
    ("run data.clients=many", "digits: clients must be a whole number of at least "),
    ("run bad.toml", "'bad.toml' cannot be read as TOML: "),
    ("run binary.toml", "'binary.toml' cannot be read as TOML: "),
    ("run full", "'full' is neither FILE.toml nor KEY=VALUE."),
    ("run none.toml", "There is no file 'none.toml'."),
    ("run key.toml", "There is no key 'round'; did you mean rounds?"),
    ("run hyper.toml", "There is no key 'lr'; put it under [hparams] as lr = ..."),
    ("run table.toml", "hparams: must be a table, got 3."),
    ("run tables.toml", "hparams.fedavg: must be a table, got 3."),
    ("run data=none.npz", "There is no file '"),
    ("run data=text.npz", "'*/text.npz' cannot be read as an .npz file of plain arrays: "),
    ("run data=cut.npz", "'*/cut.npz' cannot be read as an .npz file of plain arrays: "),
    ("run data=empty.npz", "'*/empty.npz' cannot be read as an .npz file of plain arrays: "),
    ("run data=array.npz", "'*/array.npz' cannot be read as an .npz file of plain arrays: "),
    ("run data=folder.npz", "'*/folder.npz' cannot be read as an .npz file of plain arrays: "),
    ("run data=pickled.npz", "'*/pickled.npz' cannot be read as an .npz file of plain arrays: "),
    ("run data=lacking.npz", "'*/lacking.npz' must hold arrays x, y, client, but has only x, y."),
    (
        "run data=short.npz",
        "short: x, y and client must be equally long, got lengths [40, 39, 40].",
    ),
    ("run model=none.py:Net", "model: there is no Python file '"),
    (
        "run model=raises.py:Net",
        "model: '*/raises.py' failed with ZeroDivisionError: division by zero",
    ),
    ("run model=syntax.py:Net", "model: '*/syntax.py' failed with SyntaxError: "),
    ("run model=own.py:Net", "model: '*/own.py' has no 'Net'; "),
    (
        "run model=own.py:thing",
        "model: 'thing' in '*/own.py' must be a class or function that makes a model.",
    ),
    (
        "run model=own.py:needs",
        "model: '*/own.py:needs' failed with TypeError: needs() missing 1 required ",
    ),
    (
        "run model=own.py:text",
        "model: '*/own.py:text' must make an nn.Module or a fedtailor Task, but made a str.",
    ),
    ("run out=file", "'file' is a file; choose another folder."),
    (
        "run out=file/inside",
        "'file/inside' could not be written, as '*/file' is no folder that may be written ",
    ),
    ("run out=full", "'full' is not empty; choose another folder."),
    ("run out=run", "'run' holds another run already; resume it with: fedtailor resume run"),
    ("compare fedsm", "There is no method 'fedsm'; did you mean fedsim?"),
    ("compare fedavg seeds=1,x", "seeds: input should be a valid integer, got 'x'."),
    ("compare fedavg seeds=", "seeds: "),
    ("compare fedavg out=file", "'file' is a file; choose another folder with out=DIR."),
    ("compare fedavg out=full", "'full' holds 'mine.txt'; choose another folder with out=DIR."),
    ("compare fedavg out=run", "'run' holds a single run; choose another folder with out=DIR."),
    ("resume none", "'none' holds no run: there is no config.json in it."),
    ("resume full", "'full' holds no run: there is no config.json in it."),
    ("resume file", "'file' holds no run: there is no config.json in it."),
    ("report none", "'none' holds no run."),
    (
        "report run --to none/report.html",
        "'none/report.html' could not be written: No such file or directory; ",
    ),
    ("methods fedsm", "There is no method 'fedsm'; did you mean fedsim?"),
    ("data digit", "There is no data set 'digit'; did you mean digits?"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[row[0] for row in WRONG])
def test_bad_input_is_one_sentence_and_changes_nothing(
    words: str,
    sentence: str,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(prepared)
    given = words.split()
    if given[0] in ("run", "compare") and "out=" not in words:
        given.append("out=fresh")
    before = files_in(prepared)
    monkeypatch.setattr(sys, "argv", ["fedtailor", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    assert re.match("fedtailor: " + re.escape(sentence).replace(r"\*", ".*"), said.err), said.err
    assert said.err.count("\n") == 1
    cached = {name for name in files_in(prepared) if "__pycache__" in name}
    assert {
        name: content for name, content in files_in(prepared).items() if name not in cached
    } == before


def test_a_finished_run_says_so(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedtailor", "resume", str(prepared / "run")])
    main()
    assert (
        capfd.readouterr().out.replace("\n", "")
        == f"The run in {prepared / 'run'} has finished already."
    )


@pytest.mark.parametrize("name", ["config.json", "record.json"])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"format": 4, "config": {"rounds": "x"}, "status": 1}',
        '{"format": 1}',
        "\x00",
    ],
)
def test_damaged_words_of_a_run_are_one_sentence(
    name: str, content: str, prepared: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(prepared / "run", tmp_path / "run")
    (out / name).write_text(content)
    with pytest.raises(InputError) as caught:
        begin_or_go_on([], out)
    assert f"{name}' " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    x, y, client = (
        np.random.default_rng(0).normal(size=(80, 3)),
        np.arange(80) % 2,
        np.repeat(np.arange(8), 10),
    )
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=client)
    words = ["method=fedavg", f"data={tmp_path / 'mine.npz'}", "cohort=2", "rounds=2", "hidden=4"]
    start_run(read_run_config(words), tmp_path / "out", should_stop=lambda: True)
    x[17, 1] += 1e-9
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=client)
    with pytest.raises(
        InputError,
        match=r"^Data set '.*mine.npz' has changed since the run began; restore it to resume\.$",
    ):
        begin_or_go_on(words, tmp_path / "out")
