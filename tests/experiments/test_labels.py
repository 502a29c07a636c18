"""Methods several times in one comparison, told apart by a mark; and compositions by name."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedtailor.cli import app
from fedtailor.cli.catalog import describe_method
from fedtailor.errors import InputError
from fedtailor.experiments.compare import compare, get_run_path
from fedtailor.reporting.comparison_table import build_tables
from fedtailor.reporting.html import write_report
from fedtailor.training.overrides import format_toml, read_comparison, read_run_config
from fedtailor.training.run_dir import RunDir, find_runs
from fedtailor.training.runner import start_run
from interruptions import small
from known import known

SMALL = [
    "data.clients=12",
    "hidden=8",
    "cohort=4",
    "batch=200",
    "finetune_epochs=1",
    "threads=1",
    "rounds=1",
]


def test_marked_methods_have_their_own_hyper_parameters() -> None:
    words = [
        "fedmeta",
        "fedmeta@a",
        "fedmeta@b",
        "lr=0.3",
        "fedmeta.alpha=0.2",
        "fedmeta@a.order=1",
        "fedmeta@b.lr=0.1",
    ]
    specs = {spec.label: spec for spec in read_comparison(words).make_run_configs()}
    assert list(specs) == ["", "fedmeta@a", "fedmeta@b"]
    assert {spec.method for spec in specs.values()} == {"fedmeta"}
    assert [spec.hparams["order"] for spec in specs.values()] == [2, 1, 2]
    assert [spec.hparams["lr"] for spec in specs.values()] == [0.3, 0.3, 0.1]
    assert [spec.hparams["alpha"] for spec in specs.values()] == [0.2, 0.2, 0.2]


def test_a_file_may_mark_methods_too(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'methods = ["fedsim@strong", "fsl+fedsim"]\n[hparams."fedsim@strong"]\nlam = 9\n'
    )
    specs = read_comparison(
        [str(tmp_path / "my.toml"), "fsl+fedsim.gamma=0.5", "seeds=0"]
    ).make_run_configs()
    assert [(spec.label, spec.method, spec.hparams["lam"]) for spec in specs] == [
        ("fedsim@strong", "fedsim", 9),
        ("", "fsl+fedsim", 1.0),
    ]
    assert specs[1].hparams["gamma"] == 0.5


def test_names_are_in_records_folders_and_the_table(tmp_path: Path) -> None:
    words = [
        "fedmeta@a",
        "fedmeta@b",
        "fsl+fedsim",
        "fedmeta@a.order=1",
        "fedmeta@a.alpha=0.5",
        "gamma=0.2",
    ]
    comparison, out = read_comparison([*words, *SMALL, "seeds=0"]), tmp_path / "out"
    outcomes = compare(comparison, out)
    names = ["fedmeta@a", "fedmeta@b", "fsl+fedsim"]
    assert [outcome.record.name for outcome in outcomes] == names
    assert sorted(run_dir.path.name for run_dir in find_runs(out)) == [
        f"{name}-seed0" for name in names
    ]
    assert [outcome.record.hparams.get("order") for outcome in outcomes] == [1, 2, None]
    console = Console(file=StringIO(), width=200)
    console.print(build_tables([outcome.record for outcome in outcomes], "title"))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(name in printed for name in names)
    models = [
        (get_run_path(out, spec) / "model.safetensors").read_bytes()
        for spec in comparison.make_run_configs()
    ]
    assert len(set(models)) == 3
    write_report([outcome.record for outcome in outcomes], out / "report.html")
    assert "fedmeta@a" in (out / "report.html").read_text()
    again = compare(comparison, out)  # nothing is run twice
    assert [outcome.record for outcome in again] == [outcome.record for outcome in outcomes]


def test_a_mark_is_no_more_than_a_name(tmp_path: Path) -> None:
    marked, plain = (read_comparison([word, *SMALL]) for word in ("fedavg@x", "fedavg"))
    one = compare(marked, tmp_path / "one")[0].record
    other = compare(plain, tmp_path / "other")[0].record
    assert (one.name, other.name, one.config.method) == ("fedavg@x", "fedavg", "fedavg")
    assert known(one.scores) == known(other.scores)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedmeta@"], "'fedmeta@': behind the @ letters, digits and -_.+ are expected."),
        (["fedmeta@a/b"], "'fedmeta@a/b': behind the @"),
        (["fedmeta@../x"], r"'fedmeta@\.\./x': behind the @"),
        (["fedmeta@a@b"], "'fedmeta@a@b': behind the @"),
        (["fedmeta@a b"], "'fedmeta@a b': behind the @"),
        (["fedmeto@a"], "There is no method 'fedmeto'; did you mean fedmeta?"),
        (["fedmeta@a", "fedmeta@b.order=1"], "'fedmeta@b' is not among the methods fedmeta@a."),
        (["fedavg", "fedmeta.order=1"], "'fedmeta' is not among the methods fedavg."),
        (["fsl+fedsm"], "There is no method 'fedsm'; did you mean fedsim?"),
        (
            ["fls+fedsim"],
            "There is no wrapper 'fls', as in 'fls.fedsim'; did you mean fsl?",
        ),
        (["fedavg+fedsim"], "There is no wrapper 'fedavg', as in"),
        (["fedavg", "gamma=1"], "There is no key 'gamma'"),
    ],
)
def test_wrong_words_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_comparison(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["fedmeta@a", "fedmeta@a.ordr=1"],
            "fedmeta has no hyper-parameter 'ordr'; did you mean order?",
        ),
        (
            ["fsl+fedsim", "fsl+fedsim.gama=1"],
            r"fsl\+fedsim has no hyper-parameter 'gama'; did you mean gamma?",
        ),
        (
            ["fsl+fedsim", "fsl+fedsim.lamm=1"],
            r"fsl\+fedsim has no hyper-parameter 'lamm'; did you mean lam?",
        ),
        (["fsl+fedsim", "gamma=-1"], r"fsl\+fedsim: gamma must not be negative, got -1."),
    ],
)
def test_wrong_hyper_parameters_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_comparison(words).make_run_configs()


def test_a_composition_takes_the_hyper_parameters_of_both() -> None:
    spec = read_run_config(
        [
            "method=fsl+per+fedsim",
            "gamma=0.5",
            "lam=0.2",
            "personal=all-but-last",
            "offer=2",
            "lr=0.3",
        ]
    )
    assert {
        key: spec.hparams[key] for key in ("gamma", "lam", "personal", "offer", "lr", "beta")
    } == {
        "gamma": 0.5,
        "lam": 0.2,
        "personal": "all-but-last",
        "offer": 2,
        "lr": 0.3,
        "beta": 0.25,
    }
    spec_of_paper = read_run_config(["method=fsl+fedmeta", "finetune=paper"])
    assert spec_of_paper.hparams["finetune_epochs"] == 1
    with pytest.raises(InputError, match="There is no key 'personal'"):
        read_run_config(["method=fsl+fedsim", "personal=last"])
    assert 'method = "fsl+per+fedsim"' in format_toml(spec)


def test_the_word_none_can_be_said_on_a_command_line(tmp_path: Path) -> None:
    for number, words in enumerate((["method=fedper", "personal=none"], ["method=fedavg"])):
        start_run(small(*words, "rounds=1"), tmp_path / str(number))
    models = [(tmp_path / str(number) / "model.safetensors").read_bytes() for number in range(2)]
    assert models[0] == models[1]
    assert read_run_config(["method=fedper", 'personal="none"']).hparams["personal"] == "none"


def test_the_command_line_runs_compositions(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["run", "method=fsl+fedsim", *SMALL, "gamma=0.5", f"out={out}"])
    assert done.exit_code == 0, done.output
    record = RunDir(out).read_record()
    assert record.config.method == record.name == "fsl+fedsim"
    sizes = np.array(record.data.train_sizes)[record.data.groups["train"]]
    passes = int(np.ceil(sizes.mean() / record.data.server_examples))
    assert (record.hparams["gamma"], record.hparams["learn_epochs"]) == (0.5, passes)
    assert (record.hparams["decay_rounds"], record.config.hparams["decay_rounds"]) == (
        1,
        None,
    )


@pytest.mark.parametrize(
    ("name", "needs"), [("fsl+fedsim", "server data"), ("ds", "server data"), ("per+ditto", "")]
)
def test_compositions_are_described(name: str, needs: str) -> None:
    entry = describe_method(name)
    assert needs in entry.needs
    assert all(row.meaning for row in entry.hparams)
    assert name.split("+", maxsplit=1)[0] in entry.description.lower()
