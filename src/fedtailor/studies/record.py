"""The record of a part of a study: small, typed, and all that its tables and figures need.

Figures of a run are means over its evaluations in the last fifth of the rounds (micro, macro), or
statistics over clients after the last round (std, worst tenth); there is no best round. A run that
diverged has its curve up to that round, and no figures.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from fedtailor.evaluation.client_statistics import (
    compute_rise_time,
    compute_rolling_mean,
    find_first_reaching,
)
from fedtailor.experiments.executor import COMPUTE_KEYS
from fedtailor.experiments.tune import read_trials
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.typed_json import read_versioned
from fedtailor.studies.client_scores import (
    SCORES_SUFFIX,
    ScoresFile,
    collect_run_scores,
    write_client_scores,
)
from fedtailor.studies.config import COLUMNS, Part, Scalar, Vary
from fedtailor.studies.execute import PartRun, read_minutes
from fedtailor.studies.plan import TUNING_DIR, StudyRequest
from fedtailor.training.config import ComparisonConfig
from fedtailor.training.record.schema import MetricInfo, RecordPart, RunCost, RunRecord
from fedtailor.training.record.summary import ROLLING_WINDOW_DIVISOR
from fedtailor.training.run_dir import RunDir

MAX_CURVE_POINTS = 60
"""Maximum number of evaluations in a curve."""
MIN_CURVE_POINTS = 10
"""Number of evaluations in a curve, if there are that many, whatever `MAX_NUMBERS` says."""
MAX_NUMBERS = 12_000
"""Maximum number of numbers in all curves of a part, to keep records small."""
FIGURES_NOTE = "means over the evaluations in the last fifth of the rounds"


class About(RecordPart):
    """The origin of the runs of a part, and the meaning of their figures."""

    versions: dict[str, str]
    commit: str | None
    machine: str | None  # None: not recorded
    scale: str
    stands_in: str | None  # the data set that was used in place of the study's own
    minutes: float | None  # of all runs, with `jobs` of them in parallel
    figures: str  # over which evaluations figures are means
    trials: str | None = None  # how trials were scored, if not like the figures
    data_options: dict[str, Any] | None = None  # of the data, if the comparison lacks some


class TrialSummary(RecordPart):
    """A trial: its hyper-parameters, and the score on validation clients, None if it diverged."""

    method: str
    point: dict[str, Any]
    data_seed: int = 0  # of records from before there were several, too
    validation: float | None


class PartCost(RecordPart):
    """The cost of a run; None for what was not counted. See `RunCost`."""

    bytes_down: int | None = None
    bytes_up: int | None = None
    steps: int | None = None
    gradients: float | None = None
    flops: int | None = None
    server_gradients: float | None = None
    server_flops: int | None = None
    personalize_gradients: float | None = None
    personalize_flops: int | None = None
    seconds: float | None = None
    scoring_seconds: float | None = None


class ColumnFigures(RecordPart):
    """The headline metric of a group before or after personalizing."""

    micro: float | None
    macro: float | None
    std: float | None
    worst_tenth: float | None

    def get_statistic(self, name: str) -> float | None:
        """Return a figure by its name in a study's file: micro, macro, std or worst tenth."""
        value: float | None = getattr(self, name.replace(" ", "_"))
        return value


class Speed(RecordPart):
    """Rounds until nine tenths of the last value, and until the target; None if never reached."""

    rise_time: int | None
    rounds_to_target: int | None


class Curve(RecordPart):
    """The headline metric by column in some evaluated rounds, the last one among them."""

    rounds: list[int] = Field(default_factory=list)
    figures: dict[str, list[float | None]] = Field(default_factory=dict)


class RunSummary(RecordPart):
    """One run of a part: a method with a seed, at one of the varied values."""

    name: str
    seed: int
    data_seed: int = 0  # of records from before it followed the seed, too
    value: Scalar | None = None
    status: Literal["finished", "diverged"]
    rounds: int
    cost: PartCost
    tuned: dict[str, Any] = Field(default_factory=dict)
    problem: str | None = None
    figures: dict[str, ColumnFigures] = Field(default_factory=dict)
    speed: Speed | None = None
    curve: Curve = Curve()


