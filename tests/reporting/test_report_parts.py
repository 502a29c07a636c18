"""What is compared with what, what is counted, and how numbers are written."""

import copy

import numpy as np
import pytest

from fedtailor import errors
from fedtailor.reporting import html
from fedtailor.reporting.html import grouping, thinning
from fedtailor.reporting.html.formats import choose_unit
from report_pages import cells, payload_of
from sample_records import Record, comparison, counted, record, with_scores


@pytest.mark.parametrize(
    ("kind", "value", "unit"),
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
def test_a_unit_fits_the_largest_amount(kind: str, value: float, unit: tuple[float, str]) -> None:
    assert choose_unit(kind, [value / 2, value]) == unit


def test_curves_know_what_had_been_computed_by_then() -> None:
    runs = [
        counted(run, flops)
        for run, flops in zip(comparison({"fedsim": 0.7}, (1, 2)), (1e9, 3e9), strict=True)
    ]
    points = payload_of(html.render(runs))["lines"][0]["curves"]["unseen"]["after"]["accuracy"]
    assert points["round"] == [2, 4, 6, 8, 10]
    assert points["flops"] == pytest.approx([2e9 * number for number in points["round"]])
    assert points["steps"] == pytest.approx([120 * number for number in points["round"]])


def test_work_is_in_flops_where_all_runs_have_counted_them_and_else_in_steps() -> None:
    old, new = comparison({"fedsim": 0.7, "fedprox": 0.6}, (1,))
    assert ">client steps<" in html.render([old, new])
    assert ">client steps<" in html.render([old, counted(new)]).split("</thead>")[0]
    page = html.render([counted(old), counted(new, 4e9)])
    assert ">client GFLOP<" in page.split("</thead>")[0]
    assert cells(page)["fedprox"][6:9] == ["1.90", "1.80", "40.0"]
    assert payload_of(page)["lines"][1]["cost"]["server"] == 4e9
    assert 'value="flops"' in page
    assert 'value="flops"' not in html.render([old, counted(new)])


def test_passes_of_personalizing_are_stages() -> None:
    found = payload_of(html.render([counted(record()), record("fedprox")]))
    assert found["stages"] == ["before", "1", "5", "after"]
    clients, older = (line["clients"]["participating"] for line in found["lines"])
    halves = [
        (a + b) / 2
        for a, b in zip(clients["before.accuracy"], clients["after.accuracy"], strict=True)
    ]
    assert clients["1.accuracy"] == pytest.approx(halves, abs=1e-4)
    assert set(older["1.accuracy"]) == {None}
    assert payload_of(html.render([record()]))["stages"] == ["before", "after"]


def test_more_figures_are_there_if_records_have_them() -> None:
    run = counted(record())
    page = html.render([run])
    more = page[page.index('<details class="more">') :]
    last = 100 * float(np.mean(run["scores"]["participating"]["after"]["accuracy"]))
    assert f"{last - 1:.1f}" in cells(page)["fedsim"][1]  # of the last fifth of the rounds
    first = [
        cell.split(">")[1].split("<")[0]
        for cell in more.split("<td")[2:9]
        for cell in [cell.split("<b")[1]]
    ]
    assert [first[0], *first[3:]] == [f"{last:.1f}", "71.0", "65.0", "0.900", "6"]
    assert 'class="more"' not in html.render([record()])


def test_each_client_is_counted_against_itself_alone() -> None:
    alone, other = record("local"), record("fedsim")
    alone = with_scores(alone, "participating", [0.5] * 4, [0.5, 0.5, 0.5, None])
    other = with_scores(other, "participating", [0.5] * 4, [0.6, 0.5, 0.4, 0.9])
    shuffled = copy.deepcopy(other)
    scores = shuffled["scores"]["participating"]
    scores["ids"] = scores["ids"][::-1]
    for stage in ("before", "after"):
        scores[stage] = {name: values[::-1] for name, values in scores[stage].items()}
    for runs in ([alone, other], [alone, shuffled]):
        found = payload_of(html.render(runs))
        assert found["alone"] == 0
        assert found["lines"][1]["against"]["participating"]["accuracy"] == [1, 1, 1]
        assert found["lines"][1]["against"]["participating"]["loss"] == [1, 1, 1]
    elsewhere = [alone, other | {"config": other["config"] | {"seed": 5}}]
    assert payload_of(html.render(elsewhere))["lines"][1]["against"]["participating"][
        "accuracy"
    ] == [0, 0, 0]


def labelled(run: Record, label: str) -> Record:
    return run | {"name": label, "config": run["config"] | {"label": label}}


def test_labels_behind_an_at_keep_what_the_method_is() -> None:
    runs = [labelled(record("local"), "local@long"), labelled(record("fedavg"), "fedavg@slow")]
    page = html.render(runs)
    assert list(cells(page)) == ["local@long", "fedavg@slow", "fedavg@slow + fine-tuning"]
    assert payload_of(page)["alone"] == 0


def test_runs_on_other_clients_are_refused() -> None:
    one, other = record("fedsim"), record("fedprox")
    other["config"]["data_options"]["alpha"] = 0.9
    message = "with seed 1 'fedsim' and 'fedprox' differ in alpha=0.3 and alpha=0.9; make one report for each"
    with pytest.raises(errors.InputError, match=message):
        html.render([one, other])
    one["checksums"] = {"data": "abc"}
    with pytest.raises(errors.InputError, match="differ in their data; make one report for each"):
        html.render([one, record("fedprox") | {"checksums": {"data": "another"}}])
    known = [record(name) | {"checksums": {"data": "abc"}} for name in ("fedsim", "fedprox")]
    known[1]["data"]["checksum"] = "of the method's own view"
    known[1]["config"]["data_options"]["shards"] = None  # an option that older records do not know
    assert len(grouping.group_into_lines(known)) == 2
    later = record("fedprox", 2) | {
        "checksums": {"data": "another"}
    }  # another seed may divide the data in another way
    assert len(grouping.group_into_lines([one, later])) == 2


def test_records_that_know_fewer_options_are_of_the_same_line() -> None:
    older, newer = comparison({"fedsim": 0.7}, (1, 2))
    newer["config"] |= {"budget": "rounds", "target": None}
    assert [line.label for line in grouping.group_into_lines([older, newer])] == ["fedsim"]


def test_scores_of_validation_clients_are_not_mixed_with_others() -> None:
    tuned = record("fedprox")
    tuned["config"]["eval_groups"] = "validation"
    tuned["scores"] = {"validation": tuned["scores"]["unseen"]}
    with pytest.raises(errors.InputError, match="got scores of all and of validation"):
        html.render([record(), tuned])
    page = html.render([tuned])
    assert "validation clients (2)" in page
    assert payload_of(page)["groups"] == ["validation"]
    assert "local clients (" not in page


def test_one_group_alone_has_a_page() -> None:
    run = record()
    run["data"]["groups"]["unseen"] = []
    del run["scores"]["unseen"]
    found = payload_of(html.render([run]))
    assert found["groups"] == ["participating"]


def test_of_very_many_rounds_some_are_drawn_and_the_last_is_among_them() -> None:
    points = payload_of(html.render([record(rounds=2000)]))["lines"][0]["curves"]["unseen"][
        "after"
    ]["accuracy"]
    assert len(points["round"]) == len(points["mean"]) == thinning.MAX_POINTS
    assert (points["round"][0], points["round"][-1]) == (2, 2000)


def test_so_many_clients_are_drawn_that_the_page_stays_small() -> None:
    assert thinning.get_max_clients(1, 2) == thinning.MAX_CLIENTS
    assert thinning.get_max_clients(24, 2) * 24 * 2 <= thinning.MAX_TOTAL_CLIENTS
    runs = [
        counted(run) for run in comparison({f"m{n}": 0.5 for n in range(8)}, clients=1500, rounds=2)
    ]
    page = html.render(runs)
    assert len(page.encode()) < 8e6
    assert "Of larger groups 416 clients are drawn" in page
