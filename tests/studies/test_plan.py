"""What lies over what, and what is done where a data set is missing."""

from pathlib import Path

import pytest

from fedtailor.errors import InputError
from fedtailor.studies.plan import (
    StudyRequest,
    make_scenarios,
    make_tuning_comparison,
    plan_study,
    read_part_comparison,
)
from small_study import COMPARISON, small

MNIST = COMPARISON.replace('"digits"', '"mnist"').replace(
    "clients = 12", 'partition = "two-labels"\nclients = 40'
)


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "store"))


def test_words_lie_over_each_other_in_their_order(tmp_path: Path) -> None:
    more = """target = 0.5
vary = { key = "lr", values = [0.1, 0.2] }
quick = { rounds = 5, cohort = 3, lr = 0.7 }
tune = { rounds = 60, trials = 2, hidden = [4] }
"""
    study = small(tmp_path, more)
    (part,) = study.parts
    paper, quick = StudyRequest(study, "paper"), StudyRequest(study, "quick", ("cohort=2",))
    assert read_part_comparison(paper, part).rounds == 6
    assert read_part_comparison(paper, part).seeds == (0, 1)
    assert read_part_comparison(paper, part).target == 0.5
    assert (
        read_part_comparison(quick, part).rounds,
        read_part_comparison(quick, part).cohort,
        read_part_comparison(quick, part).seeds,
    ) == (5, 2, (0,))
    ((planned,), left_out) = plan_study(quick)
    assert left_out == []
    tuned = make_tuning_comparison(quick, planned)
    assert tuned is not None
    assert (tuned.rounds, tuned.trials, tuned.hidden, tuned.cohort) == (5, 2, (4,), 2)
    made = make_scenarios(quick, planned, tmp_path / "out")
    assert [each.comparison.hparams["lr"] for each in made] == [0.1, 0.2]
    assert [each.path for each in made] == [
        tmp_path / "out" / "one" / value for value in ("0.1", "0.2")
    ]


def test_what_was_chosen_lies_over_the_comparison_but_not_over_what_varies(tmp_path: Path) -> None:
    study = small(tmp_path, 'vary = { key = "fedprox.lam", values = [0.5] }\n')
    asked = StudyRequest(study, "paper")
    ((planned,), _) = plan_study(asked)
    found = {
        "fedavg": {0: {"lr": 0.3}, 1: {"lr": 0.4}},
        "fedprox": {seed: {"lr": 0.2, "lam": 9.0} for seed in (0, 1)},
    }
    (scenario,) = make_scenarios(asked, planned, tmp_path, found)
    by_name = {
        spec.method: spec for spec in scenario.comparison.make_run_configs() if spec.seed == 0
    }
    assert (by_name["fedavg"].hparams["lr"], by_name["fedavg"].tuned) == (0.3, ("lr",))
    assert (by_name["fedprox"].hparams["lr"], by_name["fedprox"].hparams["lam"]) == (0.2, 0.5)
    assert by_name["fedprox"].tuned == ("lr",)
    rates = [
        spec.hparams["lr"]
        for spec in scenario.comparison.make_run_configs()
        if spec.method == "fedavg"
    ]
    assert rates == [0.3, 0.4]  # what each seed's own validation clients have chosen


def test_embedded_data_keep_the_seed_that_a_study_has_fixed(tmp_path: Path) -> None:
    more = 'embedded = { data = "digits", "data.clients" = 9 }\n'
    asked = StudyRequest(
        small(tmp_path, more, MNIST.replace("clients = 40", "clients = 40\nseed = 5")), "quick"
    )
    made = read_part_comparison(asked, asked.study.parts[0], is_embedded=True)
    assert made.data_options == {"seed": 5, "clients": 9}


def test_embedded_data_stand_in_where_a_set_is_missing_and_bring_their_own_options(
    tmp_path: Path,
) -> None:
    more = 'quick = { rounds = 3, "data.used" = 0.5 }\n'
    more += 'embedded = { data = "digits", "data.clients" = 9 }\n'
    asked = StudyRequest(small(tmp_path, more, MNIST), "quick")
    ((planned,), left_out) = plan_study(asked)
    assert (planned.is_embedded, left_out) == (True, [])
    assert (
        planned.note
        == "one: data set 'mnist' is not in the store (`fedtailor data add mnist`); using digits "
        "instead."
    )
    (scenario,) = make_scenarios(asked, planned, tmp_path)
    assert (scenario.comparison.data, scenario.comparison.data_options) == (
        "digits",
        {"clients": 9},
    )
    assert scenario.comparison.rounds == 3


def test_a_part_without_data_is_left_out_of_quick_and_refused_at_paper_scale(
    tmp_path: Path,
) -> None:
    study = small(tmp_path, "", MNIST)
    add = "data set 'mnist' is not in the store; add it with `fedtailor data add mnist`."
    assert plan_study(StudyRequest(study, "quick")) == ([], [f"one: skipped because {add}"])
    with pytest.raises(InputError) as caught:
        plan_study(StudyRequest(study, "paper"))
    assert str(caught.value) == f"one: {add}"


def test_a_smaller_scale_may_vary_less_and_other_data_something_else(tmp_path: Path) -> None:
    more = """vary = { key = "data.used", values = [0.1, 0.2, 0.3] }
quick = { vary = { values = [0.1, 0.3] } }
embedded = { data = "digits", vary = { key = "data.labels", values = [1, 2, 4] } }
"""
    asked = StudyRequest(small(tmp_path, more, MNIST), "quick")
    ((planned,), _) = plan_study(asked)
    assert planned.vary is not None
    assert (planned.vary.key, planned.vary.values) == ("data.labels", (1, 2, 4))
    labels = [
        each.comparison.data_options["labels"] for each in make_scenarios(asked, planned, tmp_path)
    ]
    assert labels == [1, 2, 4]


def test_a_study_may_speak_of_methods_that_nobody_asks_for(tmp_path: Path) -> None:
    study = small(tmp_path, "quick = { fedprox.lam = 0.5 }\n")
    made = read_part_comparison(StudyRequest(study, "quick", ("methods=fedavg",)), study.parts[0])
    assert made.methods == ("fedavg",)
    assert read_part_comparison(StudyRequest(study, "quick"), study.parts[0]).hparams[
        "fedprox"
    ] == {"lam": 0.5}
    wrong = small(tmp_path, "quick = { fedprox.lamm = 0.5 }\n")
    with pytest.raises(
        InputError, match=r"fedprox has no hyper-parameter 'lamm'; did you mean lam\?$"
    ):
        make_scenarios(StudyRequest(wrong), plan_study(StudyRequest(wrong))[0][0], tmp_path)[
            0
        ].comparison.make_run_configs()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("lrr=1",), "small, part one: There is no key 'lrr'; did you mean lr?"),
        (("fedsim.lam=1",), "small, part one: 'fedsim' is not among the methods fedavg, fedprox."),
    ],
)
def test_wrong_words_name_the_part(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        plan_study(StudyRequest(small(tmp_path), "quick", words))
    assert str(caught.value) == sentence


def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^study small: there is no part 'on'; did you mean one\?$"
    ):
        plan_study(StudyRequest(small(tmp_path)), ["on"])
