"""The table of figures."""

from collections.abc import Sequence
from functools import partial

from fedtailor.run.record import have_same_data
from fedtailor.run.report.figures import SENT, Column, Figure, Row, columns, costs_of, groups_of, rows
from fedtailor.run.report.formats import decimals_of, number, unit_of
from fedtailor.run.report.grouping import Line, Metric, runs_of
from fedtailor.run.report.pieces import swatch, text

CAPTION = (
    "Shown: {unit} on test examples, {direction}. Large: mean over clients, averaged over seeds. Small: standard "
    "deviation over clients{seeds}. Worst tenth: mean over the tenth of the clients that fare worst, after "
    "personalising where there is such a figure. local: clients who took part in training; new: clients never seen. "
    "Means are over the looks in the last fifth of the rounds, everything else is of the last round; costs are of "
    "training."
)
ONE_SPLIT = " (of first weights, cohorts and batches, on one split of the data)"


def table(lines: Sequence[Line], metric: Metric) -> str:
    """The sortable table."""
    made = rows(lines, metric)
    shown = [_with_unit(column, made) for column in columns(groups_of(lines), metric, _costs(lines))]
    return grid("figures", "Table of figures", made, shown, lines) + (
        f'<p class="caption">{text(_caption(lines, metric))}</p>'
    )


def grid(name: str, what: str, made: Sequence[Row], shown: Sequence[Column], lines: Sequence[Line]) -> str:
    """Rows under columns, which a press on their headings sorts by."""
    cells = {column.key: _cells(made, column, column == _first_of(shown, column.group)) for column in shown}
    body = "".join(
        f'<tr><th scope="row" data-value="{text(row.label)}">{swatch(row.line)}<span>{text(row.label)}</span></th>'
        f"{''.join(cells[column.key][place] for column in shown)}</tr>"
        for place, row in enumerate(made)
    )
    return (
        f'<div class="scroll" role="region" aria-label="{what}" tabindex="0"><table id="{name}">'
        f"<thead>{_head(shown, lines)}</thead><tbody>{body}</tbody></table></div>"
    )


def decimals_in(made: Sequence[Row], column: Column) -> int:
    """One for %; else as many as four digits of a score or three of a cost need, unless the column says how many."""
    if column.decimals is not None:
        return column.decimals
    if column.group != "cost" and column.scale != 1:
        return 1
    largest = max((abs(row.cells[column.key].mean) for row in made if column.key in row.cells), default=0.0)
    return max(decimals_of(largest / column.scale, 3 if column.group == "cost" else 4), 1)


def _costs(lines: Sequence[Line]) -> list[str]:
    """Clients' work is in floating-point operations or, where they were not counted, in steps."""
    known = costs_of(lines)
    return [key for key in known if key != "steps" or "flops" not in known]


def _with_unit(column: Column, made: Sequence[Row]) -> Column:
    """A column of costs with a heading and the unit that fits the largest; down and up have the same."""
    if column.group != "cost" or column.key in ("steps", "seconds"):
        return column._replace(heading={"steps": "client steps"}.get(column.key, column.heading))
    kind, keys = ("mb", SENT) if column.key in SENT else (column.key, (column.key,))
    scale, unit = unit_of(kind, [row.cells[key].mean for row in made for key in keys])
    return column._replace(heading=f"{unit} {column.key}" if kind == "mb" else f"client {unit}", scale=scale)


def _head(shown: Sequence[Column], lines: Sequence[Line]) -> str:
    people = lines[0].runs[0]["data"]["groups"]
    groups = dict.fromkeys(column.group for column in shown)
    spans = [(f"{group} clients ({len(people[group]):,})" if group in people else group, group) for group in groups]
    top = "".join(
        f'<th scope="colgroup" class="first" colspan="{sum(c.group == group for c in shown)}">{text(name)}</th>'
        for name, group in spans
    )
    button = '<button type="button" data-first="{first}">{name}</button>'
    sorting = f'<th scope="col" aria-sort="none" class="{{kind}}">{button}</th>'
    names = "".join(
        sorting.format(
            kind="first" if c == _first_of(shown, c.group) else "",
            first="descending" if c.higher_is_better else "ascending",
            name=text(c.heading),
        )
        for c in shown
    )
    method = sorting.format(kind="method", first="ascending", name="method")
    return f'<tr class="groups"><td></td>{top}</tr><tr>{method}{names}</tr>'


def _first_of(shown: Sequence[Column], group: str) -> Column:
    return next(column for column in shown if column.group == group)


def _cells(made: Sequence[Row], column: Column, first: bool) -> list[str]:
    """A column's cells from top to bottom."""
    decimals = decimals_in(made, column)
    return [_cell(row.cells.get(column.key), column, decimals, first) for row in made]


def _cell(figure: Figure | None, column: Column, decimals: int, first: bool) -> str:
    classes = "first" if first else ""
    if figure is None:
        return f'<td class="{classes}" data-value=""><span class="none">\N{EN DASH}</span></td>'
    show = partial(_shown, scale=column.scale, decimals=decimals)
    spread = "" if figure.over_clients is None else f" <small>\N{PLUS-MINUS SIGN} {show(figure.over_clients)}</small>"
    if column.group != "cost" and figure.over_seeds is not None:
        spread += f'<small class="seeds">seeds \N{PLUS-MINUS SIGN} {show(figure.over_seeds)}</small>'
    return f'<td class="{classes}" data-value="{figure.mean!r}"><b>{show(figure.mean)}</b>{spread}</td>'


def _shown(value: float, scale: float, decimals: int) -> str:
    return number(value / scale, decimals)


def _caption(lines: Sequence[Line], metric: Metric) -> str:
    several = any(len(line.runs) > 1 for line in lines)
    direction = "higher is better" if metric.higher_is_better else "lower is better"
    seeds = ", and over seeds" if several else ""
    if several and have_same_data([run for _, run in runs_of(lines)]):
        seeds += ONE_SPLIT
    return CAPTION.format(unit=metric.unit, direction=direction, seeds=seeds)
