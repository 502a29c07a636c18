"""One definition of every figure, and the words about which methods are best."""

import math
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedtailor as ft
from fedtailor import data as sources
from fedtailor.evaluation.ranking import Verdict
from fedtailor.reporting import html, results
from fedtailor.reporting.comparison_table import build_tables
from fedtailor.training import from_config
from fedtailor.training.overrides import read_run_config
from fedtailor.training.record.schema import Checksums, RunRecord
from fedtailor.training.runner import start_run
from known import known
from report_pages import cells
from sample_records import make_record, replace_scores, truncate

SMALL = ["data.clients=12", "hidden=8", "cohort=4", "batch=50", "threads=1", "compile=false"]


def with_means(name: str, means: Sequence[float], num_clients: int = 4) -> list[RunRecord]:
    """A run for each mean, whose unseen clients differ from it by the same in every seed."""
    offsets = np.linspace(-0.1, 0.1, num_clients)
    records = []
    for seed, mean in enumerate(means):
        scores = (mean + offsets).tolist()
        records.append(replace_scores(make_record(name, seed), "unseen", scores, scores))
    return records


def share_split(records: Sequence[RunRecord]) -> list[RunRecord]:
    checksums = Checksums(config="", data="one split", weights="")
    return [record.model_copy(update={"checksums": checksums}) for record in records]


def lose_client(record: RunRecord) -> RunRecord:
    """The run with an error that is not finite for an unseen client with test examples."""
    scores = known(record.scores)["unseen"]
    after = {name: [None, *values[1:]] for name, values in scores.after.items()}
    lost = {**known(record.scores), "unseen": scores.model_copy(update={"after": after})}
    summary = known(record.summary)
    stages = {**summary["unseen"]}
    stages["after"] = stages["after"].model_copy(update={"acc_macro": None, "diverged": 1})
    return record.model_copy(update={"scores": lost, "summary": {**summary, "unseen": stages}})


def print_tables(records: Sequence[RunRecord], width: int = 100) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(build_tables(records, "title", width))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def to_sentences(records_by_label: dict[str, list[RunRecord]], group: str = "unseen") -> list[str]:
    found = results.compare_methods(records_by_label, group)
    return results.describe_group(found, lambda value: f"{100 * value:.1f}", 5)


def test_table_report_record_and_python_have_the_same_figures(tmp_path: Path) -> None:
    config = read_run_config(["method=fedavg", *SMALL, "rounds=6", "evaluate_every=1", "seed=3"])
    record = start_run(config, tmp_path / "out").record
    data = sources.load(config.data, **record.config.data_options)
    fitted = ft.fit(
        "fedavg",
        from_config.get_model_factory(record.config, data.example_spec),
        data,
        rounds=6,
        cohort=4,
        seed=3,
        compile=False,
        **record.hparams,
    )
    table_rows = [line.split() for line in print_tables([record]).splitlines()]
    rows = [row for row in table_rows if row[:1] == ["fedavg"]]
    page = cells(html.render([record]))
    assert len(rows) == 3  # participating clients, unseen clients, costs
    for place, group in enumerate(("participating", "unseen")):
        summary = known(record.summary)[group]
        for column, stage in enumerate(("before", "after")):
            figure = known(summary[stage].acc_macro)
            assert fitted.scores[group].mean("accuracy", stage) == pytest.approx(figure, abs=1e-12)
            assert rows[place][1 + column] == f"{100 * figure:.1f}"
            row = "fedavg" if stage == "before" else "fedavg + fine-tuning"
            assert page[row][4 * place + column].split()[0] == f"{100 * figure:.1f}"
            per_client = known(record.scores)[group].get_values(stage, "accuracy")
            assert figure == pytest.approx(per_client.mean())
        assert rows[place][-1] == f"{100 * known(summary['after'].worst_tenth):.1f}"
    # The time of the run is one figure, too.
    total = known(record.times).total
    assert rows[2][-1] == f"{total:.1f}"
    assert float(page["fedavg"][-1]) == pytest.approx(total, abs=0.06)


def test_a_wild_method_is_not_called_best_where_another_has_a_higher_mean() -> None:
    """As where "best" was what mean and standard deviation do not keep apart from the leader."""
    steady = with_means("fedsim", [0.975, 0.977, 0.979])
    wild = with_means("fedavg", [0.955, 0.969, 0.983])
    found = results.compare_methods({"fedsim": steady, "fedavg": wild}, "unseen").standings
    assert found["fedsim"].difference == 0
    assert found["fedavg"].verdict == Verdict.MAY_BE_BEST
    assert found["fedavg"].more_seeds is not None
    told = " ".join(to_sentences({"fedsim": steady, "fedavg": wild}))
    assert "these runs cannot tell: it may be fedsim or fedavg." in told
    assert "more seeds would tell." in told
    assert "level" not in told


