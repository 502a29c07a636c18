"""Tables and figures of records of parts that never ran."""

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.errors import InputError
from fedtailor.reporting.svg import LINE_HEIGHT, compute_ticks, separate_labels
from fedtailor.studies.client_scores import (
    ClientScores,
    RunScores,
    read_client_scores,
    write_client_scores,
)
from fedtailor.studies.config import Part, Vary, read_study
from fedtailor.studies.figures import build_curve_chart, build_sweep_chart, render_figures
from fedtailor.studies.publish import (
    list_documents,
    render_document,
    render_linked_figures,
    replace_tables,
    update_document,
)
from fedtailor.studies.record import (
    About,
    ColumnFigures,
    Curve,
    PartCost,
    PartRecord,
    RunSummary,
    Speed,
    read_record,
    write_record,
)
from fedtailor.studies.tables import (
    ONE_SPLIT_NOTE,
    OWN_SPLITS_NOTE,
    build_tables,
    describe_equal_parts,
    render_markdown,
)
from fedtailor.training.config import ComparisonConfig
from fedtailor.training.record.schema import MetricInfo
from small_study import COMPARISON, HEAD, PART, small, written

AFTER = "participating after"


def figures(
    micro: float | None = None, macro: float | None = None, worst_tenth: float | None = None
) -> ColumnFigures:
    return ColumnFigures(micro=micro, macro=macro, std=None, worst_tenth=worst_tenth)


def run(name: str, seed: int, micro: float | None, **changes: Any) -> RunSummary:
    """Return a run with this accuracy after personalizing; None for one that diverged."""
    fields: dict[str, Any] = {"rounds": 10, "cost": PartCost(gradients=500.0, seconds=2.0)}
    if micro is None:
        fields["status"] = "diverged"
        fields["curve"] = Curve(rounds=[1], figures={AFTER: [0.1]})
    else:
        fields["status"] = "finished"
        fields["figures"] = {AFTER: figures(micro=micro)}
        fields["curve"] = Curve(rounds=[1, 10], figures={AFTER: [micro / 2, micro]})
    return RunSummary(name=name, seed=seed, **(fields | changes))


def record(
    *runs: RunSummary,
    vary: Vary | None = None,
    metric: str = "accuracy",
    higher_is_better: bool = True,
    stands_in: str | None = None,
) -> PartRecord:
    """Return the record of a part with these runs, evaluated every ten rounds."""
    about = About(
        versions={},
        commit=None,
        machine=None,
        scale="paper",
        stands_in=stands_in,
        minutes=None,
        figures="x",
    )
    return PartRecord(
        about=about,
        part="one",
        metric=MetricInfo(name=metric, higher_is_better=higher_is_better),
        vary=vary,
        comparison=ComparisonConfig(methods=("fedavg",), evaluate_every=10),
        trials=None,
        runs=list(runs),
    )


def part(**more: Any) -> Part:
    return Part(name="one", title="One <part>", **more)


def lines(part_record: PartRecord, of: Part, name: str) -> list[str]:
    return render_markdown(build_tables(part_record, of)[name]).splitlines()


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    speed = Speed(rise_time=4, rounds_to_target=None)
    runs = [
        run("fedavg", 0, 0.5, value=0.1, tuned={"lr": 0.5, "finetune_steps": None}, speed=speed),
        run("fedavg", 1, None, value=1, problem="fedavg: no longer finite"),
    ]
    written_record = record(*runs, vary=SWEPT)
    write_record(tmp_path / "one.json", written_record)
    assert read_record(tmp_path / "one.json") == written_record
    text = (tmp_path / "one.json").read_text()
    assert len(text.splitlines()) == len(PartRecord.model_fields) + len(runs) + 3
    (tmp_path / "one.json").write_text(text.replace('"micro"', '"mikro"'))
    with pytest.raises(InputError) as caught:
        read_record(tmp_path / "one.json")
    location = "runs.0.figures.participating after.micro"
    assert str(caught.value) == (
        f"'{tmp_path / 'one.json'}' is damaged: {location} is not what was written."
    )


