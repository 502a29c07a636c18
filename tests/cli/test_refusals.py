"""Plausible input that cannot be used ends in one sentence with exit code 2, and leaves nothing."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import command_line
from command_line import Printed
from fedtailor.ops import cpu

Call = Callable[..., Printed]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Call:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "store"))
    monkeypatch.setattr(cpu, "count_processors", lambda: 2)
    return partial(command_line.call, monkeypatch, capfd)


HUGE = "9223372036854775808"
WORDS = [
    ("run =x", "There is no key ''; "),
    ("run lr=", "fedsim: lr must be a number, got ''."),
    ("run .=1", "There is no method ''; "),
    ("run data.=1", "digits: there is no option ''; "),
    ("run fedsim.=1", "fedsim has no hyper-parameter ''; "),
    ("run lr=nan", "fedsim: lr must be a number, got nan."),
    ("run lr=inf", "fedsim: lr must be a number, got inf."),
    ("run lr=1e999", "fedsim: lr must be a number, got inf."),
    ("run target=nan", "target: input should be a finite number, got nan."),
    ("run pretrain_lr=-inf", "pretrain_lr: "),
    (f"run rounds={HUGE}", f"rounds: input should be less than {HUGE}, got {HUGE}."),
    (f"run threads={HUGE}", f"threads: input should be less than {HUGE}, got {HUGE}."),
    (f"run hidden={HUGE}", f"hidden: input should be less than {HUGE}, got {HUGE}."),
    (f"run epochs={HUGE}", "fedsim: epochs must be a whole number of at most 64 bits, got "),
    (f"run lr={HUGE}", "fedsim: lr must be a number of at most 64 bits, got "),
    ("run threads=1000000", "threads must be at most "),
    ("compare jobs=1000000", "jobs must be at most "),
    ("compare jobs=x", "compare: jobs must be a positive number, got x."),
    ("run hidden=1000000000", "model: mlp with hidden=1000000000 needs at least "),
    ("run data.clients=true", "digits: clients must be a whole number of at least 1, got True."),
    (
        f"run data.clients={HUGE}",
        "digits: clients must be a whole number from 1 to 2**63 - 1, got ",
    ),
    ("run out=", "run: out must be a folder, got nothing."),
    ("run lr=1 lr=2", "run: lr is named twice; leave one out."),
    ("inspect cohort=1 cohort=2", "inspect: cohort is named twice; leave one out."),
    ("data show digits clients=9 data.clients=9", "data show: clients is named twice; "),
    ("compare fedavg fedavg", "methods: fedavg is named twice; leave one out, or give it a label "),
    ("compare fedavg@a fedavg@a", "methods: fedavg@a is named twice; "),
    ("compare methods=fedavg,fedavg", "methods: fedavg is named twice; "),
    ("compare fedavg fedavg --show", "methods: fedavg is named twice; "),
    ("compare seeds=1,2,1", "seeds: 1 is named twice; leave one out."),
    ("tune fedavg tune.lr=0.1,0.2,0.1", "tune: lr: 0.1 is named twice; leave one out."),
    (
        "tune fedavg local tune.lr=1,2 tune.fedavg.epochs=1,1",
        "tune: epochs: 1 is named twice; leave one out.",
    ),
    ("tune fedavg fedavg tune.lr=0.1,0.2", "methods: fedavg is named twice; "),
    ("tune fedavg tune.lr=0.1..inf", "tune: lr must be like 0.01..0.3, "),
    ("tune fedavg tune.lr=nan..1", "tune: lr must be like 0.01..0.3, "),
    ("tune fedavg tune.lr=", "tune: lr must have values to try, got none."),
    ("tune fedavg tune.lrr=1,2", "tune: there is no hyper-parameter 'lrr'; did you mean lr?"),
    ("tune fedavg tune.fedsmi.lr=1", "There is no method 'fedsmi'; did you mean fedsim?"),
    ("tune fedavg trials=1000000000 tune.lr=0.1..1", "trials: input should be less than or equal "),
    ("run trials=3", "There is no key 'trials'; it is one of `compare` and `tune`."),
    ("run baselines=false", "There is no key 'baselines'; it is one of `compare` and `tune`."),
    ("compare label=x", "There is no key 'label'; it is one of `run`."),
    ("run method=fedavg lam=1", "There is no key 'lam'; it is a hyper-parameter of fedprox, "),
    ("run hparams=3", "'hparams' is no argument; write KEY=VALUE for a hyper-parameter, or "),
    ("run hparams.lr=3", "'hparams.lr' is no argument; write KEY=VALUE for a hyper-parameter, or "),
    ("run data_options=3", "'data_options' is no argument; write data.KEY=VALUE for an option of "),
    ("compare tune=3", "'tune' is no argument; write tune.KEY=VALUES or tune.METHOD.KEY=VALUES."),
    ("run jobs=2", "run: jobs is an option of compare, tune, study; leave it out."),
    ("inspect out=x", "inspect: out is an option of run, compare, tune, study; leave it out."),
    ("run a.toml b.toml", "One file is expected, got a.toml, b.toml."),
    ("run no.toml", "There is no file 'no.toml'."),
    ("run folder.toml", "'folder.toml' is not a file."),
    ("run loop.toml", "'loop.toml' cannot be read: Too many levels of symbolic links."),
    ("run pipe.toml", "'pipe.toml' is not a file."),
    ("run data=loop.npz", "'"),
    ("run model=loop.py:Net", "model: there is no Python file 'loop.py'."),
    ("run model=folder.toml:Net", "model: there is no Python file 'folder.toml'."),
    ("run device=cuda:99999999999999", "Engine: device 'cuda:99999999999999' was asked for, but "),
    ("run device=cpu:-1", "Engine: device 'cpu:-1' was asked for, but PyTorch sees no device of "),
    ("run out=loop.npz/x", "'loop.npz/x' could not be written: Too many levels of symbolic links"),
    ("run out=file/x", "'file/x' could not be written, as '"),
    ("resume file", "'file' holds no run: "),
    ("resume loop.npz", "'loop.npz' holds no run: "),
    ("report file", "'file' holds no run."),
    ("report loop.npz", "'loop.npz' holds no run."),
    ("predict file --data file --to x.csv", "'file' cannot be read as an .npz file of plain "),
    ("run --nope", "No such option: --nope; see: fedtailor run --help"),
    ("resume a b", "'a' holds no run: there is no config.json in it"),
    ("data show digits --limit x", "Invalid value for '--limit': "),
]


@pytest.mark.parametrize(("words", "sentence"), WORDS, ids=[row[0][:60] for row in WORDS])
def test_arguments(words: str, sentence: str, call: Call, tmp_path: Path) -> None:
    for name in ("loop.toml", "loop.npz", "loop.py"):
        Path(name).symlink_to(name)
    Path("folder.toml").mkdir()
    Path("file").touch()
    os.mkfifo("pipe.toml")
    before = sorted(tmp_path.iterdir())
    printed = call(*words.split())
    assert printed.code == 2
    # The store is where compiled code is kept.
    assert sorted(set(tmp_path.iterdir()) - {tmp_path / "store"}) == before
    assert not list(Path("folder.toml").iterdir())
    assert printed.err.startswith(f"fedtailor: {sentence}")
    assert printed.out == ""


FILES = [
    ('method = "fedavg"\n[hparams]\nlr = [1, 2]', "fedavg: lr must be a number, got [1, 2]."),
    ('method = "fedavg"\n[hparams]\nlr = 2020-01-01', "fedavg: lr must be a number, got datetime"),
    ('method = "fedavg"\n[hparams]\nlr = {a = 1}', "'lr' is not the method of this run"),
    ('method = "fedavg"\n[hparams]\nlr = true', "fedavg: lr must be a number, got True."),
    ('method = "fedavg"\n[hparams]\nlr = nan', "fedavg: lr must be a number, got nan."),
    (f'method = "fedavg"\n[hparams]\nbatch = {HUGE}', "fedavg: batch must be a whole number of "),
    ("method = 3", "method: must be a name, got 3."),
    ('method = ["fedavg"]', "method: must be a name, got ['fedavg']."),
    ("rounds = 2020-01-01", "rounds: input should be a valid integer, got datetime"),
    ("rounds = [1]", "rounds: input should be a valid integer, got [1]."),
    ("rounds = 1.0", "rounds: input should be a valid integer, got 1.0."),
    (f"seed = {HUGE}", f"seed: input should be less than {HUGE}, got "),
    ("hidden = 3", "hidden: input should be a valid tuple, got 3."),
    ("data = 3", "data: input should be a valid string, got 3."),
    ('data = "a\\u0000b.npz"', "data: must not hold a null character, got 'a\\x00b.npz'."),
    ('model = "a\\u0000b.py:Net"', "model: must not hold a null character, got "),
    ("data_options = 3", "data_options: must be a table, got 3."),
    (
        "[data_options]\nclients = [3]",
        "digits: clients must be a whole number of at least 1, got ",
    ),
    ("[data_options]\nclients = 2020-01-01", "digits: clients must be a whole number of at least "),
    (
        "[data_options.clients]\na = 3",
        "digits: clients must be a whole number of at least 1, got ",
    ),
    ("hparams = 3", "hparams: must be a table, got 3."),
    ("[hparams]\nfedsim = 3", "hparams.fedsim: must be a table, got 3."),
    ("[hparams.fedavg]\nlr = 1", "'fedavg' is not the method of this run, which is fedsim."),
    ("[other]\nlr = 1", "There is no key 'other'; "),
    ('"" = 1', "There is no key ''; "),
    ("trials = 3", "There is no key 'trials'; it is one of `compare` and `tune`."),
    ("a = 1\na = 2", "'x.toml' cannot be read as TOML: "),
    ("a = 1\0", "'x.toml' cannot be read as TOML: "),
    ("a = \udcff\udcfe", "'x.toml' cannot be read as TOML: "),
    ("rounds = " + "1" * 5000, "'x.toml' cannot be read as TOML: "),
    ("a = " + "[" * 10_000 + "]" * 10_000, "'x.toml' has tables or lists that are nested too "),
    ("a = " + "[" * 90 + "]" * 90, "'x.toml' has tables or lists that are nested too deeply for "),
    ("data_options" + ".a" * 10_000 + " = 1", "'x.toml' has tables or lists that are nested too "),
    ("#" * (1 << 25), "'x.toml' has 33,554,432 bytes, too many for a specification."),
]


@pytest.mark.parametrize(("text", "sentence"), FILES, ids=[row[0][:40] for row in FILES])
def test_files(text: str, sentence: str, call: Call, tmp_path: Path) -> None:
    Path("x.toml").write_bytes(os.fsencode(text))
    printed = call("run", "x.toml")
    assert printed.code == 2
    assert printed.err.startswith(f"fedtailor: {sentence}")
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


COMPARISONS = [
    ('methods = "fedavg"', "methods: input should be a valid tuple, got 'fedavg'."),
    ("methods = [1, 2]", "methods: input should be a valid string, got 1."),
    ('methods = ["fedavg", "fedavg"]', "methods: fedavg is named twice; leave one out, or "),
    ("seeds = [1, 1]", "seeds: 1 is named twice; leave one out."),
    ("seeds = [1.5]", "seeds: input should be a valid integer, got 1.5."),
    ("[tune]\nlr = [0.1, 0.1]", "tune: lr: 0.1 is named twice; leave one out."),
    ("[tune]\nfedavg = 3", "tune: there is no hyper-parameter 'fedavg'; "),
    ("[tune.fedsmi]\nlr = [0.1]", "There is no method 'fedsmi'; did you mean fedsim?"),
    ("tune = 3", "tune: must be a table, got 3."),
    ("tuned = 3", "tuned: must be a table, got 3."),
    ("tuned = {fedavg = 3}", "tuned: input should be a valid dictionary, got 3."),
    ('[hparams]\n"fedavg@x" = 3', "There is no key 'fedavg@x'; "),
    ("label = 3", "There is no key 'label'; it is one of `run`."),
]


@pytest.mark.parametrize(("text", "sentence"), COMPARISONS, ids=[row[0] for row in COMPARISONS])
def test_files_of_comparisons(text: str, sentence: str, call: Call, tmp_path: Path) -> None:
    Path("x.toml").write_text(text)
    printed = call("tune", "x.toml", "out=out")
    assert printed.code == 2
    assert printed.err.startswith(f"fedtailor: {sentence}")
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_arguments_do_not_go_into_what_is_no_table(call: Call) -> None:
    Path("x.toml").write_text('[hparams]\n"fedavg@x" = 3\n[tune]\nfedavg = 3\n')
    printed = call("compare", "x.toml", "fedavg@x.lr=1")
    assert printed.err == "fedtailor: fedavg@x: must be a table, got 3.\n"
    printed = call("tune", "x.toml", "tune.fedavg.lr=1")
    assert printed.err == "fedtailor: tune.fedavg: must be a table, got 3.\n"


def test_a_grid_that_is_too_large_is_not_listed(call: Call) -> None:
    values = ",".join(str(value) for value in range(1, 1001))
    words = [f"tune.{key}={values}" for key in ("batch", "epochs", "steps", "finetune_epochs")]
    printed = call("tune", "fedavg", *words, "baselines=false")
    assert printed.err.startswith(
        "fedtailor: fedavg: there are 1,000,000,000,000 points to try, more than 1,000,000; "
    )
