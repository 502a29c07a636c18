"""Comparisons with local training, units, and limits on what is drawn."""

from collections.abc import Mapping, Sequence
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedtailor import errors
from fedtailor.reporting import html
from fedtailor.reporting.comparison_table import build_tables
from fedtailor.reporting.html import grouping, thinning
from fedtailor.reporting.html.formats import choose_decimals, choose_unit
from fedtailor.training.record.schema import Checksums, Figures, FinalWindow, MetricInfo, RunRecord
from report_pages import cells, payload_of
from sample_records import (
    add_passes,
    make_comparison,
    make_record,
    remove_unseen_clients,
    rename_accuracy,
    replace_scores,
    scale_work,
    update_config,
    update_data,
)


@pytest.mark.parametrize(
    ("quantity", "value", "unit"),
    [
        ("mb", 0.1234, (1.0, "MB")),
        ("mb", 7.7, (1.0, "MB")),
        ("mb", 12_345.0, (1e3, "GB")),
        ("mb", 3.2e6, (1e6, "TB")),
        ("flops", 4.12e9, (1e9, "GFLOP")),
        ("flops", 2.5e13, (1e12, "TFLOP")),
        ("flops", 0.0, (1e6, "MFLOP")),
        ("steps", 12_345.0, (1.0, "steps")),
        ("seconds", 250.0, (1.0, "s")),
        ("seconds", 600.0, (60.0, "min")),
        ("seconds", 36_000.0, (3600.0, "h")),
    ],
)
def test_a_unit_fits_the_largest_amount(
    quantity: str, value: float, unit: tuple[float, str]
) -> None:
    assert choose_unit(quantity, [value / 2, value]) == unit


@pytest.mark.parametrize(
    ("largest", "decimals"), [(0.0, 0), (12.3, 1), (1.23, 2), (0.123, 3), (1234.0, 0), (1e-9, 6)]
)
def test_decimals_give_the_largest_figure_its_digits(largest: float, decimals: int) -> None:
    assert choose_decimals(largest, num_digits=3) == decimals


def test_curves_have_the_mean_work_of_the_seeds() -> None:
    first, second = make_comparison({"fedsim": 0.7}, (1, 2))
    page = html.render([scale_work(first, 0.5), scale_work(second, 1.5)])
    points = payload_of(page)["lines"][0]["curves"]["unseen"]["after"]["accuracy"]
    assert points["round"] == [2, 4, 6, 8, 10]
    assert points["flops"] == pytest.approx([2e9 * round_idx for round_idx in points["round"]])


def test_work_has_one_unit_for_all_methods() -> None:
    fedsim, fedprox = make_comparison({"fedsim": 0.7, "fedprox": 0.6}, (1,))
    page = html.render([fedsim, scale_work(fedprox, 2)])
    assert ">client GFLOP<" in page.split("</thead>")[0]
    assert cells(page)["fedsim"][8:] == ["3.70", "20.0", "8.00", "4.00"]
    assert cells(page)["fedprox"][8:] == ["3.70", "40.0", "\N{EN DASH}", "4.00"]
    assert payload_of(page)["lines"][1]["cost"]["server"] == 4e9


def test_passes_of_personalizing_are_stages() -> None:
    payload = payload_of(html.render([add_passes(make_record()), make_record("fedprox")]))
    assert payload["stages"] == ["before", "1", "5", "after"]
    with_passes, without_passes = (line["clients"]["participating"] for line in payload["lines"])
    before = np.array(with_passes["before.accuracy"])
    after = np.array(with_passes["after.accuracy"])
    assert with_passes["1.accuracy"] == pytest.approx((before + after) / 2, abs=1e-4)
    assert set(without_passes["1.accuracy"]) == {None}
    assert payload_of(html.render([make_record()]))["stages"] == ["before", "after"]


def test_more_figures_are_in_a_table_of_their_own() -> None:
    run = add_passes(make_record())
    assert run.scores is not None
    assert run.convergence is not None
    rounds_to_half = run.convergence["participating"]["after"].rounds_to_half
    accuracy = run.scores["participating"].after["accuracy"]
    last = 100 * float(np.mean(np.array(accuracy, dtype=float)))
    figures: Figures = {"accuracy": last / 100 - 0.01}
    window_means = {"participating": {"after": figures}}
    window = FinalWindow(eval_points=[10], mean=window_means)
    page = html.render([run.model_copy(update={"final_window": window})])
    assert f"{last:.1f}" in cells(page)["fedsim"][1]
    details = cells(page[page.index('<details class="more">') :])["fedsim"]
    # Over the last fifth of the rounds, 1 and 5 passes: over examples, F1, loss, rounds to 50 %.
    others = ["71.0", "65.0", "0.900", str(rounds_to_half)]
    assert [details[0], *details[3:7]] == [f"{last - 1:.1f}", *others]


def compare_with_local(runs: Sequence[RunRecord]) -> Mapping[str, Sequence[int]]:
    """Return how many participating clients of the second line do better, the same and worse."""
    payload = payload_of(html.render(runs))
    assert payload["local"] == 0
    counts: Mapping[str, Sequence[int]] = payload["lines"][1]["against_local"]["participating"]
    return counts


