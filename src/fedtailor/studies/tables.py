"""The tables of a part, from its record: accuracy, sweep, speed, overview, each as a heading and rows of text."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import mean, stdev
from typing import Any, NamedTuple

from fedtailor.studies.config import COLUMNS, Part, Scalar
from fedtailor.training.command_lines import format_value

Record = Mapping[str, Any]
Run = Mapping[str, Any]
MISSING = "-"
ONE_SPLIT_NOTE = "±: over seeds of first weights, cohorts, batches and clients sampled for evaluation, on one split of the data."


class TextTable(NamedTuple):
    """A table: method names in the first column, figures in all others but those that say what varied."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def build_tables(record: Record, part: Part) -> dict[str, TextTable]:
    """The tables that a part shows, by their names."""
    return {name: _BUILDERS[name](record, part) for name in part.tables}


def make_title(record: Record, part: Part) -> str:
    """Name a part; one whose data were replaced begins with the name of what was used."""
    used = record["about"].get("stands_in")
    return f"{used} in place of: {part.title}" if used else part.title


def render_markdown(table: TextTable) -> str:
    """Write a table in Markdown, with what ± leaves out below it."""
    rule = "|---|" + "---:|" * (len(table.header) - 1)
    lines = [
        _format_row(table.header),
        rule,
        *(_format_row((_format_method(name), *cells)) for name, *cells in table.rows),
    ]
    if any("±" in cell for row in table.rows for cell in row):
        lines += ["", ONE_SPLIT_NOTE]
    return "\n".join(lines)


def _format_method(name: str) -> str:
    method, comma, rest = name.partition(",")
    return f"`{method}`{comma}{rest}"


def format_over_seeds(values: Sequence[float], to_text: Callable[[float], str]) -> str:
    """The mean, with the sample standard deviation where there are several."""
    if not values:
        return MISSING
    return to_text(mean(values)) + (f" ± {to_text(stdev(values))}" if len(values) > 1 else "")


def is_percent(record: Record) -> bool:
    """Whether figures are shares."""
    return record["metric"]["name"] in ("accuracy", "f1")


def group_runs(record: Record) -> dict[tuple[str, Scalar | None], list[Run]]:
    """The runs that differ in their seed alone, by method and varied value."""
    found: dict[tuple[str, Scalar | None], list[Run]] = {}
    for run in record["runs"]:
        found.setdefault((run["name"], run.get("value")), []).append(run)
    return found


def list_values(record: Record) -> list[Scalar]:
    """The values that something was run with."""
    return list(record["vary"]["values"]) if record["vary"] else []


def collect_figures(runs: Sequence[Run], column: str, statistic: str) -> list[float]:
    """The figure of each run that has one."""
    found = [run[column][statistic] for run in runs if column in run]
    return [value for value in found if value is not None]


def _build_accuracy_table(record: Record, part: Part) -> TextTable:
    """A row for each method, and value where something varied; a column for each group, before and after."""
    columns = [column for column in COLUMNS if any(column in run for run in record["runs"])]
    published_columns = _list_published_columns(record, part, columns)
    body = []
    for (name, value), runs in group_runs(record).items():
        own = [_format_cell(record, runs, column, part.statistic) for column in columns]
        more = [
            _format_published(_get_published(record, part, name, value, column))
            for column in published_columns
        ]
        body.append((name, *_format_varied_value(value), _format_seeds(runs), *own, *more))
    varied = (record["vary"]["key"],) if record["vary"] else ()
    headings = (
        ("published",)
        if published_columns == [part.column]
        else (f"{column}, published" for column in published_columns)
    )
    return TextTable(("method", *varied, "seeds", *columns, *headings), body)


def _build_sweep_table(record: Record, part: Part) -> TextTable:
    """A row for each method, a column for each value; published figures in a row of their own."""
    lines, values, body = group_runs(record), list_values(record), []
    for name in dict.fromkeys(name for name, _ in lines):
        own = [lines.get((name, value), []) for value in values]
        cells = (
            _format_cell(record, runs, part.column, part.statistic) + _format_diverged(runs)
            for runs in own
        )
        body.append((name, *cells))
        published = [_get_published(record, part, name, value, part.column) for value in values]
        if any(number is not None for number in published):
            body.append(
                (f"{name}, published", *(_format_published(number) for number in published))
            )
    return TextTable(
        (f"{part.headline}, {record['vary']['key']} =", *map(format_value, values)), body
    )


def _build_speed_table(record: Record, part: Part) -> TextTable:
    """A row for each method: how many rounds it took, and what a round cost."""
    to_target = () if part.target is None else (f"rounds to {_format_figure(record, part.target)}",)
    varied = (record["vary"]["key"],) if record["vary"] else ()
    body = []
    for (name, value), runs in group_runs(record).items():
        paces = [run["convergence"] for run in runs if "convergence" in run]
        cells = [_format_rounds_reached(paces, "rounds to target", runs)] if to_target else []
        cells += [
            _format_rounds_reached(paces, "rise time", runs),
            _format_per_round(runs, "gradients", 0),
            _format_per_round(runs, "seconds", 3),
        ]
        body.append((name, *_format_varied_value(value), _format_seeds(runs), *cells))
    every = record["comparison"]["evaluate_every"]
    rise_time = f"rise time, of looks {every} rounds apart" if every else "rise time"
    head = (
        "method",
        *varied,
        "seeds",
        *to_target,
        rise_time,
        "client gradients a round",
        "s a round",
    )
    return TextTable(head, body)


