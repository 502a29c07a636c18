"""The protocol of a comparison: no test figure has a part in a choice, all begin alike, baselines,
seeds, budgets.
"""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedtailor.cli.progress import describe_added_methods
from fedtailor.data.dataset import FederatedDataset
from fedtailor.errors import InputError
from fedtailor.experiments.budget import apply_budget, compute_cost_per_round
from fedtailor.experiments.compare import check_runs, compare, get_run_path, make_runs
from fedtailor.experiments.tune import tune
from fedtailor.reporting.comparison_table import build_tables
from fedtailor.training import from_config
from fedtailor.training.config import ComparisonConfig, RunConfig
from fedtailor.training.overrides import read_comparison, read_run_config
from fedtailor.training.record.schema import RunRecord
from fedtailor.training.run_dir import RunDir
from known import known

SMALL = [
    "data.clients=12",
    "hidden=8",
    "cohort=4",
    "finetune_epochs=1",
    "threads=1",
    "rounds=2",
    "local.local_epochs=2",
]
METHODS = ["fedavg", "fedmeta"]
WORDS = [*METHODS, *SMALL, "seeds=0,1", "tune.lr=0.05,0.5", "tune.finetune_epochs=1,3", "trials=2"]

Compared = tuple[Path, ComparisonConfig, list[RunRecord]]
Both = tuple[Compared, Compared]

load = from_config.load_dataset


def with_other_test_labels(data: FederatedDataset) -> FederatedDataset:
    """The same data, but that every test label of local and new clients is another; validation
    clients keep theirs.
    """
    changed, split = data.clients.y.copy(), data.clients.splits["test"]
    for who in np.concatenate([data.groups["participating"], data.groups["unseen"]]):
        rows = split.index[split.offsets[who] : split.offsets[who + 1]]
        changed[rows] = (changed[rows] + 1) % 10
    held = data.clients._replace(y=changed)
    made = object.__new__(FederatedDataset)
    made.__dict__.update(data.__dict__ | {"clients": held})
    return made


