"""Running a study: first the trials of parts that are tuned, then the runs of all parts.

    OUT/manifest.json                               size and SHA-256 of the files beside it
    OUT/study.json                                  which study, at which scale
    OUT/PART/METHOD-seedN, OUT/PART/VALUE/...       runs
    OUT/PART/tune/                                  trials
    OUT/PART/seconds.jsonl                          durations: a line per run and call, with
                                                    checksums of its own

A call resumes whatever an earlier one with the same arguments has left unfinished.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtailor.errors import InputError, require
from fedtailor.experiments.budget import apply_budget
from fedtailor.experiments.compare import check_runs, make_runs
from fedtailor.experiments.executor import (
    ENDED_STATUSES,
    Event,
    OnEvent,
    PlannedRun,
    ShouldStop,
    execute,
)
from fedtailor.experiments.tune import Trial, evaluate_trials, prepare_trials, select_points
from fedtailor.storage.atomic import NEW_SUFFIX, hidden_path, write_bytes
from fedtailor.storage.chained_lines import chain_line, read_chained_lines
from fedtailor.storage.manifest import MANIFEST_FILE, ListedFolder
from fedtailor.storage.typed_json import encode_model, parse_model
from fedtailor.studies.plan import (
    TUNING_DIR,
    PartScenario,
    PlannedPart,
    StudyRequest,
    TunedHParams,
    make_scenarios,
    make_tuning_comparison,
)
from fedtailor.training.config import ComparisonConfig
from fedtailor.training.record.schema import RecordPart
from fedtailor.training.run_dir import RunDir

STUDY_RECORD_FILE = "study.json"
DURATIONS_FILE = "seconds.jsonl"
STUDY_KIND = "study"
"""What the manifest says that the folder of a study holds."""


_PARTIAL_FILES = {
    MANIFEST_FILE,
    hidden_path(Path(MANIFEST_FILE), NEW_SUFFIX).name,
    hidden_path(Path(STUDY_RECORD_FILE), NEW_SUFFIX).name,
}
"""What a folder may hold if the process was killed before the first run."""


class StudyFile(RecordPart):
    """The content of `study.json`: what the runs of a folder belong to."""

    study: str  # its name
    scale: str


class Duration(RecordPart):
    """A line of `seconds.jsonl`: how long one call worked on one run."""

    seconds: float
    jobs: int  # runs that were executed at the same time


class TuningPlan(NamedTuple):
    """The trials that choose the hyper-parameters of a part."""

    comparison: ComparisonConfig
    trials: list[Trial]
    path: Path  # their folder


class PreparedStudy(NamedTuple):
    """A study that has been checked and can be run."""

    request: StudyRequest
    planned_parts: list[PlannedPart]
    out: Path
    tuning_plans: dict[str, TuningPlan]  # by the name of the part
    rounds_per_run: list[int]  # of all runs, trials included


class PartRun(NamedTuple):
    """The scenarios of a part with their runs; none while its trials have not ended."""

    planned: PlannedPart
    scenarios: list[PartScenario]
    runs: list[list[PlannedRun]]  # of each scenario
    is_finished: bool  # whether all runs have ended


def prepare_study(
    request: StudyRequest, planned_parts: Sequence[PlannedPart], out: Path
) -> PreparedStudy:
    """Check everything that can be checked before anything is run.

    Args:
        request: What the user asks for.
        planned_parts: The parts to run.
        out: The folder of the runs.
    """
    check_out_dir(request, out)
    for planned_part in planned_parts:
        read_minutes(planned_part.part.name, out)  # refuses durations that are damaged
    tuning_plans: dict[str, TuningPlan] = {}
    rounds_per_run = []
    for planned_part in planned_parts:
        name = planned_part.part.name
        comparison = make_tuning_comparison(request, planned_part)
        if comparison is not None:
            tuning_path = out / name / TUNING_DIR
            comparison_name = f"{name} {TUNING_DIR}"
            trials = prepare_trials(comparison, tuning_path, comparison_name=comparison_name)
            tuning_plans[name] = TuningPlan(comparison, trials, tuning_path)
            rounds_per_run += [trial.run.config.rounds for trial in trials]
        tuned = _select_tuned(tuning_plans.get(name))
        part_run = _make_part_run(request, planned_part, out, tuned)
        for runs in part_run.runs:
            check_runs(runs)
            rounds_per_run += [run.config.rounds for run in runs]
    return PreparedStudy(request, list(planned_parts), out, tuning_plans, rounds_per_run)


def run_study(
    prepared: PreparedStudy,
    jobs: int = 1,
    on_event: OnEvent = bool,
    should_stop: ShouldStop = bool,
) -> list[PartRun]:
    """Execute the trials and runs that have not ended, and return the parts.

    Args:
        prepared: The study.
        jobs: Number of processes.
        on_event: Called with every event of a run.
        should_stop: Whether to stop after the present rounds.
    """
    out = prepared.out
    out.mkdir(parents=True, exist_ok=True)
    study_file = encode_model(_make_study_file(prepared.request))
    ListedFolder(out).create_or_write(STUDY_KIND, {STUDY_RECORD_FILE: study_file})
    trial_runs = [trial.run for plan in prepared.tuning_plans.values() for trial in plan.trials]
    _execute_timed(trial_runs, out, jobs, on_event, should_stop)
    part_runs = [_make_tuned_part_run(prepared, planned) for planned in prepared.planned_parts]
    all_runs = [run for part_run in part_runs for runs in part_run.runs for run in runs]
    _execute_timed(all_runs, out, jobs, on_event, should_stop)
    return [part_run._replace(is_finished=_has_ended(part_run)) for part_run in part_runs]


def check_out_dir(request: StudyRequest, out: Path) -> None:
    """Raise an error for a folder that holds anything but runs of this study at this scale."""
    if not out.exists():
        return
    require(out.is_dir(), f"'{out}' is a file; choose another folder with out=DIR.")
    path = out / STUDY_RECORD_FILE
    if path.exists():
        content = parse_model(path, ListedFolder(out).read(STUDY_RECORD_FILE), StudyFile)
        require(
            content == _make_study_file(request),
            f"'{out}' holds study {content.study} at scale={content.scale}; "
            "choose another folder with out=DIR.",
        )
        return
    names = {other_path.name for other_path in out.iterdir()}
    other_names = sorted(names - _PARTIAL_FILES)
    if other_names:
        raise InputError(f"'{out}' holds '{other_names[0]}'; choose another folder with out=DIR.")


def read_minutes(part: str, out: Path) -> float | None:
    """Return the minutes that a part took, with its runs in parallel; None if not recorded."""
    path = out / part / DURATIONS_FILE
    lines, damaged_line = read_chained_lines(path, Duration, part)
    require(
        damaged_line is None,
        f"line {damaged_line} of '{path}' is not what was written; put the file back, or delete "
        "it, with which it is not known how long the part took.",
    )
    if not lines:
        return None
    durations = [line.entry for line in lines]
    return sum(duration.seconds / duration.jobs for duration in durations) / 60


def _add_duration(path: Path, duration: Duration) -> None:
    """Add a line, behind those that are intact."""
    part = path.parent.name
    lines, _ = read_chained_lines(path, Duration, part)
    new_line = chain_line(duration, lines[-1].checksum if lines else part)
    write_bytes(path, "".join(line.text for line in [*lines, new_line]).encode())


def _make_study_file(request: StudyRequest) -> StudyFile:
    return StudyFile(study=request.study.name, scale=request.scale)


def _select_tuned(plan: TuningPlan | None) -> TunedHParams | None:
    """Return the hyper-parameters that trials have chosen; None until all trials have ended."""
    if plan is None:
        return None
    trials = evaluate_trials(plan.comparison, plan.trials, plan.path)
    if any(trial.score is None for trial in trials):
        return None
    return select_points(trials)


def _make_tuned_part_run(prepared: PreparedStudy, planned_part: PlannedPart) -> PartRun:
    """Return a part with its runs, or without any if its trials have not ended."""
    plan = prepared.tuning_plans.get(planned_part.part.name)
    tuned = _select_tuned(plan)
    if plan is not None and tuned is None:
        return PartRun(planned_part, [], [], False)
    return _make_part_run(prepared.request, planned_part, prepared.out, tuned)


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
    statuses = [RunDir(run.path).read_status() for runs in part_run.runs for run in runs]
    return bool(statuses) and all(status in ENDED_STATUSES for status in statuses)


def _execute_timed(
    runs: Sequence[PlannedRun], out: Path, jobs: int, on_event: OnEvent, should_stop: ShouldStop
) -> None:
    """Execute runs, and record how long each took and how many ran in parallel."""
    num_left = sum(RunDir(run.path).read_status() not in ENDED_STATUSES for run in runs)
    num_parallel = max(1, min(jobs, num_left))

    def record_duration(event: Event) -> None:
        if event.kind in (*ENDED_STATUSES, "stopped"):
            duration = Duration(seconds=round(event.seconds, 2), jobs=num_parallel)
            part = event.run.path.relative_to(out).parts[0]
            _add_duration(out / part / DURATIONS_FILE, duration)
        on_event(event)

    execute(runs, jobs, record_duration, should_stop)