def _overview(record: Record, part: Part) -> TextTable:
    """A row for each method, the best first: every group, the clients that fare worst, and what was sent in all."""
    shown = [column for column in COLUMNS if any(column in run for run in record["runs"])]
    varied = (record["vary"]["key"],) if record["vary"] else ()
    sign = 1 if record["metric"]["higher_is_better"] else -1

    def order(line: tuple[tuple[str, Scalar | None], list[Run]]) -> float:
        found = collect_figures(line[1], part.column, part.statistic)
        return -sign * mean(found) if found else inf

    body = []
    for (name, value), runs in sorted(group_runs(record).items(), key=order):
        own = [_format_cell(record, runs, column, part.statistic) for column in shown]
        worst = _format_cell(record, runs, part.column, "worst tenth")
        body.append(
            (name, *_format_varied_value(value), _format_seeds(runs), *own, worst, _megabytes(runs))
        )
    return TextTable(
        ("method", *varied, "seeds", *shown, f"{part.column}, worst tenth", "MB sent"), body
    )


_BUILDERS: dict[str, Callable[[Record, Part], TextTable]] = {
    "accuracy": _build_accuracy_table,
    "sweep": _build_sweep_table,
    "speed": _build_speed_table,
    "overview": _overview,
}


def _format_cell(record: Record, runs: Sequence[Run], column: str, statistic: str) -> str:
    """A figure over the seeds that came to their end."""
    if runs and all(run["status"] == "diverged" for run in runs):
        return "diverged"
    return format_over_seeds(
        collect_figures(runs, column, statistic), lambda value: _format_figure(record, value)
    )


def _format_seeds(runs: Sequence[Run]) -> str:
    return f"{len(runs)}{_format_diverged(runs)}"


def _format_diverged(runs: Sequence[Run]) -> str:
    """How many of several runs diverged, where the others did not."""
    diverged = sum(run["status"] == "diverged" for run in runs)
    return f" ({diverged} diverged)" if 0 < diverged < len(runs) else ""


def _format_rounds_reached(
    paces: Sequence[Mapping[str, int | None]], key: str, runs: Sequence[Run]
) -> str:
    """Rounds until something was so, over seeds; said where it never was."""
    if not paces:
        return "diverged" if any(run["status"] == "diverged" for run in runs) else MISSING
    round_counts = [pace[key] for pace in paces]
    reached = [float(count) for count in round_counts if count is not None]
    if not reached:
        return "not reached" if key == "rounds to target" else MISSING
    text = format_over_seeds(reached, lambda value: f"{value:.0f}")
    return (
        text
        if len(reached) == len(round_counts)
        else f"{text} ({len(round_counts) - len(reached)} of {len(round_counts)} never)"
    )


def _format_per_round(runs: Sequence[Run], key: str, digits: int) -> str:
    found = [
        run["cost"][key] / run["rounds"]
        for run in runs
        if run["rounds"] and run["cost"].get(key) is not None
    ]
    return f"{mean(found):.{digits}f}" if found else MISSING


def _megabytes(runs: Sequence[Run]) -> str:
    """What went down and up in all rounds of the runs that came to their end."""
    costs = [
        run["cost"] for run in runs if run["status"] == "finished" and "bytes_down" in run["cost"]
    ]
    return (
        f"{mean(cost['bytes_down'] + cost['bytes_up'] for cost in costs) / 1e6:.0f}"
        if costs
        else MISSING
    )


def _list_published_columns(record: Record, part: Part, columns: Sequence[str]) -> list[str]:
    """The columns of which published figures are known; those of other data are not beside those that stand in."""
    if record["about"].get("stands_in") or not part.published:
        return []
    named_columns = {
        column
        for numbers in part.published.values()
        if isinstance(numbers, dict)
        for column in numbers
    }
    plain_columns = (
        {part.column}
        if any(not isinstance(numbers, dict) for numbers in part.published.values())
        else set()
    )
    return [column for column in columns if column in named_columns | plain_columns]


def _get_published(
    record: Record, part: Part, name: str, value: Scalar | None, column: str
) -> float | None:
    numbers = part.published.get(name)
    if isinstance(numbers, dict):
        return numbers.get(column)
    if numbers is None or column != part.column or record["about"].get("stands_in"):
        return None
    if isinstance(numbers, list):
        known = dict(zip(part.vary.values if part.vary else (), numbers, strict=True))
        return known.get(value) if value is not None else None
    return numbers


def _format_published(number: float | None) -> str:
    return MISSING if number is None or number != number else f"{number:.2f}"


def _format_figure(record: Record, value: float) -> str:
    return f"{100 * value:.2f}" if is_percent(record) else f"{value:.4f}"


def _format_varied_value(value: Scalar | None) -> tuple[str, ...]:
    return () if value is None else (format_value(value),)


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
