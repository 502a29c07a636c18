"""The record of a part: small, and all that its tables and figures are made from.

Figures of a run are means over its looks in the last fifth of the rounds (micro, macro), or of everybody after the
last round (std, worst tenth); there is no best round. A run that diverged has a curve up to there and no figures.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.evaluation.client_statistics import (
    compute_rise_time,
    compute_rolling_mean,
    find_first_reaching,
)
from fedtailor.evaluation.summary import ROLLING_WINDOW_DIVISOR
from fedtailor.experiments.executor import COMPUTE_KEYS
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.files import read_json
from fedtailor.studies.config import COLUMNS, Part, Scalar
from fedtailor.studies.execute import PartRun, read_minutes
from fedtailor.studies.plan import TUNING_DIR, StudyRequest
from fedtailor.training.run_dir import RunDir

MAX_CURVE_POINTS, MAX_NUMBERS = 60, 12_000
"""A curve has at most so many looks, and all curves of a part so many numbers together."""
FIGURES_NOTE = "means over the looks in the last fifth of the rounds"
COST_KEYS = ("bytes_down", "bytes_up", "steps", "gradients", "seconds", "scoring_seconds")

Record = dict[str, Any]


def build_part_record(request: StudyRequest, part_run: PartRun, out: Path) -> Record:
    """What there is to be kept of a part that has come to its end."""
    part = part_run.planned.part
    scenario_runs = zip(part_run.scenarios, part_run.runs, strict=True)
    found = [
        (scenario.value, RunDir(run.path).read_record())
        for scenario, runs in scenario_runs
        for run in runs
    ]
    first, max_points = found[0][1], _compute_max_points(len(found))
    minutes = read_minutes(part.name, out)
    return {
        "about": {
            "versions": first["versions"],
            "commit": first["commit"],
            "machine": first.get("machine", "unknown"),
            "scale": request.scale,
            "stands_in": first["config"]["data"] if part_run.planned.is_embedded else None,
            "minutes": None if minutes is None else round(minutes, 2),
            "figures": FIGURES_NOTE,
        },
        "part": part.name,
        "metric": first["metric"],
        "vary": part_run.planned.vary.model_dump() if part_run.planned.vary else None,
        "comparison": part_run.scenarios[0].comparison.model_dump(mode="json")
        | {key: first["config"][key] for key in COMPUTE_KEYS},
        "trials": _read_trials(out / part.name / TUNING_DIR / "trials.json"),
        "runs": [_summarize_run(part, value, record, max_points) for value, record in found],
    }


def _read_trials(path: Path) -> list[Record] | None:
    """What was tried first, and what validation clients had then; nothing if nothing was to be chosen."""
    if not path.exists():
        return None
    return [
        {key: each[key] for key in ("method", "point", "validation")} for each in read_json(path)
    ]


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Replaces a record: a line for each entry, and for each run."""
    lines = [
        f" {json.dumps(key)}: {_dump_json(value)}" for key, value in record.items() if key != "runs"
    ]
    runs = ",\n".join(f"  {_dump_json(run)}" for run in record["runs"])
    content = "{\n" + ",\n".join([*lines, f' "runs": [\n{runs}\n ]']) + "\n}\n"
    write_bytes(path, content.encode())


def read_record(path: Path) -> Record:
    """A record that was written."""
    found: Record = read_json(path)
    return found


def _dump_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _compute_max_points(num_runs: int) -> int:
    """How many looks a curve may have, if there are so many of them."""
    return max(10, min(MAX_CURVE_POINTS, MAX_NUMBERS // (num_runs * (1 + len(COLUMNS)))))


def _summarize_run(
    part: Part, value: Scalar | None, record: Mapping[str, Any], max_points: int
) -> Record:
    config, is_finished = record["config"], record["status"] == "finished"
    statistic = "macro" if part.statistic == "macro" else "micro"
    points_by_column = {column: _collect_points(record, column, statistic) for column in COLUMNS}
    tuned = {key: record["hparams"][key] for key in config["tuned"]}
    return {
        "name": record["name"],
        "seed": config["seed"],
        **({} if value is None else {"value": value}),
        "status": record["status"],
        "rounds": record["rounds"][-1]["round"] if record["rounds"] else 0,
        "cost": {key: _round_value(record["cost"].get(key)) for key in COST_KEYS},
        **({"tuned": tuned} if tuned else {}),
        **(_summarize_figures(record) if is_finished else {"problem": record["problem"]}),
        **(
            {"convergence": _compute_convergence(part, record, points_by_column[part.column])}
            if is_finished and "speed" in part.tables
            else {}
        ),
        "curve": _thin_curve(points_by_column, max_points),
    }


def _summarize_figures(record: Mapping[str, Any]) -> Record:
    metric, found = record["metric"]["name"], {}
    for column in COLUMNS:
        group, stage = column.split()
        if group in record["summary"]:
            mean, last = (
                record["final_window"]["mean"][group][stage],
                record["summary"][group][stage],
            )
            figures = {"micro": mean["acc_micro"], "macro": mean[metric]}
            figures |= {"std": last["std"], "worst tenth": last["worst_tenth"]}
            found[column] = {name: _round_value(figure) for name, figure in figures.items()}
    return found


def _collect_points(
    record: Mapping[str, Any], column: str, statistic: str
) -> list[tuple[int, float]]:
    """The rounds at which was looked, and the figure there."""
    group, stage = column.split()
    name = record["metric"]["name"] if statistic == "macro" else "acc_micro"
    eval_points = [entry for entry in record["rounds"] if group in (entry["scores"] or {})]
    values = (
        (eval_point["round"], eval_point["scores"][group][stage][name])
        for eval_point in eval_points
    )
    return [(round_idx, value) for round_idx, value in values if value is not None]


def _compute_convergence(
    part: Part, record: Mapping[str, Any], points: Sequence[tuple[int, float]]
) -> Record:
    """The rounds until the figure, as a rolling mean, is at nine tenths of its end, and until it is at the target."""
    higher_is_better = bool(record["metric"]["higher_is_better"])
    eval_rounds, values = [round_idx for round_idx, _ in points], [value for _, value in points]
    smooth = compute_rolling_mean(
        eval_rounds, values, max(1, record["config"]["rounds"] // ROLLING_WINDOW_DIVISOR)
    )
    target_round = (
        None
        if part.target is None
        else find_first_reaching(eval_rounds, smooth, part.target, higher_is_better)
    )
    return {
        "rise time": compute_rise_time(eval_rounds, smooth) if higher_is_better else None,
        "rounds to target": target_round,
    }


def _thin_curve(
    points_by_column: Mapping[str, Sequence[tuple[int, float]]], max_points: int
) -> Record:
    """What was seen, as columns, thinned out; the last look always stays."""
    values_by_column = {
        column: dict(values) for column, values in points_by_column.items() if values
    }
    rounds = sorted({round_idx for values in values_by_column.values() for round_idx in values})
    indices = np.linspace(0, len(rounds) - 1, min(max_points, len(rounds))).astype(int)
    kept_rounds = [rounds[index] for index in indices]
    columns = {
        column: [_round_value(values.get(round_idx), 4) for round_idx in kept_rounds]
        for column, values in values_by_column.items()
    }
    return {"round": kept_rounds, **columns} if kept_rounds else {}


def _round_value(value: float | None, num_digits: int = 6) -> float | None:
    return round(value, num_digits) if isinstance(value, float) else value