def tune_and_compare(out: Path) -> Compared:
    """Run trials, and then the comparison that they chose."""
    tune(read_comparison(WORDS), out / "tuned")
    chosen = read_comparison([str(out / "tuned" / "tuned.toml")])
    records = [outcome.record for outcome in compare(chosen, out / "compared")]
    return out, chosen, records


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What came of the data, and of the data with other test labels."""
    # The data of every seed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(from_config, "load_dataset", lambda spec: with_other_test_labels(load(spec)))
        other = tune_and_compare(tmp_path_factory.mktemp("other"))
    plain = tune_and_compare(tmp_path_factory.mktemp("plain"))
    return plain, other


def test_other_test_labels_change_no_choice_and_no_model(both: Both) -> None:
    (plain, chosen, records), (other, also_chosen, others) = both
    assert chosen == also_chosen
    assert {method: set(chosen.tuned[method]) for method in METHODS} == {
        "fedavg": {"0", "1"},
        "fedmeta": {"0", "1"},
    }
    for name in ("trials.json", "tuned.toml"):
        assert (plain / "tuned" / name).read_bytes() == (other / "tuned" / name).read_bytes()
    for spec in chosen.make_run_configs():
        models = [
            (get_run_path(out / "compared", spec) / "model.safetensors").read_bytes()
            for out in (plain, other)
        ]
        assert models[0] == models[1]
    for one, two in zip(records, others, strict=True):
        assert one.hparams == two.hparams
        assert one.origins == two.origins
        assert one.choices == two.choices
        # They were other labels: every figure of test clients differs.
        for group in ("participating", "unseen"):
            assert known(one.scores)[group].after != known(two.scores)[group].after
            summaries = [known(record.summary)[group]["after"] for record in (one, two)]
            assert known(summaries[0].loss) != known(summaries[1].loss)


def test_a_record_says_which_clients_chose(both: Both) -> None:
    out, chosen, records = both[0]
    listed = json.loads((out / "tuned" / "trials.json").read_text())
    tried: dict[tuple[str, int], list[Any]] = {
        (word, seed): [] for word in METHODS for seed in (0, 1)
    }
    for entry in listed:
        tried[entry["method"], entry["data_seed"]].append(entry["point"])
    assert all(len(points) == 2 for points in tried.values())
    assert all(tried[word, 0] == tried[word, 1] for word in METHODS)
    for record in records:
        origins = record.origins
        chosen_names = {name for name in origins if origins[name] == "validation"}
        assert chosen_names == {"lr", "finetune_epochs"}
        trials = [
            entry
            for entry in listed
            if (entry["method"], entry["data_seed"]) == (record.name, record.config.seed)
        ]
        best = max(trials, key=lambda entry: entry["validation"])
        assert {name: record.hparams[name] for name in best["point"]} == best["point"]
    for trial_path in (out / "tuned" / "trials").iterdir():
        trial = RunDir(trial_path).read_record()
        assert list(known(trial.scores)) == ["validation"]
        assert list(known(trial.summary)) == ["validation"]
        assert list(known(trial.final_window).mean) == ["validation"]
        assert list(known(trial.convergence)) == ["validation"]
    assert chosen.tuned.keys() == set(METHODS)


def test_what_somebody_says_instead_was_not_chosen(both: Both) -> None:
    out = both[0][0]
    said = read_comparison([str(out / "tuned" / "tuned.toml"), "fedavg.lr=0.0625"])
    names = {spec.method: spec.tuned for spec in said.make_run_configs()}
    assert names == {"fedavg": ("finetune_epochs",), "fedmeta": ("lr", "finetune_epochs")}
    with pytest.raises(InputError, match="tuned: fedavg has no hyper-parameter 'lam'"):
        read_run_config(["method=fedavg", "tuned=lr,lam"])


def test_a_given_split_is_that_of_all_seeds(tmp_path: Path) -> None:
    words = ["fedavg", *SMALL[:-1], "baselines=false", "seeds=0,1", "data.seed=5"]
    records = [outcome.record for outcome in compare(read_comparison(words), tmp_path / "out")]
    assert len({record.checksums.data for record in records}) == 1
    assert len({record.checksums.weights for record in records}) == 2
    assert [record.config.data_options["seed"] for record in records] == [5, 5]


def list_scored_clients(record: RunRecord) -> set[str]:
    """The clients that a run's figures are of."""
    scores = known(record.scores)
    return {*scores["participating"].ids, *scores["unseen"].ids}