def test_accuracy_is_in_percent_with_the_spread_over_seeds_and_published_figures_beside_it() -> (
    None
):
    made = record(run("fedavg", 0, 0.5), run("fedavg", 1, 0.6), run("fedsim", 0, 0.7))
    assert lines(made, part(published={"fedavg": 52.5}), "accuracy") == [
        "| method | seeds | participating after | published |",
        "|---|---:|---:|---:|",
        "| `fedavg` | 2 | 55.00 ± 7.07 | 52.50 |",
        "| `fedsim` | 1 | 70.00 | - |",
        "",
        ONE_SPLIT_NOTE,
    ]
    assert (
        lines(record(run("fedsim", 0, 0.7)), part(), "accuracy")[-1] == "| `fedsim` | 1 | 70.00 |"
    )
    by_column = part(published={"fedavg": {"participating after": 1.0, "unseen after": 2.0}})
    assert lines(made, by_column, "accuracy")[2] == "| `fedavg` | 2 | 55.00 ± 7.07 | 1.00 |"
    standing_in = record(*made.runs, stands_in="digits")
    assert (
        lines(standing_in, part(published={"fedavg": 52.5}), "accuracy")[2]
        == "| `fedavg` | 2 | 55.00 ± 7.07 |"
    )
    assert (
        lines(record(run("fedavg", 0, 0.5), metric="mae"), part(), "accuracy")[2]
        == "| `fedavg` | 1 | 0.5000 |"
    )


def test_runs_that_diverged_are_counted_and_not_hidden() -> None:
    made = record(run("fedavg", 0, 0.5), run("fedavg", 1, None), run("fedsim", 0, None))
    assert lines(made, part(), "accuracy")[2:] == [
        "| `fedavg` | 2 (1 diverged) | 50.00 |",
        "| `fedsim` | 1 | diverged |",
    ]
    names = [line.name for line in build_curve_chart(made, part(), None).lines]
    assert names == ["fedavg (1 of 2 diverged)", "fedsim (diverged)"]


SWEPT = Vary(key="lr", values=(0.1, 1))


def test_a_sweep_has_a_column_for_each_value() -> None:
    runs = [
        run("fedavg", seed, micro, value=value)
        for seed, value, micro in ((0, 0.1, 0.5), (1, 0.1, None), (0, 1, 0.8))
    ]
    made = record(*runs, vary=SWEPT)
    of = part(vary=SWEPT, tables=["sweep", "accuracy"], published={"fedavg": [40, 60]})
    assert lines(made, of, "sweep") == [
        "| participating after micro, lr = | 0.1 | 1 |",
        "|---|---:|---:|",
        "| `fedavg` | 50.00 (1 diverged) | 80.00 |",
        "| `fedavg`, published | 40.00 | 60.00 |",
    ]
    assert lines(made, of, "accuracy")[2] == "| `fedavg` | 0.1 | 2 (1 diverged) | 50.00 | 40.00 |"
    (line,) = build_sweep_chart(made, of).lines
    assert [(point.x, point.mean) for point in line.points] == [(0, 50), (1, 80)]


def test_speed_says_how_many_rounds_it_took_and_what_a_round_cost() -> None:
    made = record(
        run("fedavg", 0, 0.5, speed=Speed(rise_time=4, rounds_to_target=6)),
        run("fedavg", 1, 0.5, speed=Speed(rise_time=6, rounds_to_target=None)),
        run("fedsim", 0, 0.5, speed=Speed(rise_time=9, rounds_to_target=None)),
        run("local", 0, None),
    )
    assert lines(made, part(tables=["speed"], target=0.5), "speed") == [
        "| method | seeds | rounds to 50.00 | rise time, of evaluations 10 rounds apart "
        "| client gradients a round | s a round |",
        "|---|---:|---:|---:|---:|---:|",
        "| `fedavg` | 2 | 6 (1 of 2 never) | 5 ± 1 | 50 | 0.200 |",
        "| `fedsim` | 1 | not reached | 9 | 50 | 0.200 |",
        "| `local` | 1 | diverged | diverged | 50 | 0.200 |",
        "",
        ONE_SPLIT_NOTE,
    ]


