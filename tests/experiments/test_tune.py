"""Tuning: as many trials for every method, and no score of a test client behind a choice."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from damage import iterate_mutations
from fedtailor.cli.verify import verify
from fedtailor.errors import InputError
from fedtailor.experiments.tune import (
    Trial,
    build_trial_table,
    compute_validation_score,
    describe_trial_table,
    format_score,
    format_tuned_comparison,
    make_points,
    make_trials,
    prepare_trials,
    read_trials,
    select_best,
    tune,
)
from fedtailor.training.overrides import read_comparison
from fedtailor.training.record.schema import MetricInfo
from fedtailor.training.run_dir import RunDir
from known import known
from rounds import make_round

SMALL = [
    "data=digits",
    "data.clients=12",
    "rounds=5",
    "cohort=3",
    "evaluate_every=1",
    "finetune_epochs=1",
]


def words(*more: str) -> Any:
    return read_comparison([*SMALL, *more])


def test_a_grid_of_as_many_points_as_trials_is_tried_whole() -> None:
    comparison = words("fedprox", "tune.lr=0.1,0.3", "tune.fedprox.lam=0.5,2")
    found = make_points(comparison, "fedprox")
    assert found == [{"lr": lr, "lam": lam} for lr in (0.1, 0.3) for lam in (0.5, 2)]


def test_of_a_larger_grid_some_points_are_drawn_always_the_same_ones() -> None:
    comparison = words("fedavg", "fedsim", "tune.lr=1,2,3,4,5,6,7,8,9", "trials=5")
    found = [make_points(comparison, word) for word in ("fedavg", "fedsim", "fedavg")]
    assert [len(each) for each in found] == [5, 5, 5]
    assert found[0] == found[2] != found[1]
    assert all(len({point["lr"] for point in each}) == 5 for each in found)


def test_ranges_are_drawn_from_evenly_by_their_logarithm() -> None:
    comparison = words("fedsim", "tune.lr=0.001..10", "tune.fedsim.lam=1,2", "trials=400")
    found = make_points(comparison, "fedsim")
    rates = [math.log10(point["lr"]) for point in found]
    assert -3 <= min(rates) < -2.9 < 0.9 < max(rates) <= 1
    assert abs(sum(rates) / 400 + 1) < 0.2
    assert {point["lam"] for point in found} == {1, 2}


def test_hyper_parameters_are_tried_of_the_methods_that_have_them() -> None:
    comparison = words(
        "fedavg",
        "fedsim",
        "fedsim@free",
        "tune.lr=1,2",
        "tune.lam=3,4",
        "tune.fedsim@free.beta=5",
        "trials=2",
    )
    keys = {
        word: {key for point in make_points(comparison, word) for key in point}
        for word in comparison.methods
    }
    assert keys == {"fedavg": {"lr"}, "fedsim": {"lr", "lam"}, "fedsim@free": {"lr", "lam", "beta"}}


BAD = [
    (["fedavg"], "tune: nothing to try is named for fedavg; say, for example, tune.lr=0.01"),
    (
        ["fedavg", "tune.lr=0.1,0.2"],
        r"fedavg: there are 2 points to try, but 4 trials; .* \(trials=2\)",
    ),
    (["fedavg", "tune.fedavg.lam=1"], "tune: fedavg has no hyper-parameter 'lam'"),
    (
        ["fedavg", "tune.lr=0..1"],
        "tune: lr must be like 0.01..0.3, from a positive number to a larger one, got '0..1'",
    ),
    (["fedavg", "tune.lr=a..b"], "tune: lr must be like 0.01..0.3"),
]


@pytest.mark.parametrize(("more", "sentence"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_cannot_be_tried_is_told(more: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        make_trials(words(*more), tmp_path)


def test_without_validation_clients_nothing_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"tune: data set 'digits' has no validation clients; give it some"
    ):
        tune(words("fedavg", "tune.lr=1", "trials=1", "data.validation_clients=0"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    out = tmp_path_factory.mktemp("tuned")
    return out, tune(words("fedavg", "local", "tune.lr=0.01,0.1,0.5", "trials=3", "seeds=0,1"), out)


def test_no_test_client_is_scored_in_any_trial(tuned: tuple[Path, list[Trial]]) -> None:
    """The proof that no test figure had a part in a choice: there is none in anything that a trial
    wrote.
    """
    out, trials = tuned
    assert len(trials) == 12
    for trial in trials:
        record = RunDir(trial.run.path).read_record()
        assert record.config.eval_groups == "validation"
        assert (record.config.seed, record.config.data_seed) == (100, trial.data_seed)
        scores = known(record.scores)
        assert list(scores) == ["validation"]
        validation_clients = [record.data.clients[idx] for idx in record.data.groups["validation"]]
        assert set(scores["validation"].ids) == set(validation_clients)
        eval_points = [entry.scores for entry in record.rounds if entry.scores]
        assert eval_points
        assert all(list(groups) == ["validation"] for groups in eval_points)
    written = {path.name for path in out.iterdir()}
    assert written == {"manifest.json", "trials", "trials.json", "tuned.toml"}


def test_the_chosen_point_is_the_best_on_validation_clients(
    tuned: tuple[Path, list[Trial]],
) -> None:
    out, trials = tuned
    chosen = read_comparison([str(out / "tuned.toml")])
    assert (chosen.seeds, chosen.methods, chosen.rounds) == ((0, 1), ("fedavg", "local"), 5)
    assert chosen.data_options == {"clients": 12}
    for spec in chosen.make_run_configs():
        own = [
            trial
            for trial in trials
            if (trial.variant, trial.data_seed) == (spec.method, spec.seed)
        ]
        last = []
        for trial in own:
            last_scores = known(RunDir(trial.run.path).read_record().rounds[-1].scores)
            last.append(known(last_scores["validation"]["after"]["accuracy"]))
        # The last fifth of five rounds has one evaluation.
        assert [trial.score for trial in own] == last
        assert [trial.point["lr"] for trial in own] == [0.01, 0.1, 0.5]
        assert spec.hparams["lr"] == own[last.index(max(last))].point["lr"]
        assert (spec.tuned, spec.eval_groups) == (("lr",), "all")
    listed = json.loads((out / "trials.json").read_text())
    assert [entry["validation"] for entry in listed] == [trial.score for trial in trials]
    assert [entry["data_seed"] for entry in listed] == [0, 0, 0, 1, 1, 1] * 2


def test_a_seed_that_was_not_tuned_for_is_refused(tuned: tuple[Path, list[Trial]]) -> None:
    path = str(tuned[0] / "tuned.toml")
    sentence = (
        "tuned: fedavg was tuned on the data of seed 0, 1, but not of seed 7; leave that seed out, "
        "or run `fedtailor tune` with it too."
    )
    for word in ("seeds=0,7", "data.seed=7"):
        with pytest.raises(InputError) as caught:
            read_comparison([path, word]).make_run_configs()
        assert str(caught.value) == sentence
    # What was chosen on one split is for every run on it.
    fixed = read_comparison([path, "data.seed=1", "seeds=1,7"])
    values = {spec.hparams["lr"] for spec in fixed.make_run_configs() if spec.method == "fedavg"}
    assert values == {read_comparison([path]).tuned["fedavg"]["1"]["lr"]}


def test_on_a_fixed_split_trials_are_run_once_for_all_seeds(tmp_path: Path) -> None:
    asked = words("fedavg", "local", "tune.lr=0.01,0.1,0.5", "trials=3", "data.seed=4")
    trials = make_trials(asked, tmp_path)
    assert [trial.data_seed for trial in trials] == [4] * 6
    told: list[str] = []
    prepare_trials(asked, tmp_path, told.append)
    assert told == ["3 trials of 2 methods on the data of seed 4, for all runs: 6 in all."]


def test_the_number_of_trials_is_told_before_they_begin(tmp_path: Path) -> None:
    told: list[str] = []
    prepare_trials(words("fedavg", "local", "tune.lr=0.1,1", "trials=2"), tmp_path, told.append)
    assert told == [
        "2 trials of 2 methods on the data of 5 seeds (0, 1, 2, 3, 4): 20 in all. "
        "With data.seed=N all runs share one split of the data, and trials are run once."
    ]
    assert list(tmp_path.iterdir()) == []


def test_scores_of_trials_are_in_percent_as_everywhere(tuned: tuple[Path, list[Trial]]) -> None:
    out, trials = tuned
    table = build_trial_table(trials)
    assert describe_trial_table(trials) == (
        "Validation clients after personalizing, accuracy in %; "
        "*: chosen for the runs on the data of that seed."
    )
    assert [column.header for column in table.columns] == ["method", "tried", "seed 0", "seed 1"]
    chosen = read_comparison([str(out / "tuned.toml")]).tuned
    for column, data_seed in ((2, 0), (3, 1)):
        cells = list(table.columns[column].cells)
        own = [trial for trial in trials if trial.data_seed == data_seed]
        for cell, trial in zip(cells, own, strict=True):
            is_chosen = chosen[trial.variant][str(data_seed)] == trial.point
            assert cell == f"{100 * known(trial.score):.2f}" + ("*" if is_chosen else " ")
    first = f"{100 * known(trials[0].score):.2f} (lr=0.01)"
    text = (out / "tuned.toml").read_text()
    assert text.startswith("# Scores are accuracy in %.\n")
    assert f"# fedavg, data of seed 0: validation clients reached {first}, " in text


def test_trials_of_an_error_are_not_in_percent(tuned: tuple[Path, list[Trial]]) -> None:
    metric = MetricInfo(name="mae", higher_is_better=False)
    trial = tuned[1][0]._replace(score=1.25)
    assert format_score(trial, metric) == "1.2500"
    assert format_score(trial._replace(score=math.nan), metric) == "diverged"


def test_a_trials_figure_is_the_mean_of_its_last_evaluations(
    tuned: tuple[Path, list[Trial]],
) -> None:
    record = RunDir(tuned[1][0].run.path).read_record()
    rounds = []
    for number in range(1, 21):
        scores = None
        if number % 2 == 0:
            scores = {"validation": {"after": {"accuracy": float(number)}}}
        rounds.append(make_round(number, scores))
    config = record.config.model_copy(update={"rounds": 20})
    record = record.model_copy(update={"config": config, "rounds": rounds})
    assert compute_validation_score(record) == (18 + 20) / 2


def test_tuning_goes_on_where_it_was_stopped(
    tuned: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    comparison = words("fedavg", "local", "tune.lr=0.01,0.1,0.5", "trials=3", "seeds=0,1")
    asked = iter([False] * 7 + [True] * 100)
    stopped = tune(comparison, tmp_path, should_stop=lambda: next(asked))
    assert [trial.score is None for trial in stopped] == [False] + [True] * 11
    assert not (tmp_path / "tuned.toml").exists()
    done = tune(comparison, tmp_path)
    assert [trial.score for trial in done] == [trial.score for trial in tuned[1]]
    assert (tmp_path / "tuned.toml").read_text() == (tuned[0] / "tuned.toml").read_text()


def test_what_is_chosen_comes_back_from_its_file(
    tuned: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    comparison = words(
        "per-fedavg",
        "per-fedavg@fo",
        "per-fedavg@fo.variant=fo",
        "tune.finetune_steps=none,1",
        "tune.lr=0.1",
        "trials=2",
    )
    trials = [
        trial._replace(score=float(trial.point["finetune_steps"] is None))
        for trial in make_trials(comparison, tmp_path)
    ]
    for trial in trials:
        shutil.copytree(tuned[1][0].run.path, trial.run.path)
    text = format_tuned_comparison(comparison, trials)
    assert (
        "# per-fedavg@fo, data of seed 0: validation clients reached 100.00 (finetune_steps=None "
        "lr=0.1), 0.00 (finetune_" in text
    )
    (tmp_path / "tuned.toml").write_text(text)
    chosen = read_comparison([str(tmp_path / "tuned.toml")])
    assert chosen.tuned == {
        word: {str(seed): {"finetune_steps": None, "lr": 0.1} for seed in range(5)}
        for word in comparison.methods
    }
    for spec in chosen.make_run_configs():
        assert (spec.hparams["finetune_steps"], spec.hparams["lr"], spec.tuned) == (
            None,
            0.1,
            ("finetune_steps", "lr"),
        )
    assert chosen.hparams["per-fedavg@fo"]["variant"] == "fo"


def test_a_trial_that_diverges_is_not_chosen(tmp_path: Path) -> None:
    trials = tune(words("fedsim", "tune.lr=1e30,0.1", "trials=2", "seeds=0"), tmp_path)
    assert math.isnan(trials[0].score or 0)
    assert select_best(trials).point == {"lr": 0.1}
    assert json.loads((tmp_path / "trials.json").read_text())[0]["validation"] is None
    with pytest.raises(InputError, match="fedsim: every trial diverged; try smaller steps"):
        select_best(trials[:1])


def test_a_folder_with_other_trials_is_refused(tuned: tuple[Path, list[Trial]]) -> None:
    with pytest.raises(InputError, match="holds another trial; choose another folder with out=DIR"):
        tune(words("fedavg", "tune.lr=0.02,0.1,0.5", "trials=3"), tuned[0])


TUNE_WORDS = ("fedavg", "local", "tune.lr=0.01,0.1,0.5", "trials=3", "seeds=0,1")


@pytest.mark.parametrize("name", ["trials.json", "tuned.toml", "manifest.json"])
def test_every_damage_to_what_was_tuned_is_noticed(
    name: str, tuned: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    content = (tuned[0] / name).read_bytes()
    out = tmp_path / "out"
    for number, (_, mutated) in enumerate(iterate_mutations(content, seed=5)):
        shutil.copytree(tuned[0], out)
        (out / name).write_bytes(mutated)
        with pytest.raises(InputError) as caught:
            verify(str(out))
        assert "is damaged" in str(caught.value) or "1 of 13 folders" in str(caught.value)
        if name == "trials.json":
            with pytest.raises(InputError, match=r"trials.json' is not what was written; repeat "):
                read_trials(out)
        if name == "tuned.toml":
            with pytest.raises(InputError, match=r"tuned.toml' is not what was written; to try "):
                read_comparison([str(out / name)])
        if name == "manifest.json" and number == 0:
            with pytest.raises(InputError, match=r"manifest.json' "):
                tune(words(*TUNE_WORDS), out)
        shutil.rmtree(out)


def test_the_command_writes_what_is_damaged_again(
    tuned: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    out = shutil.copytree(tuned[0], tmp_path / "out")
    (out / "trials.json").write_text("[]\n")
    (out / "tuned.toml").unlink()
    tune(words(*TUNE_WORDS), out)
    for name in ("trials.json", "tuned.toml", "manifest.json"):
        assert (out / name).read_bytes() == (tuned[0] / name).read_bytes()
    verify(str(out))


def test_a_copy_of_what_was_tuned_may_be_changed(
    tuned: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    text = (tuned[0] / "tuned.toml").read_text()
    (tmp_path / "copy.toml").write_text(text.replace("rounds = 5", "rounds = 6"))
    assert read_comparison([str(tmp_path / "copy.toml")]).rounds == 6
    (tmp_path / "manifest.json").write_text('{"name": "of another program"}')
    assert read_comparison([str(tmp_path / "copy.toml")]).rounds == 6
