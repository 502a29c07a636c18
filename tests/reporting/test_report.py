"""The report's figures, sentences and safety, without a browser."""

import base64
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
from fedtailor.training.record.schema import Checksums, RunRecord, Status
from report_pages import cells, payload_of
from sample_records import (
    convert_to_regression,
    lose_first_client,
    make_comparison,
    make_record,
    replace_scores,
    truncate,
    update_choices,
    update_config,
    update_data,
)

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


def make_simple_comparison() -> list[RunRecord]:
    """Return two seeds of two methods with scores that can be followed by hand."""
    records = []
    for name, shift in (("fedavg", 0.0), ("fedsim", 0.1)):
        for seed in (1, 2):
            before = [0.5 + shift] * 4
            after = [0.2, 0.6 + shift, 0.8, 0.4 * seed]
            record = replace_scores(make_record(name, seed), "participating", before, after)
            records.append(replace_scores(record, "unseen", [0.25 * seed], [0.5 + shift]))
    return records


def get_accuracy(run: RunRecord, round_idx: int) -> float:
    """Return the mean of unseen clients after personalizing, after a round with an evaluation."""
    scores = run.rounds[round_idx - 1].scores
    assert scores is not None
    accuracy = scores["unseen"]["after"]["accuracy"]
    assert accuracy is not None
    return accuracy


def test_rows_are_means_over_clients_averaged_over_seeds() -> None:
    lines = grouping.group_into_lines(make_simple_comparison())
    averaged, fine_tuned, fedsim = figures.build_rows(lines, grouping.get_metric(lines))
    labels = [row.label for row in (averaged, fine_tuned, fedsim)]
    assert labels == ["fedavg", "fedavg + fine-tuning", "fedsim"]
    scores_by_seed = [[0.2, 0.6, 0.8, 0.4], [0.2, 0.6, 0.8, 0.8]]
    means = [mean(scores) for scores in scores_by_seed]
    estimate = fine_tuned.cells["participating.after"]
    assert estimate.num_missing == 0
    assert estimate.mean == pytest.approx(mean(means))
    assert estimate.client_std == pytest.approx(mean(pstdev(scores) for scores in scores_by_seed))
    assert estimate.seed_std == pytest.approx(stdev(means))
    assert fine_tuned.cells["participating.worst"].mean == pytest.approx(0.2)
    assert averaged.cells["participating.worst"].mean == pytest.approx(0.5)
    assert "participating.after" not in averaged.cells
    assert averaged.cells["unseen.before"][:3] == pytest.approx((0.375, 0.0, stdev([0.25, 0.5])))
    assert fedsim.cells["traffic"].mean == pytest.approx(3.7)
    assert fedsim.cells["flops"].mean == 2e10


def test_the_table_shows_figures_and_a_dash_where_there_is_none() -> None:
    page = html.render(make_simple_comparison())
    table = cells(page)
    assert table["fedavg"][:4] == ["50.0 ± 0.0 seeds ± 0.0", NONE, NONE, "50.0 seeds ± 0.0"]
    assert table["fedavg + fine-tuning"][1] == "55.0 ± 23.4 seeds ± 7.1"
    # Fedsim is better by 2.5 points with either seed: there is no variance to doubt it.
    assert table["fedavg + fine-tuning"][2] == "2.5 to 2.5"
    assert table["fedsim"][2] == "best"
    assert table["fedsim"][0] == "60.0 ± 0.0 seeds ± 0.0"
    assert table["fedsim"][5] == "60.0 ± 0.0 seeds ± 0.0"
    assert table["fedsim"][8:] == ["3.70", "20.0", "8.00", "4.00"]
    assert table["fedsim"][1].startswith("57.5 ± ")
    shown = page[page.index("<main") : page.index("</main")]
    assert "Best for clients like these, as each seed has a split of its own: fedsim." in shown
    assert "Behind the best: fedavg + fine-tuning by 2.5 (2.5 to 2.5)." in shown
    assert 'class="tile"' not in shown
    assert 'class="tile"' in html.render(make_simple_comparison()[2:])


def test_the_caption_tells_whether_seeds_share_one_split_of_the_data() -> None:
    shared = Checksums(config="", data="shared", weights="")
    runs = [record.model_copy(update={"checksums": shared}) for record in make_simple_comparison()]
    assert "and over seeds, on one split of the data" in html.render(runs)
    own_splits = html.render(make_simple_comparison())
    assert "on one split" not in own_splits
    assert "and over seeds, each with a split of its own" in own_splits


