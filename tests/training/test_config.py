"""Specifications: from files and words, checked, with every default visible, written down before
anything slow.
"""

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtailor import data as sources
from fedtailor import methods
from fedtailor.engines import factory
from fedtailor.errors import InputError
from fedtailor.training.config import ComparisonConfig, RunConfig
from fedtailor.training.overrides import (
    format_toml,
    parse_overrides,
    read_comparison,
    read_run_config,
)
from fedtailor.training.run_dir import RunDir
from fedtailor.training.runner import start_run
from interruptions import small

FILE = """
method = "fedsim"
rounds = 7
hidden = [8, 4]
compile = true

[data_options]
clients = 12

[hparams]
lr = 0.05

[hparams.fedsim]
lam = 0.5
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "my.toml").write_text(FILE)
    return str(tmp_path / "my.toml")


def test_a_file_is_read(file: str) -> None:
    spec = read_run_config([file])
    assert (spec.method, spec.rounds, spec.hidden, spec.compile) == ("fedsim", 7, (8, 4), True)
    assert spec.data_options["clients"] == 12
    assert (spec.hparams["lr"], spec.hparams["lam"]) == (0.05, 0.5)


def test_words_win_over_the_file_wherever_they_stand(file: str) -> None:
    words = [
        "rounds=9",
        file,
        "lr=0.2",
        "fedsim.lam=0.7",
        "data.clients=14",
        "hidden=3",
        "compile=false",
    ]
    spec = read_run_config(words)
    assert (spec.rounds, spec.hidden, spec.compile, spec.data_options["clients"]) == (
        9,
        (3,),
        False,
        14,
    )
    assert (spec.hparams["lr"], spec.hparams["lam"]) == (0.2, 0.7)


def test_a_methods_own_word_wins_over_that_for_all() -> None:
    made = read_comparison(
        ["fedavg", "fedprox", "fedsim", "lr=0.3", "fedprox.lr=0.1", "lam=2", "fedsim.lam=3"]
    )
    found = {spec.method: spec.hparams for spec in made.make_run_configs()}
    assert {method: hyper["lr"] for method, hyper in found.items()} == {
        "fedavg": 0.3,
        "fedprox": 0.1,
        "fedsim": 0.3,
    }
    assert (found["fedprox"]["lam"], found["fedsim"]["lam"]) == (2, 3)
    assert "lam" not in found["fedavg"]


def test_the_seed_of_the_data_is_that_of_the_run_unless_it_is_given() -> None:
    for words, seed in (
        (["seed=3"], 3),
        (["seed=3", "data.seed=none"], 3),
        (["seed=3", "data.seed=0"], 0),
        (["seed=3", "data=synthetic"], 3),
        ([], 0),
    ):
        assert read_run_config(words).data_options["seed"] == read_run_config(words).data_seed
        assert read_run_config(words).data_seed == seed
    seeds = {
        word: [
            (spec.seed, spec.data_seed)
            for spec in read_comparison(["fedavg", word]).make_run_configs()
        ]
        for word in ("rounds=1", "data.seed=7", "seeds=4,9")
    }
    assert seeds == {
        "rounds=1": [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)],
        "data.seed=7": [(0, 7), (1, 7), (2, 7), (3, 7), (4, 7)],
        "seeds=4,9": [(4, 4), (9, 9)],
    }


def test_runs_without_seeds_are_equal_where_nothing_else_differs() -> None:
    one, two = read_comparison(["fedavg", "seeds=1,2"]).make_run_configs()
    fixed = read_run_config(["method=fedavg", "seed=5", "data.seed=6"])
    other = read_run_config(["method=fedavg", "data.clients=20"])
    assert one.without_seeds() == two.without_seeds() == fixed.without_seeds()
    assert other.without_seeds() != one.without_seeds()


CHOSEN = """
methods = ["per-fedavg", "per-fedavg@fo"]
seeds = [0, 1]

[hparams]
lr = 0.5

[tuned.per-fedavg.0]
lr = 0.1
alpha = 0.2

