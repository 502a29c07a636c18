import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedtailor import cli, methods
from fedtailor.data import CATALOG


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedtailor", *words], capture_output=True, text=True, check=False
    )


def test_compare_prints_one_table_and_names_a_report(tmp_path: Path) -> None:
    words = (
        "local",
        "fedavg",
        "fedsim",
        "rounds=2",
        "local.local_epochs=2",
        "data.clients=12",
        "cohort=4",
        f"out={tmp_path / 'out'}",
    )
    done = run("compare", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for name in ("local", "fedavg", "fedsim"):
        rows = re.findall(rf"^ {name} +\d+\.\d ±", done.stdout, re.MULTILINE)
        assert len(rows) == 2, name  # participating clients, unseen clients
    assert re.search(r"^All \d+ runs took \d+\.\d s: training \d", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == f"Report: {tmp_path / 'out' / 'report.html'}"
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000


def test_a_run_that_diverges_leaves_the_table_of_the_others(tmp_path: Path) -> None:
    words = ("fedavg", "fedprox", "fedprox.lr=1e30", "baselines=false", "seeds=0,1", "rounds=2")
    small = ("data.clients=12", "cohort=4", "hidden=8", "threads=1", "compile=false")
    done = run("compare", *words, *small, f"out={tmp_path / 'out'}")
    assert done.returncode == 3
    assert done.stderr == ""
    assert re.search(r"^ fedavg +\d+\.\d ±", done.stdout, re.MULTILINE)
    assert re.search(r"^ fedprox +diverged +diverged", done.stdout, re.MULTILINE)
    said = " ".join(done.stdout.split())
    assert "fedprox: 2 of 2 seeds diverged" in said
    assert "2 of 4 runs diverged: fedprox (seed 0), fedprox (seed 1). fedprox: the model's" in said
    assert (tmp_path / "out" / "report.html").exists()
    again = run("compare", *words, *small, f"out={tmp_path / 'out'}")
    assert again.returncode == 3
    assert re.search(r"^ fedavg +\d+\.\d ±", again.stdout, re.MULTILINE)


WRONG = [
    ("fedsm", "There is no method 'fedsm'; did you mean fedsim?"),
    ("lrr=1", "There is no key 'lrr'; did you mean lr?"),
    ("rounds=x", "rounds: "),
    ("rounds=0", "rounds: "),
    ("lr=-1", "local: lr must be positive, got -1."),
    ("data=digit", "There is no data set 'digit'; did you mean digits?"),
    ("data=no.npz", "There is no file '"),
    ("data.people=3", "digits: there is no option 'people'; "),
    ("fedavg fedsim.lam=1", "'fedsim' is not among the methods fedavg."),
    ("fedsim.lamm=1", "fedsim has no hyper-parameter 'lamm'; did you mean lam?"),
    (
        "fedavg cohort=99",
        "fedavg: 99 clients a round were asked for, but data set 'digits' has 35 to train on; ",
    ),
    (
        "fedsim data.server=0",
        "fedsim: the server's work needs data, but data set 'digits' gives the server none; ",
    ),
    ("model=mpl", "There is no model 'mpl'; did you mean mlp?"),
    ("model=no.py:Net", "model: there is no Python file 'no.py'."),
    ("no.toml", "There is no file 'no.toml'."),
    ("engine=vector", "engine: "),
    (
        "compile=perhaps",
        "compile: input should be true or false, or 'auto' or 'training', got 'perhaps'.",
    ),
    ("seeds=1,x", "seeds: "),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[row[0] for row in WRONG])
def test_wrong_words_end_in_one_sentence_and_leave_nothing(
    words: str, sentence: str, tmp_path: Path
) -> None:
    from fedtailor.errors import InputError
    from fedtailor.experiments.compare import compare
    from fedtailor.training.overrides import read_comparison

    with pytest.raises(InputError) as caught:
        compare(read_comparison(words.split()), tmp_path / "out")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_commands_seldom_look_for_garbage_among_what_torch_makes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, found = gc.get_threshold(), list[int]()
    monkeypatch.setattr(cli, "app", lambda **_: found.append(gc.get_threshold()[0]))
    gc.set_threshold(700)
    cli.main()
    gc.set_threshold(*before)
    assert found[0] > 700


def test_a_wrong_word_exits_with_2_and_no_traceback() -> None:
    done = run("compare", "fedsm")
    assert done.returncode == 2
    assert done.stderr == "fedtailor: There is no method 'fedsm'; did you mean fedsim?\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "compare",
        "tune",
        "study",
        "inspect",
        "resume",
        "methods",
        "data",
        "report",
        "personalize",
        "export",
        "predict",
        "verify",
    ],
)
def test_every_command_has_an_example_in_its_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"fedtailor {command}" in done.stdout.split("Example", 1)[1]


def test_the_help_of_run_names_every_key_and_model() -> None:
    from fedtailor.training.config import RunConfig
    from fedtailor.training.from_config import MODELS

    said = " ".join(run("run", "--help").stdout.replace("│", " ").split())
    keys, models = re.findall(r"Keys: (.+?);.*Models: (.+?)\. ", said)[0]
    assert set(models.split(", ")) == set(MODELS)
    assert {*keys.split(", "), "data_options", "hparams"} - {"out"} == set(RunConfig.model_fields)


