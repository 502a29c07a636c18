"""A study from beginning to end: what is chosen first, then all runs of all parts, in as many processes as wanted.

    OUT/study.json                                  which study, at which scale
    OUT/PART/METHOD-seedN, OUT/PART/VALUE/...       the runs
    OUT/PART/tune/                                  the trials, if something is chosen
    OUT/PART/seconds.jsonl                          how long it took, for as often as it was gone on with

The same call goes on where it was stopped, at any moment and by whatever.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.errors import require
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.compare import check_runs, make_runs
from fedtailor.experiments.executor import (
    ENDED_STATUSES,
    Event,
    OnEvent,
    Run,
    ShouldStop,
    execute,
    read_status,
)
from fedtailor.experiments.tune import Trial, evaluate_trials, prepare_trials, select_winner
from fedtailor.storage.files import read_json, write_json
from fedtailor.studies.plan import (
    TUNING_DIR,
    PlannedPart,
    Scenario,
    StudyRequest,
    TunedHParams,
    make_scenarios,
    make_tuning_comparison,
)
from fedtailor.training.config import ComparisonConfig

STUDY_RECORD_FILE, DURATIONS_FILE = "study.json", "seconds.jsonl"


class TuningPlan(NamedTuple):
    """The trials of a part, which choose hyper-parameters before it is run."""

    comparison: ComparisonConfig
    trials: list[Trial]
    path: Path


class PreparedStudy(NamedTuple):
    """A study that can be run: everything has been checked, and nothing has been begun."""

    request: StudyRequest
    planned_parts: list[PlannedPart]
    out: Path
    tuning_plans: dict[str, TuningPlan]
    rounds_per_run: list[int]  # of every run, those among the trials included


class PartRun(NamedTuple):
    """A part that was run, as far as time allowed."""

    planned: PlannedPart
    scenarios: list[Scenario]
    runs: list[list[Run]]  # of each scenario
    is_finished: bool


def prepare_study(
    request: StudyRequest, planned_parts: Sequence[PlannedPart], out: Path
) -> PreparedStudy:
    """Checks everything that can be checked before anything is run."""
    check_out_dir(request, out)
    tuning_plans: dict[str, TuningPlan] = {}
    rounds_per_run = []
    for each in planned_parts:
        name = each.part.name
        comparison = make_tuning_comparison(request, each)
        if comparison is not None:
            tuning_path = out / name / TUNING_DIR
            tuning_plans[name] = TuningPlan(
                comparison,
                prepare_trials(comparison, tuning_path, scenario=f"{name} {TUNING_DIR}"),
                tuning_path,
            )
            rounds_per_run += [trial.run.config.rounds for trial in tuning_plans[name].trials]
        part_run = _make_part_run(request, each, out, _select_tuned(tuning_plans.get(name)))
        for runs in part_run.runs:
            check_runs(runs)
            rounds_per_run += [run.config.rounds for run in runs]
    return PreparedStudy(request, list(planned_parts), out, tuning_plans, rounds_per_run)


def run_study(
    ready: PreparedStudy, jobs: int = 1, on_event: OnEvent = bool, should_stop: ShouldStop = bool
) -> list[PartRun]:
    """Runs what has not been run yet, and ends early when asked to stop."""
    request, planned_parts, out, tuning_plans, _ = ready
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / STUDY_RECORD_FILE, {"study": request.study.name, "scale": request.scale})
    _execute_timed(
        [trial.run for tuning_plan in tuning_plans.values() for trial in tuning_plan.trials],
        out,
        jobs,
        on_event,
        should_stop,
    )
    part_runs = []
    for each in planned_parts:
        tuning_plan = tuning_plans.get(each.part.name)
        tuned = _select_tuned(tuning_plan)
        is_undecided = tuning_plan is not None and tuned is None
        part_runs.append(
            PartRun(each, [], [], False)
            if is_undecided
            else _make_part_run(request, each, out, tuned)
        )
    _execute_timed(
        [run for each in part_runs for runs in each.runs for run in runs],
        out,
        jobs,
        on_event,
        should_stop,
    )
    return [each._replace(is_finished=_has_ended(each)) for each in part_runs]


def check_out_dir(request: StudyRequest, out: Path) -> None:
    """Refuses a folder that is something else's."""
    require(
        not out.exists() or out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR."
    )
    expected, path = {"study": request.study.name, "scale": request.scale}, out / STUDY_RECORD_FILE
    found = read_json(path) if path.exists() else expected
    message = f"'{out}' holds study {found['study']} at scale={found['scale']}; choose another folder with out=DIR."
    require(found == expected, message)
    other = (
        ""
        if path.exists() or not out.exists()
        else next((each.name for each in sorted(out.iterdir())), "")
    )
    require(not other, f"'{out}' holds '{other}'; choose another folder with out=DIR.")


def read_minutes(part: str, out: Path) -> float | None:
    """How long a part took, its runs having gone beside each other; None if nobody knows."""
    path = out / part / DURATIONS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [
        json.loads(line) for line in lines if line.endswith("}")
    ]  # the last one may have been cut off
    return sum(entry["seconds"] / entry["jobs"] for entry in entries) / 60 if entries else None


def _select_tuned(tuning_plan: TuningPlan | None) -> TunedHParams | None:
    """What the trials of a part have chosen, for each method; None without trials, or until all of them have ended."""
    if tuning_plan is None:
        return None
    evaluated = evaluate_trials(*tuning_plan)
    if any(trial.score is None for trial in evaluated):
        return None
    own = {
        variant: [trial for trial in evaluated if trial.variant == variant]
        for variant in tuning_plan.comparison.methods
    }
    return {variant: select_winner(trials).point for variant, trials in own.items()}


def _make_part_run(
    request: StudyRequest, planned_part: PlannedPart, out: Path, tuned: TunedHParams | None
) -> PartRun:
    scenarios = make_scenarios(request, planned_part, out, tuned)
    runs = []
    for scenario in scenarios:
        configs, _ = apply_budget(scenario.comparison, scenario.comparison.make_run_configs())
        runs.append(make_runs(configs, scenario.path, scenario.name))
    return PartRun(planned_part, scenarios, runs, False)


def _has_ended(part_run: PartRun) -> bool:
    statuses = [read_status(run.path) for runs in part_run.runs for run in runs]
    return bool(statuses) and all(status in ENDED_STATUSES for status in statuses)


def _execute_timed(
    runs: Sequence[Run], out: Path, jobs: int, on_event: OnEvent, should_stop: ShouldStop
) -> None:
    """Do what is left of the runs, and note how long each took beside how many others."""
    num_left = sum(read_status(run.path) not in ENDED_STATUSES for run in runs)
    num_parallel = max(1, min(jobs, num_left))

    def heard(event: Event) -> None:
        if event.kind in (*ENDED_STATUSES, "stopped"):
            entry = {"seconds": round(event.seconds, 2), "jobs": num_parallel}
            part = event.run.path.relative_to(out).parts[0]
            with (out / part / DURATIONS_FILE).open("a") as file:
                file.write(json.dumps(entry) + "\n")
        on_event(event)

    execute(runs, jobs, heard, should_stop)
