"""The table of figures, and the best of them as large numbers."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from fedtailor.run.report.figures import Column, Figure, Row, best, columns, groups_of, rows
from fedtailor.run.report.grouping import Line, Metric
from fedtailor.run.report.pieces import swatch, text

CAPTION = (
    "Shown: {unit} on test examples, {direction}. Large: mean over clients, averaged over seeds. Small: standard "
    "deviation over clients{seeds}. Worst tenth: mean over the tenth of the clients that fare worst, after "
    "personalising where there is such a figure. local: clients who took part in training; new: clients never seen. "
    "Seconds are of training. The best figure of a column has a mark."
)


def table(lines: Sequence[Line], metric: Metric) -> str:
    """The sortable table."""
    made = rows(lines, metric)
    groups = groups_of(lines)
    shown = columns(groups, metric)
    decimals = {column.key: _decimals(made, column, metric) for column in shown}
    marked = {column.key: best(made, column) for column in shown}
    body = "".join(
        f'<tr><th scope="row" data-value="{text(row.label)}">{swatch(row.line)}<span>{text(row.label)}</span></th>'
        + "".join(
            _cell(row.cells.get(c.key), c, metric, decimals[c.key], place in marked[c.key], c.key == shown_first)
            for c in shown
            for shown_first in [_first_of(shown, c.group)]
        )
        + "</tr>"
        for place, row in enumerate(made)
    )
    return (
        '<div class="scroll" role="region" aria-label="Table of figures" tabindex="0"><table id="figures">'
        f"<thead>{_head(groups, shown, lines)}</thead><tbody>{body}</tbody></table></div>"
        f'<p class="caption">{text(_caption(lines, metric))}</p>'
    )


def tiles(lines: Sequence[Line], metric: Metric) -> str:
    """The best final figures as large numbers; nothing before a run has finished."""
    made = rows(lines, metric)
    names = {"after": "after personalising", "worst": "worst tenth"}
    shown = [(group, stage) for group in groups_of(lines) for stage in names]
    found = [
        _tile(
            made, Column(f"{group}.{stage}", group, f"{group} clients, {names[stage]}", metric.higher_is_better), metric
        )
        for group, stage in shown
    ]
    return f'<div class="tiles">{"".join(found)}</div>' if any(found) else ""


def number(value: float, decimals: int) -> str:
    """With a thousands separator and a true minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def _tile(made: Sequence[Row], column: Column, metric: Metric) -> str:
    scored = [row for row in made if column.key in row.cells]
    if not scored:
        return ""
    sign = -1 if metric.higher_is_better else 1
    order = sorted(scored, key=lambda row: sign * row.cells[column.key].mean)
    show = partial(_shown, metric=metric, decimals=_decimals(made, column, metric))
    unit = '<span class="unit">%</span>' if metric.percent else ""
    first = order[0].cells[column.key]
    swing = f" ± {show(first.over_seeds)}" if first.over_seeds is not None else ""
    rest = _next(order[1].label, first.mean, order[1].cells[column.key].mean, show) if len(order) > 1 else metric.name
    return (
        f'<div class="tile"><p class="what">{text(column.heading)}</p>'
        f'<p class="big">{show(first.mean)}{unit}<span class="swing">{swing}</span></p>'
        f'<p class="who">{swatch(order[0].line)}{text(order[0].label)}</p><p class="next">{text(rest)}</p></div>'
    )


def _next(label: str, first: float, second: float, show: Callable[[float], str]) -> str:
    return f"tied with {label}" if math.isclose(first, second) else f"next: {label}, {show(second)}"


def _head(groups: Sequence[str], shown: Sequence[Column], lines: Sequence[Line]) -> str:
    data = lines[0].runs[0]["data"]
    spans = [(f"{group} clients ({len(data['groups'].get(group, ())):,})", group) for group in groups]
    top = "".join(
        f'<th scope="colgroup" class="first" colspan="{sum(c.group == group for c in shown)}">{text(name)}</th>'
        for name, group in [*spans, ("cost", "cost")]
    )
    button = '<button type="button" data-first="{first}">{name}</button>'
    sorting = f'<th scope="col" aria-sort="none" class="{{kind}}">{button}</th>'
    names = "".join(
        sorting.format(
            kind="first" if c.key == _first_of(shown, c.group) else "",
            first="descending" if c.higher_is_better else "ascending",
            name=text(c.heading),
        )
        for c in shown
    )
    method = sorting.format(kind="method", first="ascending", name="method")
    return f'<tr class="groups"><td></td>{top}</tr><tr>{method}{names}</tr>'


def _first_of(shown: Sequence[Column], group: str) -> str:
    return next(column.key for column in shown if column.group == group)


def _cell(figure: Figure | None, column: Column, metric: Metric, decimals: int, is_best: bool, first: bool) -> str:
    classes = " ".join(name for name, on in (("best", is_best), ("first", first)) if on)
    if figure is None:
        return f'<td class="{classes}" data-value=""><span class="none">\N{EN DASH}</span></td>'
    scores = column.group != "cost"
    show = partial(_shown, metric=metric if scores else None, decimals=decimals)
    spread = "" if figure.over_clients is None else f" <small>\N{PLUS-MINUS SIGN} {show(figure.over_clients)}</small>"
    if scores and figure.over_seeds is not None:
        spread += f'<small class="seeds">seeds \N{PLUS-MINUS SIGN} {show(figure.over_seeds)}</small>'
    mark = '<span class="unseen"> (best)</span>' if is_best else ""
    return f'<td class="{classes}" data-value="{figure.mean!r}"><b>{show(figure.mean)}</b>{mark}{spread}</td>'


def _shown(value: float, metric: Metric | None, decimals: int) -> str:
    return number(100 * value if metric and metric.percent else value, decimals)


def _decimals(made: Sequence[Row], column: Column, metric: Metric) -> int:
    """As many as four digits of the column's largest figure need; one for %, none for steps."""
    if column.key == "steps":
        return 0
    if column.group != "cost" and metric.percent:
        return 1
    largest = max((abs(row.cells[column.key].mean) for row in made if column.key in row.cells), default=0.0)
    digits = 3 if column.group != "cost" else 2
    return min(max(digits - math.floor(math.log10(largest)), 1), 6) if largest > 0 else 1


def _caption(lines: Sequence[Line], metric: Metric) -> str:
    most = max(len(line.runs) for line in lines)
    seeds = ", and over seeds" if most > 1 else ""
    direction = "higher is better" if metric.higher_is_better else "lower is better"
    return CAPTION.format(unit=metric.unit, direction=direction, seeds=seeds)