def test_an_overview_has_the_worst_tenth_and_what_was_sent_and_the_best_method_first() -> None:
    def made(
        name: str, seed: int, macro: float | None, sent: int = 1_000_000, value: int | None = None
    ) -> RunSummary:
        cost = PartCost(bytes_down=sent, bytes_up=2 * sent)
        own_figures = {}
        if macro is not None:
            own_figures[AFTER] = figures(macro=macro, worst_tenth=macro - 0.2)
        return run(name, seed, macro, figures=own_figures, cost=cost, value=value)

    runs = [
        made("fedavg", 0, 0.5),
        made("fedavg", 1, 0.7),
        made("apfl", 0, None),
        made("fsl", 0, 0.8, 2_000_000),
        made("fsl", 1, None, 9_000_000_000),
        run("ds", 0, 0.1, figures={AFTER: figures(macro=0.1)}),
    ]
    of = part(tables=["overview"], headline="participating after macro")
    assert lines(record(*runs), of, "overview") == [
        "| method | seeds | participating after | participating after, worst tenth | MB sent |",
        "|---|---:|---:|---:|---:|",
        "| `fsl` | 2 (1 diverged) | 80.00 | 60.00 | 6 |",
        "| `fedavg` | 2 | 60.00 ± 14.14 | 40.00 ± 14.14 | 3 |",
        "| `ds` | 1 | 10.00 | - | - |",
        "| `apfl` | 1 | diverged | diverged | - |",
        "",
        ONE_SPLIT_NOTE,
    ]
    errors = [made("fedavg", 0, 0.5), made("fsl", 0, 0.8), made("apfl", 0, None)]
    lower = record(*errors, metric="mae", higher_is_better=False)
    assert [row[0] for row in build_tables(lower, of)["overview"].rows] == ["fedavg", "fsl", "apfl"]
    swept = record(made("fedavg", 0, 0.5, value=1), made("fedavg", 0, 0.6, value=2), vary=SWEPT)
    assert [row[:3] for row in build_tables(swept, of)["overview"].rows] == [
        ("fedavg", "2", "1"),
        ("fedavg", "1", "1"),
    ]


def test_a_part_on_other_data_is_headed_by_what_was_used() -> None:
    made = record(run("fedavg", 0, 0.5))
    standing_in = record(run("fedavg", 0, 0.5), stands_in="digits")
    assert render_document(made, part()).startswith(f"# {part().title}\n")
    assert render_document(standing_in, part()).startswith(
        f"# digits in place of: {part().title}\n"
    )
    titles = [
        each.title
        for each in (
            build_curve_chart(standing_in, part(), None),
            build_curve_chart(made, part(), None),
        )
    ]
    assert titles == [f"digits in place of: {part().title}", part().title]


def test_a_band_goes_from_the_lowest_seed_to_the_highest() -> None:
    (line,) = build_curve_chart(
        record(run("fedavg", 0, 0.5), run("fedavg", 1, 0.7)), part(), None
    ).lines
    assert [tuple(point) for point in line.points] == [
        pytest.approx((1, 30, 25, 35)),
        pytest.approx((10, 60, 50, 70)),
    ]


def test_a_figure_is_xml_with_every_name_once_and_no_two_on_top_of_each_other() -> None:
    names = [f"method@{number}" for number in range(30)]
    (drawing,) = render_figures(record(*(run(name, 0, 0.9) for name in names)), part()).values()
    texts = [
        (text.text, float(text.get("y", "")))
        for text in ET.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")
    ]
    places = sorted(y for text, y in texts if text in names)
    assert len(places) == len(names)
    assert min(high - low for low, high in itertools.pairwise(places)) >= LINE_HEIGHT - 0.11
    assert "One <part>" in [text for text, _ in texts]
    height = float(ET.fromstring(drawing).get("height", ""))
    assert 0 < places[0] < places[-1] < height


@given(st.lists(st.floats(0, 300), min_size=1, max_size=15))
def test_names_are_apart_in_their_order_and_where_they_belong_if_there_is_room(
    wanted: list[float],
) -> None:
    placed = separate_labels(wanted, 17, 0, 300)
    together = sorted(zip(wanted, placed, strict=True))
    assert all(
        one[1] <= other[1] for one, other in itertools.pairwise(together) if one[0] < other[0]
    )
    ordered = sorted(placed)
    assert all(high - low >= 17 - 1e-9 for low, high in itertools.pairwise(ordered))
    assert ordered[-1] <= 300
    assert ordered[0] >= -1e-9
    gaps = sorted(wanted)
    if all(high - low >= 17 for low, high in itertools.pairwise(gaps)):
        assert placed == wanted