def test_sentences_tell_the_best_and_how_far_the_others_are_behind() -> None:
    records = {
        "fedsim": with_means("fedsim", [0.90, 0.91, 0.92]),
        "fedavg": with_means("fedavg", [0.80, 0.81, 0.82]),
        "local": with_means("local", [0.50, 0.51, 0.52]),
    }
    assert to_sentences(records) == [
        "Best for clients like these, as each seed has a split of its own: fedsim.",
        "Behind the best: fedavg by 10.0 (10.0 to 10.0), local by 40.0 (40.0 to 40.0).",
    ]


def test_the_sample_of_clients_counts_where_all_seeds_share_a_split() -> None:
    rng = np.random.default_rng(0)
    records = {}
    for name, mean in (("fedsim", 0.8), ("fedavg", 0.7)):
        personal = mean + rng.normal(0, 0.2, 6)
        runs = []
        for seed in range(5):
            scores = (personal - personal.mean() + mean + 0.001 * seed).tolist()
            runs.append(replace_scores(make_record(name, seed), "unseen", scores, scores))
        records[name] = share_split(runs)
    same = results.compare_methods(records, "unseen")
    assert same.population.startswith("for clients like these, as intervals allow")
    assert same.standings["fedavg"].verdict == Verdict.MAY_BE_BEST
    assert "More clients would tell, more seeds alone would not." in to_sentences(records)
    others = {
        name: [
            run.model_copy(
                update={"checksums": Checksums(config="", data=str(run.config.seed), weights="")}
            )
            for run in runs
        ]
        for name, runs in records.items()
    }
    apart = results.compare_methods(others, "unseen")
    assert apart.standings["fedavg"].verdict == Verdict.BEHIND
    participating = results.compare_methods(records, "participating")
    assert participating.population == "for these clients on this split, not for others"


def test_a_seed_that_diverged_is_said_and_its_method_is_never_best() -> None:
    lost = with_means("fedsim", [0.95, 0.95, 0.95, 0.95])
    lost[2] = truncate(lost[2], 4, "diverged")
    others = with_means("fedavg", [0.80, 0.81, 0.80, 0.81])
    told = to_sentences({"fedsim": lost, "fedavg": others})
    assert told[-1] == "fedsim: 1 of 4 seeds diverged; its mean is over the others."
    assert not any(sentence.startswith("Best ") for sentence in told)
    text = print_tables([*lost, *others])
    assert "95.0 ±0.0†" in text
    assert "fedsim: 1 of 4 seeds diverged" in text
    page = html.render([*lost, *others])
    assert "1 seed diverged" in " ".join(page.split())


def test_a_method_of_which_every_seed_diverged_has_a_row() -> None:
    lost = [truncate(record, 4, "diverged") for record in with_means("fedsim", [0.9, 0.9])]
    text = print_tables([*lost, *with_means("fedavg", [0.8, 0.8])])
    rows = [line.split() for line in text.splitlines() if line.startswith(" fedsim")]
    assert rows[0] == ["fedsim", "diverged", "diverged"]
    assert "fedsim: 2 of 2 seeds diverged" in text


def test_a_client_whose_model_diverged_is_not_left_out_of_the_mean() -> None:
    records = with_means("fedsim", [0.9, 0.9])
    records[1] = lose_client(records[1])
    assert math.isnan(results.get_figure(records[1], "unseen", "after"))
    told = to_sentences({"fedsim": records, "fedavg": with_means("fedavg", [0.8, 0.8])})
    assert "fedsim: 1 of 2 seeds diverged for a client in personalizing" in told[-1]
    assert not any(sentence.startswith("Best ") for sentence in told)


def test_clients_without_test_examples_are_counted_beside_the_figures() -> None:
    record = replace_scores(make_record(), "unseen", [0.5, None, 0.7], [0.6, None, 0.8])
    assert "Unseen clients, who took no part in training: 2 with test examples, 1 without are" in (
        print_tables([record])
    )
    assert known(known(record.summary)["unseen"]["after"].acc_macro) == pytest.approx(0.7)
