"""The record of a part: small, and all that its tables and figures are made from.

Figures of a run are means over its looks in the last fifth of the rounds (micro, macro), or of everybody after the
last round (std, worst tenth); there is no best round. A run that diverged has a curve up to there and no figures.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.disk import write_bytes
from fedtailor.run.executor import HOW_COMPUTED
from fedtailor.run.files import read_json
from fedtailor.run.metrics import first_reaching, rise_time, rolling
from fedtailor.run.record import Folder
from fedtailor.run.study.planning import TUNED, Asked
from fedtailor.run.study.reading import COLUMNS, Part, Scalar
from fedtailor.run.study.running import Ran, minutes_of
from fedtailor.run.summary import ROLLED

LOOKS, NUMBERS = 60, 12_000
"""A curve has at most so many looks, and all curves of a part so many numbers together."""
LAST_FIFTH = "means over the looks in the last fifth of the rounds"
COSTS = ("bytes_down", "bytes_up", "steps", "gradients", "seconds", "scoring_seconds")

Record = dict[str, Any]


def record_of(asked: Asked, ran: Ran, out: Path) -> Record:
    """What there is to be kept of a part that has come to its end."""
    part = ran.planned.part
    together = zip(ran.scenarios, ran.runs, strict=True)
    found = [(scenario.value, Folder(run.place).record()) for scenario, runs in together for run in runs]
    first, looks = found[0][1], _looks(len(found))
    minutes = minutes_of(part.name, out)
    return {
        "about": {
            "versions": first["versions"],
            "commit": first["commit"],
            "machine": first.get("machine", "unknown"),
            "scale": asked.scale,
            "stands_in": first["spec"]["data"] if ran.planned.embedded else None,
            "minutes": None if minutes is None else round(minutes, 2),
            "figures": LAST_FIFTH,
        },
        "part": part.name,
        "metric": first["metric"],
        "vary": ran.planned.vary.model_dump() if ran.planned.vary else None,
        "comparison": ran.scenarios[0].comparison.model_dump(mode="json")
        | {key: first["spec"][key] for key in HOW_COMPUTED},
        "trials": _trials(out / part.name / TUNED / "trials.json"),
        "runs": [_run(part, value, record, looks) for value, record in found],
    }


def _trials(path: Path) -> list[Record] | None:
    """What was tried first, and what validation clients had then; nothing if nothing was to be chosen."""
    if not path.exists():
        return None
    return [{key: each[key] for key in ("method", "point", "validation")} for each in read_json(path)]


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Replaces a record: a line for each entry, and for each run."""
    lines = [f" {json.dumps(key)}: {_json(value)}" for key, value in record.items() if key != "runs"]
    runs = ",\n".join(f"  {_json(run)}" for run in record["runs"])
    content = "{\n" + ",\n".join([*lines, f' "runs": [\n{runs}\n ]']) + "\n}\n"
    write_bytes(path, content.encode())


def read_record(path: Path) -> Record:
    """A record that was written."""
    found: Record = read_json(path)
    return found


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _looks(runs: int) -> int:
    """How many looks a curve may have, if there are so many of them."""
    return max(10, min(LOOKS, NUMBERS // (runs * (1 + len(COLUMNS)))))


def _run(part: Part, value: Scalar | None, record: Mapping[str, Any], looks: int) -> Record:
    spec, finished = record["spec"], record["status"] == "finished"
    statistic = "macro" if part.statistic == "macro" else "micro"
    seen = {column: _seen(record, column, statistic) for column in COLUMNS}
    chosen = {key: record["hyper"][key] for key in spec["chosen"]}
    return {
        "name": record["name"],
        "seed": spec["seed"],
        **({} if value is None else {"value": value}),
        "status": record["status"],
        "rounds": record["rounds"][-1]["round"] if record["rounds"] else 0,
        "cost": {key: _short(record["cost"].get(key)) for key in COSTS},
        **({"chosen": chosen} if chosen else {}),
        **(_figures(record) if finished else {"problem": record["problem"]}),
        **({"pace": _pace(part, record, seen[part.column])} if finished and "speed" in part.show else {}),
        "curve": _curve(seen, looks),
    }


def _figures(record: Mapping[str, Any]) -> Record:
    metric, found = record["metric"]["name"], {}
    for column in COLUMNS:
        group, when = column.split()
        if group in record["summary"]:
            mean, last = record["window"]["mean"][group][when], record["summary"][group][when]
            figures = {"micro": mean["acc_micro"], "macro": mean[metric]}
            figures |= {"std": last["std"], "worst tenth": last["worst_tenth"]}
            found[column] = {name: _short(figure) for name, figure in figures.items()}
    return found


def _seen(record: Mapping[str, Any], column: str, statistic: str) -> list[tuple[int, float]]:
    """The rounds at which was looked, and the figure there."""
    group, when = column.split()
    name = record["metric"]["name"] if statistic == "macro" else "acc_micro"
    looks = [entry for entry in record["rounds"] if group in (entry["scores"] or {})]
    values = ((look["round"], look["scores"][group][when][name]) for look in looks)
    return [(number, value) for number, value in values if value is not None]


def _pace(part: Part, record: Mapping[str, Any], seen: Sequence[tuple[int, float]]) -> Record:
    """The rounds until the figure, as a rolling mean, is at nine tenths of its end, and until it is at the target."""
    higher = bool(record["metric"]["higher_is_better"])
    at, values = [number for number, _ in seen], [value for _, value in seen]
    smooth = rolling(at, values, max(1, record["spec"]["rounds"] // ROLLED))
    there = None if part.target is None else first_reaching(at, smooth, part.target, higher)
    return {"rise time": rise_time(at, smooth) if higher else None, "rounds to target": there}


def _curve(seen: Mapping[str, Sequence[tuple[int, float]]], looks: int) -> Record:
    """What was seen, as columns, thinned out; the last look always stays."""
    there = {column: dict(values) for column, values in seen.items() if values}
    rounds = sorted({number for values in there.values() for number in values})
    places = np.linspace(0, len(rounds) - 1, min(looks, len(rounds))).astype(int)
    kept = [rounds[place] for place in places]
    columns = {column: [_short(values.get(number), 4) for number in kept] for column, values in there.items()}
    return {"round": kept, **columns} if kept else {}


def _short(value: float | None, digits: int = 6) -> float | None:
    return round(value, digits) if isinstance(value, float) else value
