"""Which method to use when: every sentence follows from the figures, and no lead within the spread is called one."""

from statistics import mean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import Record, Scores, counted, diverged, record, regression, with_scores

from fedtailor.run import report
from fedtailor.run.report import advice, grouping
from fedtailor.run.report.phrases import plain


def answers(runs: list[Record]) -> dict[str, str]:
    """Question -> answer."""
    lines = grouping.lines_of(runs)
    return {each.question: plain(each.answer) for each in advice.advice(lines, grouping.metric_of(lines))}


def runs_of(figures: dict[str, list[float]], **more: list[float]) -> list[Record]:
    """A run for each method and seed, in which two clients of both groups have this figure after personalising."""
    made = []
    for name, seeds in figures.items():
        for seed, after in enumerate(seeds):
            run = record(name, seed)
            for group in ("local", "new"):
                before = more.get("before", [0.1] * len(seeds))[seed]
                run = with_scores(run, group, [before, before], [after, after])
            made.append(run)
    return made


def test_a_lead_is_larger_than_the_spread_of_either() -> None:
    found = answers(runs_of({"fedsim": [0.7, 0.72, 0.74], "fedavgm": [0.6, 0.61, 0.62]}))
    assert (
        found["Best for clients who took part"] == "fedsim (72.0 ± 2.0 %) leads fedavgm (61.0 ± 1.0 %) by 11.0 points."
    )
    assert found["Best for new clients"].startswith("fedsim (72.0 ± 2.0 %) leads")


def test_what_is_within_the_spread_is_level() -> None:
    found = answers(runs_of({"fedavgm": [0.6, 0.7], "fedsim": [0.68, 0.7], "pfedme": [0.3, 0.31]}))
    assert (
        found["Best for new clients"]
        == "fedsim (69.0 ± 1.4 %) and fedavgm (65.0 ± 7.1 %) are level; next is pfedme (30.5 ± 0.7 %)."
    )