class PartRecord(RecordPart):
    """The record of a part: its comparison, trials and runs."""

    format: Literal[1] = 1
    about: About
    part: str
    metric: MetricInfo
    vary: Vary | None
    comparison: ComparisonConfig
    trials: list[TrialSummary] | None
    client_scores: ScoresFile | None = None  # beside the record
    runs: list[RunSummary]

    @field_validator("comparison", mode="before")
    @classmethod
    def _name_data_of_choices(cls, comparison: Any) -> Any:
        """Put values that were chosen under the seed of the data; older records have seed 0."""
        if not isinstance(comparison, dict) or not isinstance(comparison.get("tuned"), dict):
            return comparison
        tuned = {}
        for variant, values in comparison["tuned"].items():
            has_seeds = all(isinstance(value, dict) for value in values.values())
            tuned[variant] = values if has_seeds else {"0": values}
        return comparison | {"tuned": tuned}

    @field_validator("comparison", mode="before")
    @classmethod
    def _keep_old_budget(cls, value: Any) -> Any:
        """Read a comparison from before `finetune` as what it was: each method by its paper."""
        if isinstance(value, dict):
            return {"finetune": "paper"} | value
        return value


def build_part_record(request: StudyRequest, part_run: PartRun, out: Path) -> PartRecord:
    """Return the record of a part whose runs have all ended, and write its clients' scores.

    Args:
        request: What the user asked for.
        part_run: The part with its runs.
        out: The folder of the study's runs.
    """
    part = part_run.planned.part
    values: list[Scalar | None] = []
    records: list[RunRecord] = []
    for scenario, runs in zip(part_run.scenarios, part_run.runs, strict=True):
        for run in runs:
            values.append(scenario.value)
            records.append(RunDir(run.path).read_record())
    first = records[0]
    scores_path = out / f"{part.name}{SCORES_SUFFIX}"
    client_scores = write_client_scores(
        scores_path,
        [collect_run_scores(record, value) for value, record in zip(values, records, strict=True)],
    )
    max_points = _compute_max_points(len(records))
    minutes = read_minutes(part.name, out)
    compute_options = {key: getattr(first.config, key) for key in COMPUTE_KEYS}
    return PartRecord(
        about=About(
            versions=first.versions,
            commit=first.commit,
            machine=first.machine,
            scale=request.scale,
            stands_in=first.config.data if part_run.planned.is_embedded else None,
            minutes=None if minutes is None else round(minutes, 2),
            figures=FIGURES_NOTE,
        ),
        part=part.name,
        metric=first.metric,
        vary=part_run.planned.vary,
        comparison=part_run.scenarios[0].comparison.model_copy(update=compute_options),
        trials=_summarize_trials(out / part.name / TUNING_DIR),
        client_scores=client_scores,
        runs=[
            _summarize_run(part, value, record, max_points)
            for value, record in zip(values, records, strict=True)
        ],
    )


def _summarize_trials(tuning_path: Path) -> list[TrialSummary] | None:
    """Return the trials in a folder; None if the part was not tuned."""
    trials = read_trials(tuning_path)
    if trials is None:
        return None
    return [
        TrialSummary(
            method=trial.method,
            point=trial.point,
            data_seed=trial.data_seed,
            validation=trial.validation,
        )
        for trial in trials
    ]


def encode_record(record: PartRecord) -> bytes:
    """Return a record as JSON, with one line for each field and for each run."""
    content = record.model_dump(mode="json", exclude={"runs"})
    lines = [f" {json.dumps(key)}: {_dump_json(value)}" for key, value in content.items()]
    runs = [run.model_dump(mode="json", exclude_defaults=True) for run in record.runs]
    run_lines = ",\n".join(f"  {_dump_json(run)}" for run in runs)
    text = "{\n" + ",\n".join([*lines, f' "runs": [\n{run_lines}\n ]']) + "\n}\n"
    return text.encode()


def write_record(path: Path, record: PartRecord) -> None:
    """Write a record to a file."""
    write_bytes(path, encode_record(record))


def read_record(path: Path) -> PartRecord:
    """Return the record in a file."""
    return read_versioned(path, PartRecord)


