"""The report's figures, sentences and safety, without a browser."""

import base64
import copy
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, pstdev, stdev
from typing import Any

import pytest

from fedtailor import errors
from fedtailor.reporting import html
from fedtailor.reporting.html import data_overview, figures, frame, grouping, thinning, wording
from fedtailor.reporting.html.formats import format_number
from report_pages import cells, payload_of
from sample_records import Record, comparison, record, regression, unfinished, with_scores

NONE = "\N{EN DASH}"


class Reader(HTMLParser):
    """Elements and texts of a page, as a browser's parser would split them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.elements[-1][0] if self.elements else "", data))


def hand_made() -> list[Record]:
    """Two seeds of two methods with figures that can be followed by hand."""
    made = []
    for name, shift in (("fedavg", 0.0), ("fedsim", 0.1)):
        for seed in (1, 2):
            run = with_scores(
                record(name, seed),
                "participating",
                [0.5 + shift] * 4,
                [0.2, 0.6 + shift, 0.8, 0.4 * seed],
            )
            made.append(with_scores(run, "unseen", [0.25 * seed], [0.5 + shift]))
    return made


def test_rows_are_means_over_clients_averaged_over_seeds() -> None:
    lines = grouping.group_into_lines(hand_made())
    averaged, tuned, fedsim = figures.build_rows(lines, grouping.get_metric(lines))
    assert [row.label for row in (averaged, tuned, fedsim)] == [
        "fedavg",
        "fedavg + fine-tuning",
        "fedsim",
    ]
    seeds = [[0.2, 0.6, 0.8, 0.4], [0.2, 0.6, 0.8, 0.8]]
    means = [mean(seed) for seed in seeds]
    found = tuned.cells["participating.after"]
    assert found.mean == pytest.approx(mean(means))
    assert found.over_clients == pytest.approx(mean(pstdev(seed) for seed in seeds))
    assert found.over_seeds == pytest.approx(stdev(means))
    assert tuned.cells["participating.worst"].mean == pytest.approx(0.2)
    assert averaged.cells["participating.worst"].mean == pytest.approx(0.5)
    assert "participating.after" not in averaged.cells
    assert averaged.cells["unseen.before"] == pytest.approx((0.375, 0.0, stdev([0.25, 0.5])))
    assert fedsim.cells["down"].mean == pytest.approx(1.9)
    assert fedsim.cells["steps"].mean == 1200


def test_the_table_shows_the_figures_and_marks_none() -> None:
    page = html.render(hand_made())
    table = cells(page)
    assert table["fedavg"][:3] == ["50.0 ± 0.0 seeds ± 0.0", NONE, "50.0 seeds ± 0.0"]
    assert table["fedavg + fine-tuning"][1] == "55.0 ± 23.4 seeds ± 7.1"
    assert table["fedsim"][0] == "60.0 ± 0.0 seeds ± 0.0"
    assert table["fedsim"][4] == "60.0 ± 0.0 seeds ± 0.0"
    assert table["fedsim"][6:9] == ["1.90", "1.80", "1,200"]
    assert table["fedsim"][1].startswith("57.5 ± ")
    shown = page.partition("<script")[0]
    assert "best" not in shown.replace("best round", "")
    assert "level with" not in shown
    assert 'class="tile"' not in shown
    assert 'class="tile"' in html.render(hand_made()[2:])


def test_a_spread_over_one_split_of_the_data_is_said_to_be_of_that() -> None:
    runs = [dict(run) for run in hand_made()]
    for run in runs:
        run["checksums"] = {"data": "the same"}
    assert (
        "over seeds (of first weights, cohorts and batches, on one split of the data)"
        in html.render(runs)
    )
    runs[0]["checksums"] = runs[2]["checksums"] = {"data": "another"}
    assert "on one split" not in html.render(runs)


def test_lower_is_better_turns_the_worst_tenth_around() -> None:
    runs = [
        with_scores(regression(record(name)), "participating", [3.0, 3.0], after)
        for name, after in _ERRORS.items()
    ]
    lines = grouping.group_into_lines(runs)
    metric = grouping.get_metric(lines)
    rows = figures.build_rows(lines, metric)
    assert [row.cells["participating.worst"].mean for row in rows] == [2.0, 4.0]
    page = html.render(runs)
    assert cells(page)["fedprox"][1].startswith("1.500")
    assert 'data-first="ascending">before' in page
    assert "lower is better" in page


_ERRORS: dict[str, list[float | None]] = {"fedprox": [1.0, 2.0], "fedsim": [1.0, 4.0]}


def test_a_curve_is_the_mean_over_seeds_in_a_band_from_lowest_to_highest() -> None:
    runs = comparison({"fedsim": 0.7}, seeds=(1, 2, 3))
    runs[2] = unfinished(runs[2], 4)
    points = payload_of(html.render(runs))["lines"][0]["curves"]["unseen"]["after"]["accuracy"]
    assert points["round"] == [2, 4, 6, 8, 10]
    assert points["seeds"] == [3, 3, 2, 2, 2]
    assert points["mb"] == pytest.approx([0.74, 1.48, 2.22, 2.96, 3.7])
    for place, scored in enumerate(points["round"]):
        values = [
            run["rounds"][scored - 1]["scores"]["unseen"]["after"]["accuracy"]
            for run in runs[: points["seeds"][place]]
        ]
        found = [points[key][place] for key in ("low", "mean", "high")]
        assert found == pytest.approx([min(values), mean(values), max(values)], rel=1e-4)


def test_final_scores_stand_in_for_a_last_round_that_was_not_scored() -> None:
    run = with_scores(record(rounds=3), "participating", [0.1, None], [0.3, None])
    points = payload_of(html.render([run]))["lines"][0]["curves"]["participating"]
    assert points["after"]["accuracy"]["round"] == [2, 3]
    assert points["after"]["accuracy"]["mean"][-1] == 0.3
    assert points["before"]["accuracy"]["mean"][-1] == 0.1


def test_clients_without_test_examples_are_left_out_and_said() -> None:
    run = with_scores(record(), "participating", [0.5, None, 0.7], [0.6, None, 0.8])
    page = html.render([run])
    assert cells(page)["fedsim"][1] == "70.0 ± 10.0"
    assert "1 participating client without test examples left out of the figures." in page
    assert payload_of(page)["lines"][0]["clients"]["participating"]["after.accuracy"] == [
        0.6,
        None,
        0.8,
    ]


def test_a_group_in_which_nobody_could_be_tested_has_no_figure() -> None:
    page = html.render([with_scores(record(), "unseen", [None], [None])])
    assert cells(page)["fedsim"][3:6] == [NONE] * 3
    assert "unseen clients, after personalizing" not in page


def test_numbers_that_are_not_finite_become_null() -> None:
    run = record()
    run["rounds"][1]["scores"]["participating"]["after"]["loss"] = math.nan
    run["rounds"][3]["scores"]["participating"]["after"]["loss"] = None
    points = payload_of(html.render([run]))["lines"][0]["curves"]["participating"]["after"]["loss"]
    assert points["round"] == [6, 8, 10]
    assert frame.dump_json([math.inf, 1.23456789]) == "[null,1.2346]"


@pytest.mark.parametrize(
    ("state", "words"), [("running", "In progress"), ("interrupted", "Interrupted")]
)
def test_a_run_that_is_not_finished_says_so_and_has_no_final_scores(state: str, words: str) -> None:
    page = html.render([unfinished(record(), 4, state)])
    assert (
        f'<p class="status {state}">{words}: 4 of 10 rounds so far, no final scores yet</p>' in page
    )
    assert cells(page)["fedsim"][:6] == [NONE] * 6
    assert "Final scores appear here when a run has finished." in page
    assert payload_of(page)["lines"][0]["curves"]["participating"]["after"]["accuracy"][
        "round"
    ] == [2, 4]


def test_costs_so_far_are_those_of_the_rounds() -> None:
    page = html.render([unfinished(record(), 4) | {"cost": None}])
    assert cells(page)["fedsim"][6:] == ["0.760", "0.720", "480", "0.800"]
    assert "running, 4 of 10 rounds, 0.8 s" in page


def test_a_run_before_its_first_round_has_a_page() -> None:
    page = html.render([unfinished(record(), 0)])
    assert "0 of 10 rounds so far" in page
    assert "No round has been scored yet." in page


def test_a_comparison_in_progress_names_the_run_that_is_running() -> None:
    runs = comparison({"fedavg": 0.6, "fedsim": 0.7}, seeds=(1, 2))
    runs[3] = unfinished(runs[3], 6)
    kind, sentence = wording.describe_status(grouping.group_into_lines(runs))
    assert kind == "running"
    assert sentence.startswith("3 of 4 runs finished; fedsim, seed 2, running, 6 of 10 rounds;")


def test_title_and_summary_say_what_was_compared() -> None:
    lines = grouping.group_into_lines(comparison({"local": 0.5, "fedavg": 0.6, "fedsim": 0.7}))
    assert wording.make_title(lines) == "local, fedavg and fedsim on digits"
    assert wording.make_summary(lines) == (
        "15 clients who took part in training and 3 new ones who did not; 90 examples held by the server; 10 rounds; "
        "10 clients a round; seeds 1, 2 and 3."
    )


def test_scores_of_some_clients_in_rounds_are_said() -> None:
    run = record(clients=20)
    assert "clients of a larger group are scored" not in html.render([run])
    run["config"]["eval_clients"] = 15
    assert "clients of a larger group are scored" not in html.render([run])
    run["config"]["eval_clients"] = 14
    assert (
        "In rounds, 14 clients of a larger group are scored; in the end, all of them."
        in html.render([run])
    )
    run["config"]["final_eval_clients"] = 13
    assert "In rounds, 14 clients of a larger group are scored; in the end, 13." in html.render(
        [run]
    )


def test_notes_name_the_methods_they_are_about() -> None:
    runs = comparison({"fedavg": 0.6, "fedsim": 0.7}, seeds=(1, 2))
    for run in runs:
        run["data"]["overlap"] = "it is public"
    for run in runs[2:]:
        run["choices"]["notes"] = ["runs one by one"]
    assert wording.collect_notes(grouping.group_into_lines(runs)) == [
        "The server's data overlaps the clients', as declared: it is public",
        "fedsim: runs one by one",
    ]


def test_options_that_differ_make_lines_of_their_own() -> None:
    runs = [record(seed=seed) for seed in (1, 2, 1)]
    runs[2]["config"]["hparams"]["lam"] = 0.9
    lines = grouping.group_into_lines(runs)
    assert [(line.label, len(line.runs)) for line in lines] == [
        ("fedsim (lam=0.1)", 2),
        ("fedsim (lam=0.9)", 1),
    ]


def test_the_same_seed_twice_is_said() -> None:
    assert "fedsim: seed 1 was given 2 times." in html.render([record(), record()])


HOSTILE = "</script x><!-- <script </script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;{%"


def hostile() -> Record:
    """A record in which everything that can be a text is an attack."""
    run = record(HOSTILE)
    for entry in (run["data"], run["versions"], run["config"]):
        entry["name"] = HOSTILE
    run["data"]["clients"] = [HOSTILE] * len(run["data"]["clients"])
    run["scores"]["participating"]["ids"] = [HOSTILE] * len(run["scores"]["participating"]["ids"])
    run |= {"command": HOSTILE, "commit": HOSTILE}
    run["config"][HOSTILE] = {HOSTILE: HOSTILE}
    run["choices"] |= {HOSTILE: HOSTILE, "notes": [HOSTILE]}
    run["data"]["overlap"] = HOSTILE
    return run


def test_what_comes_from_records_is_escaped_everywhere() -> None:
    plain, attacked = Reader(html.render([record()])), Reader(html.render([hostile()]))
    kinds = {tag for tag, _ in plain.elements}
    assert {tag for tag, _ in attacked.elements} <= kinds | {"ul", "li"}
    assert [tag for tag, _ in attacked.elements].count("script") == [
        tag for tag, _ in plain.elements
    ].count("script")
    assert not any(
        name.startswith("on") for _, attributes in attacked.elements for name in attributes
    )
    assert ("code", HOSTILE) in attacked.texts
    assert any(
        attributes.get("aria-label") == f"Copy the command: {HOSTILE}"
        for _, attributes in attacked.elements
    )


def test_json_inside_a_script_element_cannot_end_it() -> None:
    text = frame.dump_json({HOSTILE: [HOSTILE]})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {HOSTILE: [HOSTILE]}


def test_hostile_texts_reach_the_charts_unchanged() -> None:
    found = payload_of(html.render([hostile()]))
    assert found["lines"][0]["label"] == HOSTILE
    assert set(found["lines"][0]["clients"]["participating"]["ids"]) == {HOSTILE}


def test_the_page_asks_for_nothing() -> None:
    page = html.render([record()])
    reader = Reader(page)
    sources = [
        value
        for _, attributes in reader.elements
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert sources == ["data:,", "#results"]
    policy = next(
        found["content"]
        for tag, found in reader.elements
        if tag == "meta" and "http-equiv" in found
    )
    assert policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert "connect-src" not in policy


def test_the_policy_allows_the_scripts_of_the_page_and_no_others() -> None:
    page = html.render([record()])
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    policies = [found["content"] for tag, found in Reader(page).elements if "http-equiv" in found]
    assert policies == [
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    ]


def test_only_styles_scripts_and_json_are_not_escaped() -> None:
    run = Path(html.__file__).parent.parent
    folders = [run / "html", run / "dataset_page"]
    templates = "".join(
        path.read_text() for folder in folders for path in folder.glob("templates/*")
    )
    assert sorted(re.findall(r"(\w+)\s*\|\s*safe", templates)) == [
        "json",
        "script",
        "style",
        "theme",
    ]
    sources = templates + "".join(
        path.read_text() for folder in folders for path in folder.glob("*.py")
    )
    assert "Markup" not in sources
    assert "autoescape false" not in sources
    assert frame.PAGES.autoescape is True


def test_labels_are_sorted_by_group_and_commonest_label() -> None:
    run = record(clients=8)
    run["data"] |= {
        "labels": [[1, 5], [9, 0], [2, 7], [3, 1], [0, 4], [4, 0], [1, 6], [6, 1]],
        "server_labels": [5, 5],
    }
    found = data_overview.build_data_payload(run)
    assert found["group"] == ["participating"] * 6 + ["validation"] * 2
    assert found["labels"] == [[9, 0], [4, 0], [3, 1], [2, 7], [1, 5], [0, 4], [6, 1], [1, 6]]
    assert found["ids"] == [f"client-{place}" for place in (1, 5, 3, 2, 0, 4, 7, 6)]
    assert found["train"] == [
        run["data"]["train_sizes"][place] for place in (1, 5, 3, 2, 0, 4, 7, 6)
    ]


def test_without_labels_the_sizes_are_drawn() -> None:
    page = html.render([regression(record())])
    assert "Train examples of each client" in page
    assert payload_of(page)["data"]["labels"] is None
    assert "share of each label" in html.render([record()])


def test_of_very_many_clients_some_are_drawn_but_all_are_counted() -> None:
    many = thinning.MAX_CLIENTS + 500
    values: list[float | None] = [float(place % 2) for place in range(many)]
    run = with_scores(record(clients=many, rounds=2), "participating", values, values)
    page = html.render([run])
    assert (
        len(payload_of(page)["lines"][0]["clients"]["participating"]["ids"]) == thinning.MAX_CLIENTS
    )
    assert len(payload_of(page)["data"]["ids"]) == thinning.MAX_CLIENTS
    assert cells(page)["fedsim"][1] == "50.0 ± 50.0"
    assert "2,000 of 2,500 clients are drawn" in page


def test_command_specification_choices_and_versions_are_there() -> None:
    run = record()
    texts = [text for _, text in Reader(html.render([run])).texts]
    assert run["command"] in texts
    assert any(
        text.startswith("{") and json.loads(text) == run["config"]
        for text in texts
        if '"method"' in text
    )
    assert {"vectorized", "2.13.0+cpu", "0123abcd"} <= set(texts)


def test_versions_that_differ_are_all_named() -> None:
    runs = comparison({"fedsim": 0.7}, seeds=(1, 2))
    runs[1]["versions"]["torch"] = "2.12.0"
    assert "torch 2.13.0+cpu / 2.12.0 ·" in html.render(runs)


def test_rendering_changes_no_record() -> None:
    runs = comparison({"fedavg": 0.6, "fedsim": 0.7}, seeds=(1, 2))
    before = copy.deepcopy(runs)
    html.render(runs)
    assert runs == before


def test_a_large_comparison_stays_small() -> None:
    runs = comparison({f"method-{number}": 0.5 for number in range(8)}, clients=300, rounds=100)
    assert len(html.render(runs).encode()) < 6.5e6


def test_records_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(errors.InputError, match="at least one record, got none"):
        html.render([])
    with pytest.raises(errors.InputError, match="must have format 1, got 2"):
        html.render([record() | {"format": 2}])
    with pytest.raises(
        errors.InputError, match="about one metric, got accuracy, mae; make one report for each"
    ):
        html.render([record(), regression(record())])
    other = record()
    other["data"]["name"] = "letters"
    with pytest.raises(errors.InputError, match="about one data, got digits, letters"):
        html.render([record(), other])


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    html.write_report([record()], path)
    first = path.read_text()
    assert first == html.render([record()])

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        html.write_report([record("fedavg")], path)
    assert path.read_text() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        html.write_report([record()], tmp_path / "none" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_numbers_have_separators_and_a_true_minus() -> None:
    assert format_number(-12345.678, 1) == "\N{MINUS SIGN}12,345.7"