FIGURES = st.lists(st.sampled_from([0.5, 0.52, 0.6, 0.61, 0.7, 0.9]), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(FIGURES, FIGURES)
def test_no_lead_within_the_spread_is_called_a_lead(one: list[float], other: list[float]) -> None:
    found = answers(runs_of({"fedsim": one, "fedprox": other}))["Best for new clients"]
    apart = abs(mean(one) - mean(other))
    assert (" leads " in found) == (apart > max(stdev(one), stdev(other), 1e-12))
    first = "fedsim" if mean(one) > mean(other) else "fedprox"
    assert (" are level" in found) or found.startswith(first)


def test_of_one_seed_no_lead_is_claimed() -> None:
    runs = runs_of({"fedsim": [0.9], "fedprox": [0.2]})
    assert answers(runs)["Best for new clients"] == "fedsim (90.0 %) stands first on one seed, before fedprox (20.0 %)."
    assert not any(" leads " in answer for answer in answers(runs).values())
    assert advice.ONE_SEED.strip() in report.render(runs)


def test_the_worst_tenth_has_its_own_winner() -> None:
    runs = []
    for seed in (1, 2):
        for name, after in {"fedsim": [0.9] * 9 + [0.0], "fedprox": [0.5] * 10}.items():
            runs.append(with_scores(record(name, seed), "local", [0.1] * 10, after))
    found = answers(runs)
    assert found["Best for clients who took part"].startswith("fedsim")
    assert (
        found["Best for the worst tenth of clients who took part"]
        == "fedprox (50.0 ± 0.0 %) leads fedsim (0.0 ± 0.0 %) by 50.0 points."
    )


def test_the_cheapest_is_chosen_among_those_level_with_the_best() -> None:
    runs = runs_of({"fedsim": [0.7, 0.8], "fedprox": [0.71, 0.77], "pfedme": [0.5, 0.51]})
    for run, share in zip(runs, (2, 2, 1, 1, 0.1, 0.1), strict=True):
        run["cost"] |= {"bytes_down": share * 1e9, "bytes_up": 0, "steps": int(share * 300)}
    assert answers(runs)["Cheapest for new clients"] == (
        "fedprox: 1.00 GB and 300 steps of clients' work; pfedme gives up 23.5 points for 100 MB and 30 steps of "
        "clients' work."
    )
    worked = [counted(run, flops) for run, flops in zip(runs, (1e9, 1e9, 5e9, 5e9, 1e6, 1e6), strict=True)]
    for run in worked:
        run["cost"]["bytes_down"] = 1e9
    assert answers(worked)["Cheapest for new clients"] == "fedsim: 1.00 GB and 10.0 GFLOP of clients' work."
    for run in worked[2:4]:
        run["cost"]["bytes_down"] = 9e8  # traffic counts first, though this one computes more
    assert answers(worked)["Cheapest for new clients"] == "fedprox: 900 MB and 50.0 GFLOP of clients' work."


_AFTER: dict[str, Scores] = {
    "local": [0.5, 0.6, 0.7, None],
    "fedsim": [0.4, 0.6, 0.9, 0.9],
    "fedprox": [0.1, 0.1, 0.1, 0.1],
}


def test_shares_worse_than_alone_are_of_the_same_client_and_seed() -> None:
    runs = []
    for seed in (1, 2):
        for name, after in _AFTER.items():
            runs.append(with_scores(with_scores(record(name, seed), "local", after, after), "new", [0.5], [0.5]))
    assert answers(runs)["Worse off than alone"] == (
        "Fewest with fedsim (33 % of clients who took part, 0 % of new clients), most with fedprox (100 % of clients "
        "who took part, 0 % of new clients)."
    )
    assert answers(runs[1:2] + runs[2:3])["Worse off than alone"] == advice.NOBODY_ALONE


def test_whether_personalising_is_worth_it() -> None:
    runs = runs_of({"fedsim": [0.7, 0.72], "fedprox": [0.2, 0.21]}, before=[0.5, 0.51])
    words = answers(runs)["Is personalising worth it"]
    assert words == "Clients who took part and new clients: fedsim gains, fedprox loses."
    level = runs_of({"fedsim": [0.4, 0.6], "fedprox": [0.2, 0.8]}, before=[0.5, 0.51])
    assert answers(level)["Is personalising worth it"] == "Clients who took part and new clients: all stay level."


def test_lower_can_be_better() -> None:
    runs = [regression(run) for run in (record("fedsim", seed) for seed in (1, 2))]
    runs = [with_scores(run, "new", [3.0], [2.0]) for run in runs]
    runs += [with_scores(regression(record("fedprox", seed)), "new", [1.0], [1.5]) for seed in (1, 2)]
    found = answers(runs)
    assert found["Best for new clients"] == "fedprox (1.500 ± 0.0) leads fedsim (2.000 ± 0.0) by 0.5000."
    assert found["Is personalising worth it"].endswith("New clients: fedsim gains, fedprox loses.")


def test_after_a_pass_another_method_may_be_best() -> None:
    runs = [counted(run) for run in runs_of({"fedsim": [0.9, 0.9], "fedprox": [0.6, 0.6]})]
    for run in runs:
        figure = 0.2 if run["name"] == "fedsim" else 0.5
        run["scores"]["new"]["after_steps"]["1"]["accuracy"] = [figure, figure]
    found = answers(runs)
    assert found["Best for new clients after one pass"].startswith("fedprox (50.0 ± 0.0 %) leads")
    assert found["Best for new clients after 5 passes"].startswith("fedsim")


def test_a_method_that_has_diverged_is_not_recommended() -> None:
    runs = runs_of({"fedsim": [0.9, 0.9], "fedprox": [0.6, 0.6], "pfedme": [0.5, 0.5]})
    runs[0] = diverged(runs[0])
    found = answers(runs)
    assert found["Best for new clients"].startswith("fedprox")
    assert found["Left out"] == "fedsim diverged: the loss of some clients is not finite."
    assert "fedsim: The loss of 1 local client is not finite: training has diverged." in report.render(runs)


@pytest.mark.parametrize("runs", [[record()], [record("fedavg", seed) for seed in (1, 2)]])
def test_with_one_method_there_is_nothing_to_advise(runs: list[Record]) -> None:
    assert answers(runs) == {}
    assert "Which method to use when" not in report.render(runs)