def _dump_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _compute_max_points(num_runs: int) -> int:
    """Return the maximum number of evaluations in each of `num_runs` curves."""
    numbers_per_point = num_runs * (1 + len(COLUMNS))
    return max(MIN_CURVE_POINTS, min(MAX_CURVE_POINTS, MAX_NUMBERS // numbers_per_point))


def _summarize_run(
    part: Part, value: Scalar | None, record: RunRecord, max_points: int
) -> RunSummary:
    statistic = "macro" if part.statistic == "macro" else "micro"
    points_by_column = {column: _collect_points(record, column, statistic) for column in COLUMNS}
    is_finished = record.status == "finished"
    figures: dict[str, ColumnFigures] = {}
    speed = None
    if is_finished:
        figures = _summarize_columns(record)
        if "speed" in part.tables:
            speed = _compute_speed(part, record, points_by_column[part.column])
    return RunSummary(
        name=record.name,
        seed=record.config.seed,
        data_seed=record.config.data_seed or 0,
        value=value,
        status="finished" if is_finished else "diverged",
        rounds=record.rounds[-1].round if record.rounds else 0,
        cost=_summarize_cost(record.cost),
        tuned={key: record.hparams[key] for key in record.config.tuned},
        problem=record.problem,
        figures=figures,
        speed=speed,
        curve=_thin_curve(points_by_column, max_points),
    )


def _summarize_cost(cost: RunCost | None) -> PartCost:
    if cost is None:
        return PartCost()
    figures = {name: _round_value(getattr(cost, name)) for name in PartCost.model_fields}
    return PartCost.model_validate(figures)


def _summarize_columns(record: RunRecord) -> dict[str, ColumnFigures]:
    """Return the figures of a finished run by column."""
    assert record.summary is not None
    assert record.final_window is not None
    figures: dict[str, ColumnFigures] = {}
    for column in COLUMNS:
        group, stage = column.split()
        if group in record.summary:
            window_mean = record.final_window.mean[group][stage]
            last = record.summary[group][stage]
            figures[column] = ColumnFigures(
                micro=_round_value(window_mean["acc_micro"]),
                macro=_round_value(window_mean[record.metric.name]),
                std=_round_value(last.std),
                worst_tenth=_round_value(last.worst_tenth),
            )
    return figures


def _collect_points(record: RunRecord, column: str, statistic: str) -> list[tuple[int, float]]:
    """Return the evaluated rounds of a column as pairs (round, headline metric)."""
    group, stage = column.split()
    name = record.metric.name if statistic == "macro" else "acc_micro"
    points = []
    for entry in record.rounds:
        if entry.scores and group in entry.scores:
            value = entry.scores[group][stage][name]
            if value is not None:
                points.append((entry.round, value))
    return points


def _compute_speed(part: Part, record: RunRecord, points: Sequence[tuple[int, float]]) -> Speed:
    """Return how fast the rolling mean of the headline metric rose."""
    higher_is_better = record.metric.higher_is_better
    eval_rounds = [round_idx for round_idx, _ in points]
    values = [value for _, value in points]
    width = max(1, record.num_rounds // ROLLING_WINDOW_DIVISOR)
    smooth = compute_rolling_mean(eval_rounds, values, width)
    rounds_to_target = None
    if part.target is not None:
        rounds_to_target = find_first_reaching(eval_rounds, smooth, part.target, higher_is_better)
    rise_time = None
    if higher_is_better:
        rise_time = compute_rise_time(eval_rounds, smooth)
    return Speed(rise_time=rise_time, rounds_to_target=rounds_to_target)


def _thin_curve(
    points_by_column: Mapping[str, Sequence[tuple[int, float]]], max_points: int
) -> Curve:
    """Return at most `max_points` evenly spaced points of each column, the last one among them."""
    values_by_column = {
        column: dict(points) for column, points in points_by_column.items() if points
    }
    rounds = sorted({round_idx for values in values_by_column.values() for round_idx in values})
    indices = np.linspace(0, len(rounds) - 1, min(max_points, len(rounds))).astype(int)
    kept_rounds = [rounds[index] for index in indices]
    figures = {
        column: [_round_value(values.get(round_idx), 4) for round_idx in kept_rounds]
        for column, values in values_by_column.items()
    }
    return Curve(rounds=kept_rounds, figures=figures)


def _round_value(value: float | None, num_digits: int = 6) -> float | None:
    return round(value, num_digits) if isinstance(value, float) else value
