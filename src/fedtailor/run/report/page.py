"""The page: header, table, charts and how to repeat it."""

from collections.abc import Sequence
from string import Template
from typing import Any

from fedtailor.run.report import wording
from fedtailor.run.report.charts import CURVE_GROUPS, MOST_CLIENTS, figure_names, payload
from fedtailor.run.report.figures import groups_of, leader
from fedtailor.run.report.frame import framed, own
from fedtailor.run.report.grouping import Line, Metric, metric_of
from fedtailor.run.report.pieces import chart, chooser, notes, section, swatch, switch, text
from fedtailor.run.report.runs import made_with, repeat
from fedtailor.run.report.table import table, tiles

SCRIPTS = ("scores.js", "costs.js", "data.js")
AFTER_AND_BEFORE = (("after", "after"), ("before", "before"))
PAIRS = "What personalising does"
NO_SCORES = '<p class="empty">Final scores appear here when a run has finished.</p>'


def page(lines: Sequence[Line]) -> str:
    """The whole HTML page."""
    metric = metric_of(lines)
    drawn = payload(lines)
    kind, sentence = wording.status(lines)
    body = Template(own("page.html")).substitute(
        title=text(wording.title(lines)),
        summary=text(wording.summary(lines)),
        kind=kind,
        status=text(sentence),
        notes=notes(wording.notes(lines)),
        tiles=tiles(lines, metric),
        table=table(lines, metric),
        methods=_methods(lines),
        charts=_curves(drawn, lines, metric)
        + _spread(drawn, lines, metric)
        + _pairs(drawn, lines, metric)
        + _costs(drawn),
        data=_data(drawn["data"]),
        repeat=repeat(lines),
        made_with=text(made_with(lines)),
    )
    return framed(wording.title(lines), body, drawn, [own(name) for name in SCRIPTS])


def _methods(lines: Sequence[Line]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="line" value="{number}" checked>{swatch(number)}'
        f"<span>{text(line.label)}</span></label>"
        for number, line in enumerate(lines)
    )
    hidden = " hidden" if len(lines) == 1 else ""
    return f'<fieldset class="methods"{hidden}><legend>Shown in the charts</legend>{boxes}</fieldset>'


def _curves(drawn: dict[str, Any], lines: Sequence[Line], metric: Metric) -> str:
    groups = [group for group in CURVE_GROUPS if any(group in line["curves"] for line in drawn["lines"])]
    controls = (
        switch("curves-group", "Clients", ((group, group) for group in groups))
        + switch("curves-stage", "Personalising", AFTER_AND_BEFORE)
        + switch("curves-figure", "Figure", ((name, name) for name in figure_names(metric)))
        + switch("curves-x", "Against", (("round", "rounds"), ("mb", "MB sent")))
    )
    lead = "Mean over clients in the rounds that were scored."
    if any(len(line.runs) > 1 for line in lines):
        lead += " A line is the mean over seeds, its band the lowest to the highest."
    lead += wording.watched(lines)
    body = chart("curves", 440) if groups else '<p class="empty">No round has been scored yet.</p>'
    return section("curves", "Over rounds", lead, controls if groups else "", body)


def _spread(drawn: dict[str, Any], lines: Sequence[Line], metric: Metric) -> str:
    groups = [group for group in groups_of(lines) if any(group in line["clients"] for line in drawn["lines"])]
    controls = (
        switch("spread-shape", "Shape", (("ecdf", "cumulative"), ("histogram", "histogram"), ("violin", "violin")))
        + switch("spread-stage", "Personalising", AFTER_AND_BEFORE)
        + switch("spread-figure", "Figure", ((name, name) for name in figure_names(metric)))
    )
    lead = "How the final figures differ from client to client, the clients of all seeds together."
    if any(len(run["data"]["clients"]) > MOST_CLIENTS for line in lines for run in line.runs):
        lead += f" Of larger groups {MOST_CLIENTS:,} clients are drawn, evenly spaced."
    body = "".join(chart("spread", 380, group, f"{group} clients") for group in groups)
    return section(
        "spread", "Over clients", lead, controls if groups else "", f'<div class="pair">{body or NO_SCORES}</div>'
    )


def _pairs(drawn: dict[str, Any], lines: Sequence[Line], metric: Metric) -> str:
    lead = "Each mark is a client: its figure with the shared model, and with its own. The dashed line: no change."
    scored = [(str(number), line["tuned"]) for number, line in enumerate(drawn["lines"]) if line["clients"]]
    if not scored:
        return section("pairs", PAIRS, lead, "", NO_SCORES)
    figures = ((name, name) for name in figure_names(metric))
    controls = chooser("pairs-line", "Method", scored, str(leader(lines, metric)))
    controls += switch("pairs-figure", "Figure", figures)
    marks = chart("pairs", 460, "marks", "before and after") + chart("pairs", 460, "gains", "change, clients in order")
    body = f'<div class="pair">{marks}</div><p class="readout" id="pairs-readout" aria-live="polite"></p>'
    return section("pairs", PAIRS, lead, controls, body)


def _costs(drawn: dict[str, Any]) -> str:
    height = 90 + 34 * len(drawn["lines"])
    names = {"mb": "MB sent: down solid, up hatched", "steps": "client steps", "seconds": "seconds of training"}
    body = "".join(chart("cost", height, kind, heading) for kind, heading in names.items())
    return section("cost", "Cost", "Of all rounds so far, mean over seeds.", "", f'<div class="triple">{body}</div>')


def _data(picture: dict[str, Any]) -> str:
    seed = "" if picture["seed"] is None else f", as drawn with seed {picture['seed']}"
    if picture["labels"] is None:
        lead, height = f"Train examples of each client{seed}; the server holds {picture['server']:,}.", 320
    else:
        lead = f"Above, each client's train examples; below, the share of each label among a client's examples{seed}."
        height = 300 + min(max(len(row) for row in picture["labels"]) * 14, 560)
    if len(picture["ids"]) < picture["of"]:
        lead += f" {len(picture['ids']):,} of {picture['of']:,} clients are drawn, evenly spaced."
    return section("data", "The data", lead, "", chart("data", height))