def test_ticks_are_round_numbers_inside() -> None:
    assert compute_ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert compute_ticks(0.031, 0.062) == [0.035, 0.04, 0.045, 0.05, 0.055, 0.06]


def test_a_table_says_whether_seeds_share_a_split() -> None:
    shared = record(run("fedavg", 0, 0.5, data_seed=3), run("fedavg", 1, 0.6, data_seed=3))
    own = record(run("fedavg", 0, 0.5, data_seed=0), run("fedavg", 1, 0.6, data_seed=1))
    assert lines(shared, part(), "accuracy")[-1] == ONE_SPLIT_NOTE
    assert lines(own, part(), "accuracy")[-1] == OWN_SPLITS_NOTE


def test_choices_of_older_records_were_made_on_the_data_of_seed_0(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_record(path, record(run("fedavg", 0, 0.5)))
    content = json.loads(path.read_text())
    for tuned in ({"fedavg": {"lr": 0.3}}, {"fedavg": {"0": {"lr": 0.3}}}):
        content["comparison"]["tuned"] = tuned
        path.write_text(json.dumps(content))
        assert read_record(path).comparison.tuned == {"fedavg": {"0": {"lr": 0.3}}}


def test_marked_tables_are_made_anew_and_nothing_else_is_touched(tmp_path: Path) -> None:
    study = small(tmp_path)
    text = "before\n<!-- one.accuracy -->\nold\n<!-- end -->\nafter\n"
    assert replace_tables(study, text) == text  # there is no record yet
    write_record(study.get_record_path(study.parts[0]), record(run("fedavg", 0, 0.5)))
    table = "| method | seeds | participating after |\n|---|---:|---:|\n| `fedavg` | 1 | 50.00 |"
    expected = f"before\n<!-- one.accuracy -->\n\n{table}\n\n<!-- end -->\nafter\n"
    assert replace_tables(study, text) == expected
    assert replace_tables(study, expected) == expected
    with pytest.raises(InputError, match=r"<!-- one\.accuracy --> has no <!-- end -->\.$"):
        replace_tables(study, "<!-- one.accuracy -->\n")
    with pytest.raises(InputError, match="one shows no table 'sweep'; "):
        replace_tables(study, text.replace("accuracy", "sweep"))
    with pytest.raises(InputError, match="there is no part 'on'; did you mean one"):
        replace_tables(study, text.replace("one.", "on."))


def test_documents_that_a_study_names_show_its_tables_too(tmp_path: Path) -> None:
    named = 'documents = ["docs/page.md"]\n'
    study = read_study(written(tmp_path / "studies" / "small", HEAD + named + PART, one=COMPARISON))
    write_record(study.get_record_path(study.parts[0]), record(run("fedavg", 0, 0.5)))
    (tmp_path / "pyproject.toml").touch()  # a checkout
    page = tmp_path / "docs" / "page.md"
    with pytest.raises(InputError) as caught:
        update_document(study)
    assert str(caught.value) == f"study small: there is no document '{page}'."
    page.parent.mkdir()
    page.write_text("<!-- one.accuracy -->\nold\n<!-- end -->\n")
    assert list_documents(study) == [page]
    update_document(study)
    assert "| `fedavg` | 1 | 50.00 |" in page.read_text()
    own = study.folder / "README.md"
    own.write_text("nothing\n")
    assert list_documents(study) == [own, page]
    for wrong, said in (
        ("<!-- one.speed -->\n", "<!-- one.speed --> has no"),
        ("<!-- one.speed -->\n<!-- end -->", "one"),
    ):
        page.write_text(wrong)
        with pytest.raises(InputError) as caught:
            update_document(study)
        assert str(caught.value).startswith(f"'{page}': {said}")


def test_figures_that_a_document_shows_are_drawn_from_records(tmp_path: Path) -> None:
    study = small(tmp_path)
    rising = run("fedavg", 0, 0.5, curve=Curve(rounds=[5, 10], figures={AFTER: [0.25, 0.5]}))
    write_record(study.get_record_path(study.parts[0]), record(rising))
    text = "![Rounds](figures/one-curves.svg)\n"
    (study.folder / "README.md").write_text(text)
    (tmp_path / "pyproject.toml").touch()  # a checkout
    update_document(study)
    assert (study.folder / "README.md").read_text() == text
    assert {
        path.name: path.read_text() for path in (study.folder / "figures").iterdir()
    } == render_linked_figures(study, text)
    assert render_linked_figures(study, text)["one-curves.svg"].startswith("<svg ")
    with pytest.raises(
        InputError,
        match=r"no record makes the figure 'one-curve\.svg'; did you mean one-curves\.svg",
    ):
        render_linked_figures(study, text.replace("curves", "curve"))


def make_scores(**means: list[float]) -> ClientScores:
    """Scores of four unseen clients around the mean of each seed, all on one split."""
    offsets = (-0.3, -0.1, 0.1, 0.3)
    runs = []
    for place, (name, by_seed) in enumerate(means.items()):
        for seed, mean in enumerate(by_seed):
            # Each method is good at other clients.
            turned = [offsets[(index + place) % 4] for index in range(4)]
            scores = RunScores(
                name=name,
                seed=seed,
                data="one split",
                ids={"unseen": ["a", "b", "c", "d"]},
                columns={"unseen after": [mean + offset for offset in turned]},
            )
            runs.append(scores)
    return ClientScores(runs=runs)


def test_tables_say_which_methods_are_best_only_with_the_scores_of_clients(tmp_path: Path) -> None:
    means = {"fedavg": [0.5, 0.51, 0.52], "fedsim": [0.7, 0.71, 0.72]}
    runs = [
        run(name, seed, value)
        for name, values in means.items()
        for seed, value in enumerate(values)
    ]
    made = record(*runs)
    shown = lines(made, part(), "accuracy")
    assert "behind the best" not in shown[0]
    table = build_tables(made, part(), make_scores(**means))["accuracy"]
    assert table.header[-1] == "participating after, behind the best"
    assert [row[-1] for row in table.rows] == ["20.00 to 20.00", "best"]
    assert table.notes == (
        "Best for these clients on this split, not for others: fedsim. "
        "Behind the best: fedavg by 20.00 (20.00 to 20.00).",
    )
    assert render_markdown(table).endswith(table.notes[0])


def test_clients_that_differ_keep_a_table_of_unseen_clients_from_a_verdict() -> None:
    means = {"fedavg": [0.5, 0.51, 0.52], "fedsim": [0.6, 0.61, 0.62]}
    runs = []
    for name, values in means.items():
        for seed, value in enumerate(values):
            figures = ColumnFigures(micro=value, macro=value, std=None, worst_tenth=None)
            changes = {"figures": {"unseen after": figures}}
            runs.append(run(name, seed, value).model_copy(update=changes))
    made = record(*runs)
    of_unseen = part(headline="unseen after macro")
    table = build_tables(made, of_unseen, make_scores(**means))["accuracy"]
    assert [row[-1].endswith("?") for row in table.rows] == [True, True]
    assert "More clients would tell" in table.notes[0]


def test_scores_of_clients_are_read_back_and_damage_is_noticed(tmp_path: Path) -> None:
    scores = make_scores(fedavg=[0.5, 0.6])
    named = write_client_scores(tmp_path / "one.scores.json.gz", scores.runs)
    assert named.num_bytes == (tmp_path / "one.scores.json.gz").stat().st_size
    assert read_client_scores(tmp_path, named) == scores
    assert write_client_scores(tmp_path / "two.scores.json.gz", scores.runs).sha256 == named.sha256
    content = bytearray((tmp_path / named.name).read_bytes())
    content[-1] ^= 1
    (tmp_path / named.name).write_bytes(bytes(content))
    with pytest.raises(InputError, match="is not what its record names"):
        read_client_scores(tmp_path, named)
    assert read_client_scores(tmp_path, None) is None


def test_parts_with_the_same_runs_on_data_that_stand_in_are_named() -> None:
    one = record(run("fedavg", 0, 0.5), stands_in="digits")
    same = one.model_copy(update={"part": "two"})
    rounds = one.comparison.model_copy(update={"rounds": 7})
    other = one.model_copy(update={"part": "three", "comparison": rounds})
    assert describe_equal_parts([one, other, same]) == [
        "one and two are the same runs here, as the same data stand in for theirs."
    ]
    own_data = record(run("fedavg", 0, 0.5))
    assert describe_equal_parts([own_data, own_data]) == []