def test_lists_for_programs() -> None:
    listed = json.loads(run("methods", "--json").stdout)
    assert [entry["method"] for entry in listed] == list(methods.NAMES)
    assert {entry["method"]: entry["needs"] for entry in listed}[
        "fedsim"
    ] == "server data, individual uploads"
    listed = json.loads(run("data", "--json").stdout)
    names = [entry["data"] for entry in listed]
    assert names[:4] == ["digits", "synthetic", "mnist", "fashion-mnist"]
    assert names[-1] == "FILE.npz"
    assert set(CATALOG) < set(names)
    assert listed[0]["status"] == "built in"
    (entry,) = json.loads(run("methods", "fedsim", "--json").stdout)
    assert "algorithm 2" in entry["description"]
    meanings = {row["name"]: row["meaning"] for row in entry["hparams"]}
    assert meanings["beta"] == "step size along the meta-gradient"


def test_the_list_of_methods_fits_a_page() -> None:
    done = run("methods")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    figures = dict(re.findall(r"^(\S+) +(\d+\.\d +\S+ +\w+)  ", done.stdout, re.MULTILINE))
    assert list(figures) == list(methods.NAMES)
    assert figures["fedavg"].split() == ["1.0", "1.0", "yes"]
    assert figures["scaffold"].split() == ["2.0", "1.0", "yes"]
    assert figures["fedsim"].split() == ["1.0", "1.0", "no"]
    assert figures["local"].split() == ["0.0", "-", "yes"]
    assert "  FedAvg whose clients are held near the global model (Li et al., MLSys 2020)" in lines
    assert lines[-1] == "for example fsl+fedsim, or fsl+per+fedmeta."
    for word in methods.WRAPPERS:
        assert re.search(rf"^  {word} +\w", done.stdout, re.MULTILINE), word


def test_one_method_is_shown_with_its_costs_and_hyper_parameters() -> None:
    done = run("methods", "fsl+pfedme")
    assert done.returncode == 0, done.stderr
    for sentence in (
        "w' = (1 - beta) w + beta mean_i w_i",
        "needs      server data, client state",
        "gradients  5.0 times FedAvg's floating-point operations a local step",
        "secure     yes",
    ):
        assert sentence in done.stdout
    assert re.search(
        r"^inner_steps +5 +> 0 +steps of the personal model on each batch",
        done.stdout,
        re.MULTILINE,
    )
    assert re.search(
        r"^gamma +1\.0 +>= 0 +weight of the server's learning", done.stdout, re.MULTILINE
    )
    assert re.search(r"^learn_lr +none +> 0 ", done.stdout, re.MULTILINE)
    refused = run("methods", "per+afml")
    assert refused.returncode == 2
    assert refused.stderr.startswith("fedtailor: personal layers: afml ")
    assert refused.stdout == ""


def test_show_prints_a_file_that_makes_the_same_run(tmp_path: Path) -> None:
    from fedtailor.training.overrides import format_toml, read_run_config

    spec = read_run_config(
        ["method=fedprox", "lam=0.3", "hidden=8,4", "data.clients=12", "rounds=7"]
    )
    (tmp_path / "my.toml").write_text(format_toml(spec))
    assert read_run_config([str(tmp_path / "my.toml")]) == spec
    assert read_run_config([str(tmp_path / "my.toml"), "lam=0.4"]).hparams["lam"] == 0.4
    assert "finetune_epochs = 5" in format_toml(spec)


def test_what_compare_shows_is_one_file_that_makes_the_same_runs(tmp_path: Path) -> None:
    from fedtailor.training.overrides import read_comparison

    words = ["fedavg", "fedprox@strong", "fedprox@strong.lam=3", "seeds=4"]
    done = run("compare", "--show", *words)
    assert done.returncode == 0, done.stderr
    (tmp_path / "my.toml").write_text(done.stdout)
    shown = read_comparison([str(tmp_path / "my.toml")])
    assert shown.methods == ("local", "fedavg", "fedprox@strong")
    assert shown.make_run_configs() == read_comparison(words).add_baselines().make_run_configs()


def test_tuning_ends_in_a_comparison_that_runs(tmp_path: Path) -> None:
    small = [
        "data.clients=12",
        "rounds=2",
        "cohort=2",
        "hidden=8",
        "finetune_epochs=1",
        "local.local_epochs=2",
        "seeds=0",
    ]
    done = run(
        "tune",
        "fedavg",
        "local",
        *small,
        "tune.lr=0.1,0.5",
        "trials=2",
        f"out={tmp_path / 'tuned'}",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.endswith("*")] == ["fedavg", "local"]
    assert lines[-1].startswith("Run it with: fedtailor compare ")
    done = run("compare", str(tmp_path / "tuned" / "tuned.toml"), f"out={tmp_path / 'compared'}")
    assert done.returncode == 0, done.stderr
    assert run("tune", "fedavg").returncode == 2


@pytest.mark.parametrize("command", ["compare", "tune"])
def test_the_help_names_the_seeds_and_how_to_fix_the_data(command: str) -> None:
    shown = " ".join(run(command, "--help").stdout.split())
    assert "seeds=0,1,2,3,4" in shown
    assert "data.seed=0" in shown