def test_the_worst_tenth_is_the_highest_where_lower_is_better() -> None:
    scores_after = {"fedprox": [1.0, 2.0], "fedsim": [1.0, 4.0]}
    runs = [
        replace_scores(convert_to_regression(make_record(name)), "participating", [3.0, 3.0], after)
        for name, after in scores_after.items()
    ]
    lines = grouping.group_into_lines(runs)
    rows = figures.build_rows(lines, grouping.get_metric(lines))
    assert [row.cells["participating.worst"].mean for row in rows] == [2.0, 4.0]
    assert [row.label for row in rows] == ["fedprox", "fedsim"]
    page = html.render(runs)
    assert cells(page)["fedprox"][1].startswith("1.500")
    assert 'data-first="ascending">before' in page
    assert "lower is better" in page


def test_a_curve_is_the_mean_over_seeds_in_a_band_from_lowest_to_highest() -> None:
    runs = make_comparison({"fedsim": 0.7}, seeds=(1, 2, 3))
    runs[2] = truncate(runs[2], 4)
    points = payload_of(html.render(runs))["lines"][0]["curves"]["unseen"]["after"]["accuracy"]
    assert points["round"] == [2, 4, 6, 8, 10]
    assert points["seeds"] == [3, 3, 2, 2, 2]
    assert points["mb"] == pytest.approx([0.74, 1.48, 2.22, 2.96, 3.7])
    assert points["flops"] == pytest.approx([2e9 * round_idx for round_idx in points["round"]])
    assert points["steps"] == pytest.approx([120 * round_idx for round_idx in points["round"]])
    for index, round_idx in enumerate(points["round"]):
        evaluated = runs[: points["seeds"][index]]
        values = [get_accuracy(run, round_idx) for run in evaluated]
        point = [points[key][index] for key in ("low", "mean", "high")]
        assert point == pytest.approx([min(values), mean(values), max(values)], rel=1e-4)


def test_clients_without_test_examples_are_left_out_and_noted() -> None:
    run = replace_scores(make_record(), "participating", [0.5, None, 0.7], [0.6, None, 0.8])
    page = html.render([run])
    assert cells(page)["fedsim"][1] == "70.0 ± 10.0"
    assert "1 participating client without test examples left out of the figures." in page
    clients = payload_of(page)["lines"][0]["clients"]["participating"]
    assert clients["after.accuracy"] == [0.6, None, 0.8]


def test_a_group_without_test_examples_has_no_figures() -> None:
    page = html.render([replace_scores(make_record(), "unseen", [None], [None])])
    assert cells(page)["fedsim"][4:8] == [NONE] * 4
    assert "unseen clients, after personalizing" not in page


def test_a_diverged_model_is_noted_and_has_no_tiles() -> None:
    page = html.render([lose_first_client(make_record())])
    assert "The loss of 1 participating client is not finite: training has diverged." in page
    assert 'class="tile"' not in page
    assert 'class="tile"' in html.render([make_record()])


def test_rounds_without_a_score_are_left_out_of_curves() -> None:
    run = make_record()
    scores = run.rounds[3].scores
    assert scores is not None
    scores["participating"]["after"]["loss"] = None
    curves = payload_of(html.render([run]))["lines"][0]["curves"]
    assert curves["participating"]["after"]["loss"]["round"] == [2, 6, 8, 10]


def test_numbers_that_are_not_finite_become_null() -> None:
    assert frame.dump_json([math.inf, 1.23456789]) == "[null,1.2346]"


@pytest.mark.parametrize(
    ("status", "words"),
    [("running", "In progress"), ("interrupted", "Interrupted"), ("diverged", "Diverged")],
)
def test_an_unfinished_run_has_its_status_and_no_final_scores(status: Status, words: str) -> None:
    page = html.render([truncate(make_record(), 4, status)])
    sentence = f"{words}: 4 of 10 rounds so far, no final scores yet"
    assert f'<p class="status {status}">{sentence}</p>' in page
    assert cells(page)["fedsim"][:6] == [NONE] * 6
    assert "Final scores appear here when a run has finished." in page
    curves = payload_of(page)["lines"][0]["curves"]
    assert curves["participating"]["after"]["accuracy"]["round"] == [2, 4]


def test_costs_so_far_are_those_of_the_rounds() -> None:
    page = html.render([truncate(make_record(), 4)])
    assert cells(page)["fedsim"][8:] == ["1.48", "8.00", NONE, "0.800"]
    assert "running, 4 of 10 rounds, 0.8 s" in page


def test_a_run_before_its_first_round_has_a_page() -> None:
    page = html.render([truncate(make_record(), 0)])
    assert "0 of 10 rounds so far" in page
    assert "No round has been evaluated yet." in page


def test_the_status_of_a_comparison_names_the_running_run() -> None:
    runs = make_comparison({"fedavg": 0.6, "fedsim": 0.7}, seeds=(1, 2))
    runs[3] = truncate(runs[3], 6)
    kind, sentence = wording.describe_status(grouping.group_into_lines(runs))
    assert kind == "running"
    assert sentence == (
        "3 of 4 runs finished; fedsim, seed 2, running, 6 of 10 rounds; "
        "final scores are of finished runs"
    )