def test_each_client_is_compared_with_itself_under_local_training() -> None:
    local = replace_scores(make_record("local"), "participating", [0.5] * 4, [0.5, 0.5, 0.5, None])
    other = replace_scores(make_record("fedsim"), "participating", [0.5] * 4, [0.6, 0.5, 0.4, 0.9])
    assert other.scores is not None
    scores = other.scores["participating"]
    changes = {
        "ids": scores.ids[::-1],
        "before": {name: values[::-1] for name, values in scores.before.items()},
        "after": {name: values[::-1] for name, values in scores.after.items()},
    }
    reversed_scores = {**other.scores, "participating": scores.model_copy(update=changes)}
    reversed_run = other.model_copy(update={"scores": reversed_scores})
    for run in (other, reversed_run):
        counts = compare_with_local([local, run])
        assert counts["accuracy"] == [1, 1, 1]
        assert counts["loss"] == [1, 1, 1]
    with_other_seed = update_config(other, seed=5)
    assert compare_with_local([local, with_other_seed])["accuracy"] == [0, 0, 0]


def test_labels_behind_an_at_keep_the_method() -> None:
    page = html.render([make_record("local@long"), make_record("fedavg@slow")])
    assert list(cells(page)) == ["local@long", "fedavg@slow", "fedavg@slow + fine-tuning"]
    assert payload_of(page)["local"] == 0


def with_data_checksum(record: RunRecord, checksum: str) -> RunRecord:
    return record.model_copy(update={"checksums": Checksums(config="", data=checksum, weights="")})


def test_runs_on_other_clients_are_refused() -> None:
    one = make_record("fedsim")
    other = with_data_checksum(make_record("fedprox"), "other")
    with pytest.raises(errors.InputError, match="differ in their data; make one report for each"):
        html.render([one, other])
    with_other_options = update_config(other, data_options={"seed": 1, "alpha": 0.9})
    message = (
        "with seed 1 'fedsim' and 'fedprox' differ in alpha=0.3 and alpha=0.9; "
        "make one report for each"
    )
    with pytest.raises(errors.InputError, match=message):
        html.render([one, with_other_options])


def test_runs_on_the_same_clients_may_have_another_view_of_the_data() -> None:
    same = update_data(make_record("fedprox"), checksum="of the method's own view")
    assert len(grouping.group_into_lines([make_record("fedsim"), same])) == 2


def test_seeds_may_have_other_values_that_validation_clients_chose() -> None:
    records = [
        update_config(make_record("fedsim", seed), hparams={"lr": rate}, tuned=("lr",))
        for seed, rate in ((1, 0.1), (2, 0.3))
    ]
    (line,) = grouping.group_into_lines(records)
    assert (line.label, len(line.runs)) == ("fedsim", 2)
    given = [update_config(record, tuned=()) for record in records]
    labels = [line.label for line in grouping.group_into_lines(given)]
    assert labels == ["fedsim (lr=0.1)", "fedsim (lr=0.3)"]


def test_seeds_may_have_other_clients() -> None:
    later = with_data_checksum(make_record("fedprox", 2), "other")
    assert len(grouping.group_into_lines([make_record("fedsim"), later])) == 2


def test_scores_of_validation_clients_are_not_mixed_with_others() -> None:
    run = make_record("fedprox")
    assert run.scores is not None
    scores = {"validation": run.scores["unseen"]}
    trial = update_config(run, eval_groups="validation").model_copy(update={"scores": scores})
    message = "the same eval_groups, got all, validation"
    with pytest.raises(errors.InputError, match=message):
        html.render([make_record(), trial])
    page = html.render([trial])
    assert "validation clients (2)" in page
    assert payload_of(page)["groups"] == ["validation"]
    assert "participating clients (" not in page


def test_one_group_alone_has_a_page() -> None:
    page = html.render([remove_unseen_clients(make_record())])
    assert payload_of(page)["groups"] == ["participating"]


def test_of_very_many_rounds_some_are_drawn_and_the_last_is_among_them() -> None:
    payload = payload_of(html.render([make_record(num_rounds=2000)]))
    points = payload["lines"][0]["curves"]["unseen"]["after"]["accuracy"]
    assert len(points["round"]) == len(points["mean"]) == thinning.MAX_POINTS
    assert (points["round"][0], points["round"][-1]) == (2, 2000)


def test_clients_are_drawn_up_to_a_total() -> None:
    assert thinning.get_max_clients(1, 2) == thinning.MAX_CLIENTS
    assert thinning.get_max_clients(24, 2) * 24 * 2 <= thinning.MAX_TOTAL_CLIENTS
    skills = {f"m{index}": 0.5 for index in range(8)}
    runs = make_comparison(skills, num_clients=1500, num_rounds=2)
    page = html.render([add_passes(run) for run in runs])
    assert len(page.encode()) < 8e6
    assert "Of larger groups 416 clients are drawn" in page


@pytest.mark.parametrize(
    ("name", "is_percent"), [("accuracy", True), ("f1", True), ("auc", True), ("mae", False)]
)
def test_the_page_and_the_terminal_show_the_same_metrics_in_percent(
    name: str, is_percent: bool
) -> None:
    metric = MetricInfo(name=name, higher_is_better=name != "mae")
    record = rename_accuracy(make_record(), metric)
    assert payload_of(html.render([record]))["metric"]["percent"] is is_percent
    console = Console(file=StringIO(), width=120)
    console.print(build_tables([record], "title"))
    assert isinstance(console.file, StringIO)
    caption = " ".join(console.file.getvalue().split())
    assert (f"Test {name} in %, before" in caption) is is_percent
    assert (f"{name}, before and after" in caption) is not is_percent