def test_no_client_that_is_scored_has_chosen_for_that_run(tmp_path: Path) -> None:
    """Clients of a file are the same whatever the seed, which draws their groups: those that
    validate with one seed are unseen or train with another.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(200) % 2, client=np.arange(200) % 20)
    words = [
        *("fedavg", "fedprox", "baselines=false", f"data={tmp_path / 'own.npz'}"),
        *("data.validation_clients=0.2", "data.unseen_clients=0.3", "hidden=4", "cohort=4"),
        *("rounds=1", "threads=1", "seeds=0,1,2", "tune.lr=0.05,0.5", "trials=2"),
    ]
    trials = tune(read_comparison(words), tmp_path / "tuned")
    chosen = read_comparison([str(tmp_path / "tuned" / "tuned.toml")])
    records = [outcome.record for outcome in compare(chosen, tmp_path / "compared")]
    trial_records = [RunDir(trial.run.path).read_record() for trial in trials]
    deciding = 0
    others = set()
    for record in records:
        assert record.origins["lr"] == "validation"
        scored = list_scored_clients(record)
        for trial, trial_record in zip(trials, trial_records, strict=True):
            voters = {*known(trial_record.scores)["validation"].ids}
            assert voters
            if trial.variant != record.name:
                continue
            if trial.data_seed == record.config.seed:
                # These have decided: they are on the very data of the run.
                assert trial_record.checksums.data == record.checksums.data
                assert not voters & scored
                deciding += 1
            else:
                others |= voters & scored
        own = [
            trial
            for trial in trials
            if (trial.variant, trial.data_seed) == (record.name, record.config.seed)
        ]
        best = max(own, key=lambda trial: known(trial.score))
        assert record.hparams["lr"] == best.point["lr"]
    assert deciding == 2 * len(records)
    assert others  # with trials on another seed's data this test would fail


def test_the_data_of_every_seed_are_checked_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int | None] = []

    def load_few(spec: RunConfig) -> FederatedDataset:
        loaded.append(spec.data_seed)
        clients = 6 if spec.data_seed == 3 else 12
        return load(spec.model_copy(update={"data_options": {"clients": clients}}))

    monkeypatch.setattr(from_config, "load_dataset", load_few)
    comparison = read_comparison(["fedavg", "fedprox", *SMALL, "cohort=7"])
    with pytest.raises(InputError) as caught:
        compare(comparison, tmp_path / "out")
    assert str(caught.value).startswith("With the data of seed 3: ")
    assert "cohort" in str(caught.value)
    assert loaded == [0, 1, 2, 3]
    assert not (tmp_path / "out").exists()


def test_of_runs_that_differ_in_their_seeds_alone_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[tuple[str, int]] = []
    build = from_config.build_context

    def count(spec: RunConfig, data: FederatedDataset) -> Any:
        built.append((spec.method, spec.seed))
        return build(spec, data)

    monkeypatch.setattr(from_config, "build_context", count)
    comparison = read_comparison(["fedavg", "fedprox", *SMALL, "seeds=0,1,2"])
    check_runs(make_runs(comparison.make_run_configs(), tmp_path))
    assert built == [("fedavg", 0), ("fedprox", 0)]


def test_all_methods_begin_alike(both: Both) -> None:
    """The same data before any method's view of them, and the same first weights; other seeds draw
    others of both.
    """
    records = both[0][2]
    begun = {
        (record.config.seed, record.checksums.data, record.checksums.weights) for record in records
    }
    assert len(begun) == 2
    assert len({data for _, data, _ in begun}) == len({weights for *_, weights in begun}) == 2
    # FedMeta has a view of its own of the data.
    assert len({record.data.checksum for record in records}) > 1
    assert both[1][2][0].checksums.data != records[0].checksums.data


def test_baselines_are_added_where_they_are_missing() -> None:
    asked = read_comparison(["fedsim"])
    made = asked.add_baselines()
    assert (made.methods, made.seeds) == (("local", "fedavg", "fedsim"), (0, 1, 2, 3, 4))
    assert (
        describe_added_methods(asked, made)
        == "Added local and fedavg as baselines; baselines=false leaves them out."
    )
    marked = read_comparison(["fedavg@fast", "fedsim"])
    assert marked.add_baselines().methods == ("local", "fedavg@fast", "fedsim")
    declined = read_comparison(["fedsim", "baselines=false"])
    assert declined.add_baselines() == declined
    assert describe_added_methods(declined, declined) == ""


def test_a_budget_is_one_of_three_words() -> None:
    comparison = read_comparison(["local", "budget=gradients", "local_epochs=7"])
    assert comparison.budget == "gradients"
    assert comparison.collect_hparams("local") == {"local_epochs": 7}
    for word, shown in (("time", "'time'"), ("7", "7")):
        sentence = f"budget: input should be 'rounds', 'gradients' or 'bytes', got {shown}"
        with pytest.raises(InputError, match=sentence):
            read_comparison(["local", f"budget={word}"])


def test_equal_budgets_are_equal_in_what_is_asked_for() -> None:
    words = [
        "local",
        "fedavg",
        "ditto",
        "scaffold",
        "pfedme@3",
        "pfedme@3.inner_steps=3",
        *SMALL,
        "rounds=12",
    ]
    rounds = {}
    for budget in ("rounds", "gradients", "bytes"):
        comparison = read_comparison([*words, f"budget={budget}", "seeds=0,1"])
        specs, said = apply_budget(comparison, comparison.make_run_configs())
        rounds[budget] = [spec.rounds for spec in specs if spec.seed == 1]
        assert rounds[budget] == [spec.rounds for spec in specs if spec.seed == 0]
        assert all(spec.evaluate_every == max(1, spec.rounds // 10) for spec in specs)
        assert bool(said) == (budget != "rounds")
    assert rounds == {
        "rounds": [12, 12, 12, 12, 12],
        "gradients": [
            12,
            12,
            6,
            12,
            4,
        ],  # ditto trains two models, pfedme takes three steps on a batch
        "bytes": [12, 12, 12, 6, 12],  # scaffold sends twice as much
    }
    assert said == (
        "As many bytes for all methods as 12 rounds of fedavg take, in rounds: "
        "local 12, fedavg 12, ditto 12, scaffold 6, pfedme@3 12."
    )


def test_what_a_round_is_said_to_cost_is_what_rounds_cost(tmp_path: Path) -> None:
    """With everybody in every cohort there is no chance in it."""
    words = ["fedavg", "per-fedavg", *SMALL, "cohort=9", "rounds=9", "budget=gradients", "seeds=0"]
    told: list[str] = []
    outcomes = compare(read_comparison(words), tmp_path / "out", on_message=told.append)
    plain, other = (outcome.record for outcome in outcomes)
    assert told == [
        "As many client gradients for all methods as 9 rounds of fedavg take, in rounds: "
        + ", ".join(f"{record.name} {record.config.rounds}" for record in (plain, other))
        + "."
    ]
    assert (plain.config.rounds, other.config.budget) == (9, "gradients")
    plain_gradients = known(plain.cost).gradients
    other_gradients = known(other.cost).gradients
    gradients_per_round = other_gradients / other.config.rounds
    assert abs(other_gradients - plain_gradients) <= gradients_per_round / 2
    spec = read_run_config(["method=fedavg", *SMALL[:-1], "cohort=9"])
    assert compute_cost_per_round(spec, load(spec)) == pytest.approx(plain_gradients / 9)


def printed(records: list[RunRecord], width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(build_tables(records, "title", width))
    return str(console.file.getvalue()).splitlines()  # type: ignore[attr-defined]


def test_the_table_is_whole_in_100_columns_and_in_80(both: Both, tmp_path: Path) -> None:
    records = both[0][2]
    alone = compare(read_comparison(["local", *SMALL, "seeds=0,1"]), tmp_path / "out")
    everybody = [*(outcome.record for outcome in alone), *records]
    for width, headings in (
        (100, "before after the best 1 5 F1 std tenth local"),
        (80, "before after the best std tenth local"),
    ):
        lines = printed(everybody, width)
        assert "…" not in "".join(lines)
        assert max(map(len, lines)) <= width
        heads = [line for line in lines if line.startswith(" method")]
        assert len(heads) == 3  # participating clients, unseen clients, costs
        for head in heads[:2]:
            assert head.split()[1:] == headings.split()
        assert heads[2].split()[1:] == ["MB", "gradients", "personalize", "s", "s", "s", "s"]
    rows = [line.split() for line in printed(everybody, 100)]
    fedavg_row = next(row for row in rows if row[:1] == ["fedavg"])
    own = [record for record in records if record.name == "fedavg"]
    means = [
        np.mean(np.array(known(record.scores)["participating"].after["accuracy"], dtype=float))
        for record in own
    ]
    after = 100 * np.array(means)
    assert fedavg_row[3:5] == [f"{after.mean():.1f}", f"±{after.std(ddof=1):.1f}"]
    better = []
    for record, outcome in zip(own, alone, strict=True):
        accuracies, alone_accuracies = (
            np.array(known(each.scores)["participating"].after["accuracy"])
            for each in (record, outcome.record)
        )
        better.append(np.mean(accuracies > alone_accuracies))
    assert fedavg_row[-1] == f"{100 * np.mean(better):.0f}"


def test_a_table_of_one_seed_says_that_it_cannot_tell(both: Both) -> None:
    records = both[0][2]
    one_seed = [record for record in records if record.config.seed == 0]
    assert len(one_seed) > 1
    said = " ".join(" ".join(printed(one_seed, 100)).split())
    assert said.count("One seed cannot tell which method is best; take five") == 2
    assert "Behind the best:" not in said
    assert "± sample" not in said
    of_one_method = " ".join(printed(one_seed[:1], 100))
    assert "One seed cannot tell" not in of_one_method
    assert "One seed cannot tell" not in " ".join(printed(records, 100))