def test_title_and_summary_describe_the_comparison() -> None:
    runs = make_comparison({"local": 0.5, "fedavg": 0.6, "fedsim": 0.7})
    lines = grouping.group_into_lines(runs)
    assert wording.make_title(lines) == "local, fedavg and fedsim on digits"
    assert wording.make_summary(lines) == (
        "15 participating clients and 3 unseen clients; 90 examples held by the server; "
        "10 rounds; 10 clients per round; seeds 1, 2 and 3."
    )


def test_the_page_tells_if_only_a_part_of_the_clients_is_evaluated() -> None:
    run = make_record(num_clients=20)
    assert "clients of a larger group" not in html.render([run])
    assert "clients of a larger group" not in html.render([update_config(run, eval_clients=15)])
    run = update_config(run, eval_clients=14)
    start = "After rounds, 14 clients of a larger group are evaluated; at the end, "
    assert f"{start}all of them." in html.render([run])
    assert f"{start}13." in html.render([update_config(run, final_eval_clients=13)])


def test_notes_name_the_methods_that_they_are_about() -> None:
    runs = make_comparison({"fedavg": 0.6, "fedsim": 0.7}, seeds=(1, 2))
    runs = [update_data(run, overlap=True) for run in runs]
    runs[2:] = [update_choices(run, notes=("runs one by one",)) for run in runs[2:]]
    assert wording.collect_notes(grouping.group_into_lines(runs)) == [
        "The server may have examples that clients have, too, as declared by overlap=true.",
        "fedsim: runs one by one",
    ]


def test_options_that_differ_make_lines_of_their_own() -> None:
    runs = [make_record(seed=seed) for seed in (1, 2, 1)]
    runs[2] = update_config(runs[2], hparams=runs[2].config.hparams | {"lam": 0.9})
    lines = grouping.group_into_lines(runs)
    assert [(line.label, len(line.runs)) for line in lines] == [
        ("fedsim (lam=0.1)", 2),
        ("fedsim (lam=0.9)", 1),
    ]


def test_a_repeated_seed_is_noted() -> None:
    page = html.render([make_record(), make_record()])
    assert "fedsim: seed 1 was given 2 times." in page


HOSTILE = (
    "</script x><!-- <script </script><script>alert(1)</script><img src=x onerror=alert(1)>"
    "\"'&amp;{%"
)


def make_hostile_record() -> RunRecord:
    """Return a record in which everything that can be a text is an attack."""
    run = make_record(HOSTILE)
    assert run.scores is not None
    scores = run.scores["participating"]
    hostile_scores = scores.model_copy(update={"ids": [HOSTILE] * len(scores.ids)})
    all_scores = {**run.scores, "participating": hostile_scores}
    run = update_config(run, data_options={HOSTILE: {HOSTILE: HOSTILE}}, label=HOSTILE)
    run = update_choices(run, engine=HOSTILE, notes=(HOSTILE,))
    run = update_data(run, name=HOSTILE, clients=[HOSTILE] * len(run.data.clients))
    return run.model_copy(
        update={
            "command": HOSTILE,
            "commit": HOSTILE,
            "machine": HOSTILE,
            "versions": {HOSTILE: HOSTILE},
            "scores": all_scores,
        }
    )


def test_what_comes_from_records_is_escaped_everywhere() -> None:
    plain = Reader(html.render([make_record()]))
    attacked = Reader(html.render([make_hostile_record()]))
    plain_tags = [tag for tag, _ in plain.elements]
    attacked_tags = [tag for tag, _ in attacked.elements]
    assert set(attacked_tags) <= {*plain_tags, "ul", "li"}
    assert attacked_tags.count("script") == plain_tags.count("script")
    for _, attributes in attacked.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert ("code", HOSTILE) in attacked.texts
    labels = [attributes.get("aria-label") for _, attributes in attacked.elements]
    assert f"Copy the command: {HOSTILE}" in labels


def test_json_inside_a_script_element_cannot_end_it() -> None:
    text = frame.dump_json({HOSTILE: [HOSTILE]})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {HOSTILE: [HOSTILE]}


def test_hostile_texts_reach_the_charts_unchanged() -> None:
    payload = payload_of(html.render([make_hostile_record()]))
    assert payload["lines"][0]["label"] == HOSTILE
    assert set(payload["lines"][0]["clients"]["participating"]["ids"]) == {HOSTILE}


def test_the_page_fetches_nothing() -> None:
    reader = Reader(html.render([make_record()]))
    sources = [
        value
        for _, attributes in reader.elements
        for name, value in attributes.items()
        if name in ("src", "href")
    ]
    assert sources == ["data:,", "#results"]
    policy = get_policy(reader)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "http" not in policy
    assert "connect-src" not in policy


