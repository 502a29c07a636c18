"""The tables of a part, made from its record: accuracy, sweep, speed and overview."""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isnan
from statistics import mean, stdev
from typing import NamedTuple

from fedtailor.errors import join_items
from fedtailor.reporting.results import describe_group, format_distance
from fedtailor.studies.client_scores import ClientScores
from fedtailor.studies.config import COLUMNS, Part, Scalar
from fedtailor.studies.record import PartRecord, RunSummary
from fedtailor.studies.standings import compare_runs
from fedtailor.training.shell_commands import format_value

STANDING_TABLES = {"accuracy", "overview"}
"""Tables that say how far methods are behind the best."""
MISSING = "-"
"""The cell of a figure that does not exist."""
ONE_SPLIT_NOTE = (
    "±: over seeds of first weights, cohorts, batches and clients sampled for evaluation, "
    "on one split of the data."
)
OWN_SPLITS_NOTE = (
    "±: over seeds, each of which draws a split of the data, server data, first weights, cohorts, "
    "batches and clients sampled for evaluation."
)

RunKey = tuple[str, Scalar | None]
"""What runs that differ in their seed alone have in common: their method and varied value."""


class TextTable(NamedTuple):
    """A table of text with method names in its first column."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    spread_note: str = ONE_SPLIT_NOTE  # what ± is over
    notes: tuple[str, ...] = ()  # sentences below it


def build_tables(
    record: PartRecord, part: Part, scores: ClientScores | None = None
) -> dict[str, TextTable]:
    """Return the tables that a part shows, by name.

    Args:
        record: The record of the part.
        part: The part.
        scores: The scores of its clients, without which no table says which methods are best.
    """
    spread_note = ONE_SPLIT_NOTE if _has_one_split(record) else OWN_SPLITS_NOTE
    tables: dict[str, TextTable] = {}
    for name in part.tables:
        tables[name] = _BUILDERS[name](record, part)._replace(spread_note=spread_note)
    if scores is not None:
        for shown in STANDING_TABLES & tables.keys():
            tables[shown] = _add_standings(tables[shown], record, part, scores)
    return tables


def _add_standings(
    table: TextTable, record: PartRecord, part: Part, scores: ClientScores
) -> TextTable:
    """Return a table with a column of the distance to the best method, and the words for it."""
    distances: dict[tuple[str, ...], str] = {}
    notes = []
    values: list[Scalar | None] = [*list_values(record)] or [None]
    for value in values:
        found = compare_runs(record, part, scores, value)
        for name, standing in found.standings.items():
            key = (name,) if value is None else (name, format_value(value))
            distances[key] = format_distance(standing, partial(_format_figure, record))
        num_seeds = len({run.seed for run in record.runs})
        sentences = describe_group(found, partial(_format_figure, record), num_seeds)
        if sentences and value is not None:
            sentences[0] = f"{get_varied_key(record)} = {format_value(value)}: {sentences[0]}"
        if sentences:
            notes.append(" ".join(sentences))
    num_key_cells = 1 if record.vary is None else 2
    rows = [(*row, distances.get(row[:num_key_cells], "") or MISSING) for row in table.rows]
    header = (*table.header, f"{part.column}, behind the best")
    return table._replace(header=header, rows=rows, notes=tuple(notes))


def make_title(record: PartRecord, part: Part) -> str:
    """Return the title of a part, which begins with the data used if that is not its own."""
    used_data = record.about.stands_in
    return f"{used_data} in place of: {part.title}" if used_data else part.title


def describe_equal_parts(records: Sequence[PartRecord]) -> list[str]:
    """Return a sentence on parts whose runs are the same, as the same data stand in for theirs."""
    parts_by_runs: dict[str, list[str]] = {}
    for record in records:
        if record.about.stands_in:
            runs = record.comparison.model_dump_json() + str(record.vary)
            parts_by_runs.setdefault(runs, []).append(record.part)
    return [
        f"{join_items(parts)} are the same runs here, as the same data stand in for theirs."
        for parts in parts_by_runs.values()
        if len(parts) > 1
    ]


def render_markdown(table: TextTable) -> str:
    """Return a table in Markdown, with a note below if it has spreads over seeds."""
    rule = "|---|" + "---:|" * (len(table.header) - 1)
    lines = [_format_row(table.header), rule]
    for name, *cells in table.rows:
        lines.append(_format_row((_format_method(name), *cells)))
    has_spread = any("±" in cell for row in table.rows for cell in row)
    if has_spread:
        lines += ["", table.spread_note]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines)


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_method(name: str) -> str:
    """Return the name of a row with its method set as code, as in "`fedavg`, published"."""
    method, comma, rest = name.partition(",")
    return f"`{method}`{comma}{rest}"


# What tables and charts read from a record


def group_runs(record: PartRecord) -> dict[RunKey, list[RunSummary]]:
    """Return the runs that differ in their seed alone, by method and varied value."""
    runs: dict[RunKey, list[RunSummary]] = {}
    for run in record.runs:
        runs.setdefault((run.name, run.value), []).append(run)
    return runs


def _has_one_split(record: PartRecord) -> bool:
    """Return whether runs that differ in their seed alone have the same split of the data."""
    data_seeds = [{run.data_seed for run in runs} for runs in group_runs(record).values()]
    return all(len(seeds) == 1 for seeds in data_seeds)


def list_values(record: PartRecord) -> list[Scalar]:
    """Return the varied values; none if nothing varies."""
    return list(record.vary.values) if record.vary else []


def get_varied_key(record: PartRecord) -> str:
    """Return the key that varies; "" if nothing does."""
    return record.vary.key if record.vary else ""


def collect_figures(runs: Sequence[RunSummary], column: str, statistic: str) -> list[float]:
    """Return a statistic of each run; runs without one are left out.

    Args:
        runs: Runs that differ in their seed alone.
        column: One of `COLUMNS`.
        statistic: One of `STATISTICS`.
    """
    figures = [
        run.figures[column].get_statistic(statistic) for run in runs if column in run.figures
    ]
    return [figure for figure in figures if figure is not None]


# The tables


def _build_accuracy_table(record: PartRecord, part: Part) -> TextTable:
    """Return a row for each method and value; columns are groups, and published figures of them."""
    columns = _list_columns(record)
    published_columns = _list_published_columns(record, part, columns)
    rows = []
    for (name, value), runs in group_runs(record).items():
        cells = [_format_cell(record, runs, column, part.statistic) for column in columns]
        for column in published_columns:
            figure = _get_published(record, part, name, value, column)
            cells.append(_format_published(figure))
        rows.append((*_format_run_key(name, value, runs), *cells))
    published_headings = [f"{column}, published" for column in published_columns]
    if published_columns == [part.column]:
        published_headings = ["published"]
    return TextTable((*_list_key_headings(record), *columns, *published_headings), rows)


def _build_sweep_table(record: PartRecord, part: Part) -> TextTable:
    """Return a row for each method, and one for its published figures; columns are values."""
    runs_by_key = group_runs(record)
    values = list_values(record)
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for name, _ in runs_by_key):
        cells = []
        for value in values:
            runs = runs_by_key.get((name, value), [])
            figure = _format_cell(record, runs, part.column, part.statistic)
            cells.append(figure + _format_diverged(runs))
        rows.append((name, *cells))
        published = [_get_published(record, part, name, value, part.column) for value in values]
        if any(figure is not None for figure in published):
            published_cells = [_format_published(figure) for figure in published]
            rows.append((f"{name}, published", *published_cells))
    first_heading = f"{part.headline}, {get_varied_key(record)} ="
    return TextTable((first_heading, *map(format_value, values)), rows)


def _build_speed_table(record: PartRecord, part: Part) -> TextTable:
    """Return a row for each method and value: how many rounds it took, and the cost of a round."""
    rows = []
    for (name, value), runs in group_runs(record).items():
        speeds = [run.speed for run in runs if run.speed]
        cells = []
        if part.target is not None:
            rounds_to_target = [speed.rounds_to_target for speed in speeds]
            cells.append(_format_rounds_reached(rounds_to_target, runs, "not reached"))
        rise_times = [speed.rise_time for speed in speeds]
        cells += [
            _format_rounds_reached(rise_times, runs, MISSING),
            _format_per_round(runs, "gradients", 0),
            _format_per_round(runs, "seconds", 3),
        ]
        rows.append((*_format_run_key(name, value, runs), *cells))
    headings = list(_list_key_headings(record))
    if part.target is not None:
        headings.append(f"rounds to {_format_figure(record, part.target)}")
    rise_time_heading = "rise time"
    eval_interval = record.comparison.evaluate_every
    if eval_interval:
        rise_time_heading += f", of evaluations {eval_interval} rounds apart"
    headings += [rise_time_heading, "client gradients a round", "s a round"]
    return TextTable(tuple(headings), rows)


def _build_overview_table(record: PartRecord, part: Part) -> TextTable:
    """Return a row for each method and value, the best first.

    Columns are groups, the worst tenth of clients, and what was sent in all rounds.
    """
    columns = _list_columns(record)

    def rank(item: tuple[RunKey, list[RunSummary]]) -> float:
        _, runs = item
        figures = collect_figures(runs, part.column, part.statistic)
        if not figures:
            return inf
        return -mean(figures) if record.metric.higher_is_better else mean(figures)

    rows = []
    for (name, value), runs in sorted(group_runs(record).items(), key=rank):
        cells = [_format_cell(record, runs, column, part.statistic) for column in columns]
        cells.append(_format_cell(record, runs, part.column, "worst tenth"))
        cells.append(_format_megabytes(runs))
        rows.append((*_format_run_key(name, value, runs), *cells))
    headings = (*_list_key_headings(record), *columns, f"{part.column}, worst tenth", "MB sent")
    return TextTable(headings, rows)


_BUILDERS: dict[str, Callable[[PartRecord, Part], TextTable]] = {
    "accuracy": _build_accuracy_table,
    "sweep": _build_sweep_table,
    "speed": _build_speed_table,
    "overview": _build_overview_table,
}


def _list_columns(record: PartRecord) -> list[str]:
    """Return the columns that any run has figures of."""
    return [column for column in COLUMNS if any(column in run.figures for run in record.runs)]


def _list_key_headings(record: PartRecord) -> tuple[str, ...]:
    """Return the headings of the cells that say which runs a row is of."""
    if record.vary is None:
        return ("method", "seeds")
    return ("method", record.vary.key, "seeds")


def _format_run_key(name: str, value: Scalar | None, runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """Return the cells that say which runs a row is of."""
    seeds = f"{len(runs)}{_format_diverged(runs)}"
    if value is None:
        return (name, seeds)
    return (name, format_value(value), seeds)


# Published figures


def _list_published_columns(record: PartRecord, part: Part, columns: Sequence[str]) -> list[str]:
    """Return the columns that have published figures; none if other data was used."""
    if record.about.stands_in:
        return []
    published_columns = set()
    for figures in part.published.values():
        if isinstance(figures, dict):
            published_columns |= set(figures)
        else:
            published_columns.add(part.column)
    return [column for column in columns if column in published_columns]


def _get_published(
    record: PartRecord, part: Part, name: str, value: Scalar | None, column: str
) -> float | None:
    """Return the published figure of a method at a varied value, or None if there is none."""
    published = part.published.get(name)
    if isinstance(published, dict):
        return published.get(column)
    if published is None or column != part.column or record.about.stands_in:
        return None
    if isinstance(published, list):
        values = part.vary.values if part.vary else ()
        figures = dict(zip(values, published, strict=True))
        return None if value is None else figures.get(value)
    return published


def _format_published(figure: float | None) -> str:
    if figure is None or isnan(figure):
        return MISSING
    return f"{figure:.2f}"


# Cells


def format_over_seeds(values: Sequence[float], to_text: Callable[[float], str]) -> str:
    """Return the mean of values, and their sample standard deviation if there are several."""
    if not values:
        return MISSING
    text = to_text(mean(values))
    if len(values) > 1:
        text += f" ± {to_text(stdev(values))}"
    return text


def _format_cell(
    record: PartRecord, runs: Sequence[RunSummary], column: str, statistic: str
) -> str:
    """Return a statistic over the seeds that finished; "diverged" if none did."""
    if runs and all(run.status == "diverged" for run in runs):
        return "diverged"
    figures = collect_figures(runs, column, statistic)
    return format_over_seeds(figures, lambda figure: _format_figure(record, figure))


def _format_figure(record: PartRecord, figure: float) -> str:
    return f"{100 * figure:.2f}" if record.metric.is_percent else f"{figure:.4f}"


def _format_diverged(runs: Sequence[RunSummary]) -> str:
    """Return how many of the runs diverged; "" if none did, or all."""
    num_diverged = sum(run.status == "diverged" for run in runs)
    return f" ({num_diverged} diverged)" if 0 < num_diverged < len(runs) else ""


def _format_rounds_reached(
    round_counts: Sequence[int | None], runs: Sequence[RunSummary], never: str
) -> str:
    """Return the rounds until a level was reached, over seeds; `never` if no run reached it.

    Args:
        round_counts: The rounds of each finished run; None if it never reached the level.
        runs: All runs.
        never: Text for runs none of which reached the level.
    """
    if not round_counts:
        return "diverged" if any(run.status == "diverged" for run in runs) else MISSING
    reached = [float(count) for count in round_counts if count is not None]
    if not reached:
        return never
    text = format_over_seeds(reached, lambda count: f"{count:.0f}")
    num_missing = len(round_counts) - len(reached)
    if num_missing:
        text += f" ({num_missing} of {len(round_counts)} never)"
    return text


def _format_per_round(runs: Sequence[RunSummary], field: str, num_digits: int) -> str:
    """Return a field of the cost per round, as the mean over runs."""
    costs = [(getattr(run.cost, field), run.rounds) for run in runs]
    per_round = [cost / rounds for cost, rounds in costs if cost is not None and rounds]
    return f"{mean(per_round):.{num_digits}f}" if per_round else MISSING


def _format_megabytes(runs: Sequence[RunSummary]) -> str:
    """Return the bytes down and up in all rounds of the finished runs, in MB."""
    num_bytes = []
    for run in runs:
        bytes_down = run.cost.bytes_down
        bytes_up = run.cost.bytes_up
        if run.status == "finished" and bytes_down is not None and bytes_up is not None:
            num_bytes.append(bytes_down + bytes_up)
    return f"{mean(num_bytes) / 1e6:.0f}" if num_bytes else MISSING