[tuned.per-fedavg.1]
lr = 0.3
alpha = "none"
"""


def test_each_seed_has_what_was_chosen_for_it(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text(CHOSEN.replace('"none"', "0.4"))
    specs = read_comparison([str(path)]).make_run_configs()
    assert [
        (spec.label or spec.method, spec.seed, spec.hparams["lr"], spec.tuned) for spec in specs
    ] == [
        ("per-fedavg", 0, 0.1, ("lr", "alpha")),
        ("per-fedavg", 1, 0.3, ("lr", "alpha")),
        ("per-fedavg@fo", 0, 0.5, ()),
        ("per-fedavg@fo", 1, 0.5, ()),
    ]
    assert [spec.hparams["alpha"] for spec in specs[:2]] == [0.2, 0.4]
    # What is given for the method itself was not chosen.
    given = read_comparison([str(path), "per-fedavg.lr=0.7"]).make_run_configs()
    assert [(spec.hparams["lr"], spec.tuned) for spec in given[:2]] == [(0.7, ("alpha",))] * 2
    comparison = read_comparison([str(path)])
    shown = format_toml(comparison.resolve())
    assert "# data_options.seed is not set\n" in shown
    (tmp_path / "shown.toml").write_text(shown)
    again = read_comparison([str(tmp_path / "shown.toml")])
    assert again.make_run_configs() == specs
    assert again.tuned == comparison.tuned


def test_what_was_chosen_is_by_method_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    for text in ("[tuned.fedavg]\nlr = 0.1\n", "[tuned.fedavg.first]\nlr = 0.1\n"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"^tuned: "):
            read_comparison([str(path)])


def test_tables_of_a_file_are_for_methods_in_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'methods = ["fedavg", "fedsim"]\nseeds = [1, 2]\n'
        "[hparams]\nlr = 0.3\n[hparams.fedsim]\nlr = 0.1\n"
    )
    specs = read_comparison([str(tmp_path / "my.toml")]).make_run_configs()
    assert [(spec.method, spec.seed, spec.hparams["lr"]) for spec in specs] == [
        ("fedavg", 1, 0.3), ("fedavg", 2, 0.3), ("fedsim", 1, 0.1), ("fedsim", 2, 0.1),
    ]  # fmt: skip


@pytest.mark.parametrize("method", methods.NAMES)
def test_every_default_is_shown_and_what_is_shown_is_the_same_run(
    method: str, tmp_path: Path
) -> None:
    spec = read_run_config([f"method={method}"])
    text = format_toml(spec)
    for key in {*RunConfig.model_fields} - {"hparams", "data_options"}:
        assert f"\n{key} = " in f"\n{text}" or f"# {key} is not set\n" in text
    for key in sources.get_options("digits"):
        assert f"\n{key} = " in text or f"# data_options.{key} is not set\n" in text
    content = tomllib.loads(text)
    names = [field.name for field in fields(methods.load_method_module(method).HParams)]
    assert list(content["hparams"]) == names
    assert content["hparams"] == {
        key: "none" if value is None else value for key, value in spec.hparams.items()
    }
    (tmp_path / "shown.toml").write_text(text)
    assert read_run_config([str(tmp_path / "shown.toml")]) == spec


def test_a_hyper_parameter_that_is_none_where_its_default_is_not_comes_back(tmp_path: Path) -> None:
    spec = read_run_config(["method=per-fedavg", "finetune_steps=none"])
    assert spec.hparams["finetune_steps"] is None
    (tmp_path / "shown.toml").write_text(format_toml(spec))
    assert read_run_config([str(tmp_path / "shown.toml")]) == spec


COMPARISONS = [
    [
        "fedavg",
        "fedsim",
        "lr=0.3",
        "fedsim.lam=0.7",
        "lam=2",
        "seeds=1,2",
        "hidden=8,4",
        "compile=true",
    ],
    [
        "per-fedavg",
        "per-fedavg@fo",
        "per-fedavg@fo.variant=fo",
        "steps=5",
        "per-fedavg@fo.finetune_steps=none",
    ],
    [
        "fsl+per+fedmeta",
        "fsl+per+fedmeta@a.b-c",
        "fsl+per+fedmeta@a.b-c.personal=none",
        "baselines=false",
    ],
    ["fedavg", "fedavg@x", "fedavg.steps=3", "fedavg@x.steps=none", "threads=1", "target=0.5"],
    [
        "fedprox",
        "tune.lr=0.1,none",
        "tune.fedprox.lam=0.1..3",
        "trials=2",
        'model=my "net".py:Net',
        "data=a\\b.npz",
    ],
]


@pytest.mark.parametrize("words", COMPARISONS, ids=[words[0] for words in COMPARISONS])
def test_a_comparison_that_is_shown_is_the_same_comparison(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path('my "net".py').touch()
    asked = read_comparison(words).add_baselines()
    (tmp_path / "asked.toml").write_text(format_toml(asked))
    assert read_comparison(["asked.toml"]) == asked
    whole = asked.resolve()
    (tmp_path / "whole.toml").write_text(format_toml(whole))
    again = read_comparison(["whole.toml"])
    options = {key: value for key, value in whole.data_options.items() if value is not None}
    assert again == whole.model_copy(update={"data_options": options})
    assert again.add_baselines().make_run_configs() == asked.make_run_configs()
    for spec in whole.make_run_configs():
        assert set(spec.hparams) == set(whole.hparams[spec.label or spec.method])


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats()
        | st.text().filter("none".__ne__),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_value_of_a_hyper_parameter_comes_back_from_a_file(tmp_path: Path, value: Any) -> None:
    asked = ComparisonConfig(
        hparams={"fedsim@any word": {"lam": value}}, tune={"lr": [value, float("inf")]}
    )
    (tmp_path / "any.toml").write_text(format_toml(asked), "utf-8")
    found = parse_overrides([str(tmp_path / "any.toml")], ComparisonConfig)
    for table in ("hparams", "tune"):  # as text, as NaN is not NaN
        assert json.dumps(found[table], sort_keys=True) == json.dumps(
            getattr(asked, table), sort_keys=True
        )


WRONG = [
    ("run", "rouns=3", "There is no key 'rouns'; did you mean rounds?"),
    ("run", "method=fedavg lam=3", "There is no key 'lam'; "),
    ("run", "method=fedavg fedavg.lrr=3", "fedavg has no hyper-parameter 'lrr'; did you mean lr?"),
    ("run", "fedsmi.lr=3", "There is no method 'fedsmi'; did you mean fedsim?"),
    ("run", "rounds=0", "rounds: input should be greater than or equal to 1, got 0."),
    (
        "run",
        "seed=9223372036854775808",
        "seed: input should be less than 9223372036854775808, got ",
    ),
    ("run", "threads=0", "threads: "),
    (
        "run",
        "engine=vectorised",
        "engine: input should be 'vectorized', 'sequential' or 'distributed', got 'vectorised'.",
    ),
    ("run", "method=fedavg epochs=1.5", "fedavg: epochs must be a "),
    ("run", "method=fedavg server_optimizer=sdg", "fedavg: server_optimizer must be "),
    ("run", "fedavg", "'fedavg' is neither FILE.toml nor KEY=VALUE."),
    ("compare", "fedavg fedsim lamm=3", "There is no key 'lamm'; did you mean lam?"),
    ("compare", "fedavg method=fedsim", "There is no key 'method'; did you mean methods?"),
    ("compare", "fedavg seed=1", "There is no key 'seed'; did you mean seeds?"),
    ("compare", "methods=", "methods: "),
]


@pytest.mark.parametrize(("kind", "words", "sentence"), WRONG, ids=[row[1] for row in WRONG])
def test_wrong_words_are_one_sentence(kind: str, words: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_run_config(words.split()) if kind == "run" else read_comparison(
            words.split()
        ).make_run_configs()
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_places_are_whole_so_that_a_run_can_be_resumed_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "net.py").touch()
    spec = read_run_config(["data=some/mine.npz", "model=my/net.py:Net"])
    assert (spec.data, spec.model) == (f"{tmp_path}/some/mine.npz", f"{tmp_path}/my/net.py:Net")
    assert spec.resolve() == spec


def test_the_specification_is_written_before_anything_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowError(Exception):
        pass

    def slow(*_: Any) -> None:
        raise SlowError

    monkeypatch.setattr(factory, "make_engine", slow)
    with pytest.raises(SlowError):
        start_run(small("method=fedprox", "lam=0.3"), tmp_path / "out")
    assert RunDir(tmp_path / "out").read_config() == small("method=fedprox", "lam=0.3")


def test_runs_of_a_comparison_share_what_is_not_theirs() -> None:
    made = ComparisonConfig(
        methods=("fedavg", "local"), seeds=(1, 2), rounds=7, hparams={"lr": 0.2}
    )
    specs = made.make_run_configs()
    assert [(spec.method, spec.seed) for spec in specs] == [
        ("fedavg", 1),
        ("fedavg", 2),
        ("local", 1),
        ("local", 2),
    ]
    assert {(spec.rounds, spec.hparams["lr"], spec.data) for spec in specs} == {(7, 0.2, "digits")}