def get_policy(reader: Reader) -> str:
    """Return the page's content security policy."""
    policies = [
        attributes["content"]
        for tag, attributes in reader.elements
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert len(policies) == 1
    assert policies[0] is not None
    return policies[0]


def test_the_policy_allows_the_scripts_of_the_page_and_no_others() -> None:
    page = html.render([make_record()])
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    assert get_policy(Reader(page)) == (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def test_only_styles_scripts_and_json_are_not_escaped() -> None:
    room = Path(html.__file__).parent.parent
    folders = [room / "html", room / "dataset_page"]
    templates = "".join(
        path.read_text() for folder in folders for path in folder.glob("templates/*")
    )
    unescaped = re.findall(r"(\w+)\s*\|\s*safe", templates)
    assert sorted(unescaped) == ["json", "script", "style", "theme"]
    modules = "".join(path.read_text() for folder in folders for path in folder.glob("*.py"))
    assert "Markup" not in templates + modules
    assert "autoescape false" not in templates + modules
    assert frame.PAGES.autoescape is True


def test_labels_are_sorted_by_group_and_main_label() -> None:
    labels = [[1, 5], [9, 0], [2, 7], [3, 1], [0, 4], [4, 0], [1, 6], [6, 1]]
    run = update_data(make_record(num_clients=8), labels=labels, server_labels=[5, 5])
    payload = data_overview.build_data_payload(run)
    order = (1, 5, 3, 2, 0, 4, 7, 6)
    assert payload["group"] == ["participating"] * 6 + ["validation"] * 2
    assert payload["labels"] == [labels[client] for client in order]
    assert payload["ids"] == [f"client-{client}" for client in order]
    assert payload["train"] == [run.data.train_sizes[client] for client in order]


def test_without_labels_sizes_are_drawn() -> None:
    page = html.render([convert_to_regression(make_record())])
    assert "Train examples of each client" in page
    assert payload_of(page)["data"]["labels"] is None
    assert "share of each label" in html.render([make_record()])


def test_of_very_many_clients_some_are_drawn_but_all_are_counted() -> None:
    num_clients = thinning.MAX_CLIENTS + 500
    scores = [float(client % 2) for client in range(num_clients)]
    record = make_record(num_clients=num_clients, num_rounds=2)
    page = html.render([replace_scores(record, "participating", scores, scores)])
    payload = payload_of(page)
    drawn = payload["lines"][0]["clients"]["participating"]
    assert len(drawn["ids"]) == thinning.MAX_CLIENTS
    assert len(payload["data"]["ids"]) == thinning.MAX_CLIENTS
    assert cells(page)["fedsim"][1] == "50.0 ± 50.0"
    assert "2,000 of 2,500 clients are drawn" in page


def test_the_page_has_command_configuration_choices_and_versions() -> None:
    run = make_record()
    texts = [text for _, text in Reader(html.render([run])).texts]
    assert run.command in texts
    configs = [json.loads(text) for text in texts if text.startswith("{") and '"method"' in text]
    assert run.config.model_dump(mode="json") in configs
    assert {"vectorized", "2.13.0+cpu", "0123abcd"} <= set(texts)


def test_versions_that_differ_are_all_named() -> None:
    runs = make_comparison({"fedsim": 0.7}, seeds=(1, 2))
    runs[1].versions["torch"] = "2.12.0"
    assert "torch 2.13.0+cpu / 2.12.0 ·" in html.render(runs)


def test_rendering_changes_no_record() -> None:
    runs = make_comparison({"fedavg": 0.6, "fedsim": 0.7}, seeds=(1, 2))
    before = [run.model_copy(deep=True) for run in runs]
    html.render(runs)
    assert runs == before


def test_a_large_comparison_has_a_small_page() -> None:
    skills = {f"method-{index}": 0.5 for index in range(8)}
    runs = make_comparison(skills, num_clients=300, num_rounds=100)
    assert len(html.render(runs).encode()) < 6.5e6


def test_records_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(errors.InputError, match="at least one record, got none"):
        html.render([])
    message = "the same metric, got accuracy, mae; make one report for each"
    with pytest.raises(errors.InputError, match=message):
        html.render([make_record(), convert_to_regression(make_record())])
    other = update_data(make_record(), name="letters")
    with pytest.raises(errors.InputError, match="the same data set, got digits, letters"):
        html.render([make_record(), other])


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    html.write_report([make_record()], path)
    first = path.read_text()
    assert first == html.render([make_record()])

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        html.write_report([make_record("fedavg")], path)
    assert path.read_text() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        html.write_report([make_record()], tmp_path / "none" / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_numbers_have_separators_and_a_true_minus() -> None:
    assert format_number(-12345.678, 1) == "\N{MINUS SIGN}12,345.7"
