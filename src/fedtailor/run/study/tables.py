"""The tables of a part, from its record: accuracy, sweep, speed, overview, each as a heading and rows of text."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import mean, stdev
from typing import Any, NamedTuple

from fedtailor.run.commands import word_of
from fedtailor.run.study.reading import COLUMNS, Part, Scalar

Record = Mapping[str, Any]
Run = Mapping[str, Any]
NOTHING = "-"
ONE_SPLIT = (
    "±: over seeds of first weights, cohorts, batches and clients sampled for evaluation, on one split of the data."
)


class Rows(NamedTuple):
    """A table: method names in the first column, figures in all others but those that say what varied."""

    head: tuple[str, ...]
    body: list[tuple[str, ...]]


def tables(record: Record, part: Part) -> dict[str, Rows]:
    """The tables that a part shows, by their names."""
    return {name: _MADE[name](record, part) for name in part.show}


def title_of(record: Record, part: Part) -> str:
    """Name a part; one whose data were replaced begins with the name of what was used."""
    used = record["about"].get("stands_in")
    return f"{used} in place of: {part.title}" if used else part.title


def markdown(rows: Rows) -> str:
    """Write a table in Markdown, with what ± leaves out below it."""
    rule = "|---|" + "---:|" * (len(rows.head) - 1)
    lines = [_line(rows.head), rule, *(_line((_named(name), *cells)) for name, *cells in rows.body)]
    if any("±" in cell for row in rows.body for cell in row):
        lines += ["", ONE_SPLIT]
    return "\n".join(lines)


def _named(name: str) -> str:
    method, comma, rest = name.partition(",")
    return f"`{method}`{comma}{rest}"


def over_seeds(values: Sequence[float], write: Callable[[float], str]) -> str:
    """The mean, with the sample standard deviation where there are several."""
    if not values:
        return NOTHING
    return write(mean(values)) + (f" ± {write(stdev(values))}" if len(values) > 1 else "")


def in_percent(record: Record) -> bool:
    """Whether figures are shares."""
    return record["metric"]["name"] in ("accuracy", "f1")


def by_line(record: Record) -> dict[tuple[str, Scalar | None], list[Run]]:
    """The runs that differ in their seed alone, by method and varied value."""
    found: dict[tuple[str, Scalar | None], list[Run]] = {}
    for run in record["runs"]:
        found.setdefault((run["name"], run.get("value")), []).append(run)
    return found


def values_of(record: Record) -> list[Scalar]:
    """The values that something was run with."""
    return list(record["vary"]["values"]) if record["vary"] else []


def figures(runs: Sequence[Run], column: str, statistic: str) -> list[float]:
    """The figure of each run that has one."""
    found = [run[column][statistic] for run in runs if column in run]
    return [value for value in found if value is not None]


def _accuracy(record: Record, part: Part) -> Rows:
    """A row for each method, and value where something varied; a column for each group, before and after."""
    shown = [column for column in COLUMNS if any(column in run for run in record["runs"])]
    told = _told(record, part, shown)
    body = []
    for (name, value), runs in by_line(record).items():
        own = [_cell(record, runs, column, part.statistic) for column in shown]
        more = [_said(_published(record, part, name, value, column)) for column in told]
        body.append((name, *_value(value), _seeds(runs), *own, *more))
    varied = (record["vary"]["key"],) if record["vary"] else ()
    headings = ("published",) if told == [part.column] else (f"{column}, published" for column in told)
    return Rows(("method", *varied, "seeds", *shown, *headings), body)


def _sweep(record: Record, part: Part) -> Rows:
    """A row for each method, a column for each value; published figures in a row of their own."""
    lines, values, body = by_line(record), values_of(record), []
    for name in dict.fromkeys(name for name, _ in lines):
        own = [lines.get((name, value), []) for value in values]
        cells = (_cell(record, runs, part.column, part.statistic) + _some_diverged(runs) for runs in own)
        body.append((name, *cells))
        published = [_published(record, part, name, value, part.column) for value in values]
        if any(number is not None for number in published):
            body.append((f"{name}, published", *(_said(number) for number in published)))
    return Rows((f"{part.figure}, {record['vary']['key']} =", *map(word_of, values)), body)


def _speed(record: Record, part: Part) -> Rows:
    """A row for each method: how many rounds it took, and what a round cost."""
    to_target = () if part.target is None else (f"rounds to {_written(record, part.target)}",)
    varied = (record["vary"]["key"],) if record["vary"] else ()
    body = []
    for (name, value), runs in by_line(record).items():
        paces = [run["pace"] for run in runs if "pace" in run]
        cells = [_reached(paces, "rounds to target", runs)] if to_target else []
        cells += [_reached(paces, "rise time", runs), _per_round(runs, "gradients", 0), _per_round(runs, "seconds", 3)]
        body.append((name, *_value(value), _seeds(runs), *cells))
    every = record["comparison"]["evaluate_every"]
    rise_time = f"rise time, of looks {every} rounds apart" if every else "rise time"
    head = ("method", *varied, "seeds", *to_target, rise_time, "client gradients a round", "s a round")
    return Rows(head, body)


def _overview(record: Record, part: Part) -> Rows:
    """A row for each method, the best first: every group, the clients that fare worst, and what was sent in all."""
    shown = [column for column in COLUMNS if any(column in run for run in record["runs"])]
    varied = (record["vary"]["key"],) if record["vary"] else ()
    sign = 1 if record["metric"]["higher_is_better"] else -1

    def order(line: tuple[tuple[str, Scalar | None], list[Run]]) -> float:
        found = figures(line[1], part.column, part.statistic)
        return -sign * mean(found) if found else inf

    body = []
    for (name, value), runs in sorted(by_line(record).items(), key=order):
        own = [_cell(record, runs, column, part.statistic) for column in shown]
        worst = _cell(record, runs, part.column, "worst tenth")
        body.append((name, *_value(value), _seeds(runs), *own, worst, _megabytes(runs)))
    return Rows(("method", *varied, "seeds", *shown, f"{part.column}, worst tenth", "MB sent"), body)


_MADE: dict[str, Callable[[Record, Part], Rows]] = {
    "accuracy": _accuracy,
    "sweep": _sweep,
    "speed": _speed,
    "overview": _overview,
}


def _cell(record: Record, runs: Sequence[Run], column: str, statistic: str) -> str:
    """A figure over the seeds that came to their end."""
    if runs and all(run["status"] == "diverged" for run in runs):
        return "diverged"
    return over_seeds(figures(runs, column, statistic), lambda value: _written(record, value))


def _seeds(runs: Sequence[Run]) -> str:
    return f"{len(runs)}{_some_diverged(runs)}"


def _some_diverged(runs: Sequence[Run]) -> str:
    """How many of several runs diverged, where the others did not."""
    diverged = sum(run["status"] == "diverged" for run in runs)
    return f" ({diverged} diverged)" if 0 < diverged < len(runs) else ""


def _reached(paces: Sequence[Mapping[str, int | None]], what: str, runs: Sequence[Run]) -> str:
    """Rounds until something was so, over seeds; said where it never was."""
    if not paces:
        return "diverged" if any(run["status"] == "diverged" for run in runs) else NOTHING
    there = [pace[what] for pace in paces]
    reached = [float(number) for number in there if number is not None]
    if not reached:
        return "not reached" if what == "rounds to target" else NOTHING
    text = over_seeds(reached, lambda value: f"{value:.0f}")
    return text if len(reached) == len(there) else f"{text} ({len(there) - len(reached)} of {len(there)} never)"


def _per_round(runs: Sequence[Run], what: str, digits: int) -> str:
    found = [run["cost"][what] / run["rounds"] for run in runs if run["rounds"] and run["cost"].get(what) is not None]
    return f"{mean(found):.{digits}f}" if found else NOTHING


def _megabytes(runs: Sequence[Run]) -> str:
    """What went down and up in all rounds of the runs that came to their end."""
    costs = [run["cost"] for run in runs if run["status"] == "finished" and "bytes_down" in run["cost"]]
    return f"{mean(cost['bytes_down'] + cost['bytes_up'] for cost in costs) / 1e6:.0f}" if costs else NOTHING


def _told(record: Record, part: Part, shown: Sequence[str]) -> list[str]:
    """The columns of which published figures are known; those of other data are not beside those that stand in."""
    if record["about"].get("stands_in") or not part.published:
        return []
    named = {column for numbers in part.published.values() if isinstance(numbers, dict) for column in numbers}
    plain = {part.column} if any(not isinstance(numbers, dict) for numbers in part.published.values()) else set()
    return [column for column in shown if column in named | plain]


def _published(record: Record, part: Part, name: str, value: Scalar | None, column: str) -> float | None:
    numbers = part.published.get(name)
    if isinstance(numbers, dict):
        return numbers.get(column)
    if numbers is None or column != part.column or record["about"].get("stands_in"):
        return None
    if isinstance(numbers, list):
        known = dict(zip(part.vary.values if part.vary else (), numbers, strict=True))
        return known.get(value) if value is not None else None
    return numbers


def _said(number: float | None) -> str:
    return NOTHING if number is None or number != number else f"{number:.2f}"


def _written(record: Record, value: float) -> str:
    return f"{100 * value:.2f}" if in_percent(record) else f"{value:.4f}"


def _value(value: Scalar | None) -> tuple[str, ...]:
    return () if value is None else (word_of(value),)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
