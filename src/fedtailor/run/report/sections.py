"""The parts of the page that have charts: what they are about, their controls, and the places that scripts draw in."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.run.report import wording
from fedtailor.run.report.figures import GROUPS, ranking
from fedtailor.run.report.grouping import Line, Metric
from fedtailor.run.report.pieces import chart, chooser, section, switch
from fedtailor.run.report.thinning import most_of

AFTER_AND_BEFORE = (("after", "after"), ("before", "before"))
NO_SCORES = '<p class="empty">Final scores appear here when a run has finished.</p>'
NO_LOCAL = '<p class="empty">Nobody learns alone in these runs. Add the method local to see this chart.</p>'
ROW, ROOM = 34, 96
"""Pixels for a method in charts with a row for each, and for everything else in them."""

Drawn = Mapping[str, Any]


def charts(drawn: Drawn, lines: Sequence[Line], metric: Metric) -> str:
    """Everything about scores and costs."""
    groups = [group for group in drawn["groups"] if any(group in line["clients"] for line in drawn["lines"])]
    parts = (
        _glance(drawn, groups, lines, metric),
        _curves(drawn, lines, metric),
        _spread(drawn, groups, lines, metric),
        _alone(drawn, groups, lines, metric),
        _pairs(drawn, groups, lines, metric),
        _costs(drawn),
    )
    return "".join(parts)


def data(picture: Drawn) -> str:
    """Who has how much of what."""
    seed = "" if picture["seed"] is None else f", as drawn with seed {picture['seed']}"
    if picture["labels"] is None:
        lead, height = f"Train examples of each client{seed}; the server holds {picture['server']:,}.", 320
    else:
        lead = f"Above, each client's train examples; below, the share of each label among a client's examples{seed}."
        height = 300 + min(max(len(row) for row in picture["labels"]) * 14, 560)
    if len(picture["ids"]) < picture["of"]:
        lead += f" {len(picture['ids']):,} of {picture['of']:,} clients are drawn, evenly spaced."
    return section("data", "The data", lead, "", chart("data", height))


def _glance(drawn: Drawn, groups: Sequence[str], lines: Sequence[Line], metric: Metric) -> str:
    steps = [stage for stage in drawn["stages"] if stage.isdecimal()]
    several = "; each seed a thin stroke" if any(len(line.runs) > 1 for line in lines) else ""
    lead = f"Mean over clients: before personalising hollow, after it filled, with the figure{several}."
    lead += f" Small dots between: after {wording.listed(steps)} passes of it." if steps else ""
    controls = switch("glance-figure", "Figure", ((name, name) for name in metric.figures))
    height = ROOM + ROW * len(drawn["lines"])
    body = "".join(chart("glance", height, group, f"{group} clients") for group in groups)
    return _pair("glance", "At a glance", lead, controls, body)


def _curves(drawn: Drawn, lines: Sequence[Line], metric: Metric) -> str:
    groups = [group for group in GROUPS if any(group in line["curves"] for line in drawn["lines"])]
    work = ("flops", "client FLOPs") if "flops" in drawn["costs"] else ("steps", "client steps")
    controls = (
        switch("curves-group", "Clients", ((group, group) for group in groups))
        + switch("curves-stage", "Personalising", AFTER_AND_BEFORE)
        + switch("curves-figure", "Figure", ((name, name) for name in metric.figures))
        + switch("curves-x", "Against", (("round", "rounds"), ("mb", "bytes sent"), work))
    )
    lead = "Mean over clients in the rounds that were scored."
    if any(len(line.runs) > 1 for line in lines):
        lead += " A line is the mean over seeds, its band the lowest to the highest."
    lead += wording.watched(lines)
    body = chart("curves", 460) if groups else '<p class="empty">No round has been scored yet.</p>'
    return section("curves", "Against rounds, bytes and work", lead, controls if groups else "", body)


def _spread(drawn: Drawn, groups: Sequence[str], lines: Sequence[Line], metric: Metric) -> str:
    controls = (
        switch("spread-shape", "Shape", (("ecdf", "cumulative"), ("histogram", "histogram"), ("violin", "violin")))
        + switch("spread-stage", "Personalising", _stages(drawn))
        + switch("spread-figure", "Figure", ((name, name) for name in metric.figures))
    )
    lead = "How the final figures differ from client to client, the clients of all seeds together." + _thinned(
        drawn, lines
    )
    return _pair("spread", "Over clients", lead, controls, "".join(_of_groups("spread", 380, groups)))


def _alone(drawn: Drawn, groups: Sequence[str], lines: Sequence[Line], metric: Metric) -> str:
    lead = (
        "Each client after personalising against itself when it learns alone (method local, same seed). Above, how "
        "many fare better, the same and worse; below, client by client. The dashed line: the same as alone."
    )
    others = [choice for choice in _scored(drawn) if choice[0] != str(drawn["alone"])]
    if drawn["alone"] is None or not others:
        empty = NO_LOCAL if groups and len(lines) > 1 else ""
        return section("alone", "Against learning alone", lead, "", empty) if empty else ""
    controls = switch("alone-figure", "Figure", ((name, name) for name in metric.figures))
    controls += chooser("alone-line", "Method below", others, _chosen(others, lines, metric))
    height = ROOM + ROW * len(others)
    shares = "".join(chart("alone", height, f"shares {group}", f"{group} clients") for group in groups)
    marks = "".join(chart("alone", 440, f"marks {group}", f"{group} clients, one by one") for group in groups)
    return _pair("alone", "Against learning alone", lead, controls, shares + marks)


def _pairs(drawn: Drawn, groups: Sequence[str], lines: Sequence[Line], metric: Metric) -> str:
    lead = "Each mark is a client: its figure with the shared model, and with its own. The dashed line: no change."
    scored = _scored(drawn)
    controls = switch("pairs-figure", "Figure", ((name, name) for name in metric.figures))
    controls += chooser("pairs-line", "Method", scored, _chosen(scored, lines, metric)) if scored else ""
    marks = chart("pairs", 440, "marks", "before and after") + chart("pairs", 440, "gains", "change, clients in order")
    read = '<p class="readout" id="pairs-readout" aria-live="polite"></p>' if groups else ""
    return _pair("pairs", "What personalising does", lead, controls, marks if groups else "", read)


def _costs(drawn: Drawn) -> str:
    height = 64 + ROW * len(drawn["lines"])
    names = {"mb": "sent: down solid, up hatched", "steps": "client steps", "seconds": "time of training"}
    if "flops" in drawn["costs"]:
        server = any(line["cost"].get("server") for line in drawn["lines"])
        names["flops"] = "work: clients solid, server hatched" if server else "work of clients"
    order = [kind for kind in ("mb", "flops", "steps", "seconds") if kind in names]
    body = "".join(chart("cost", height, kind, names[kind]) for kind in order)
    layout = "triple" if len(order) == 3 else "pair"
    lead = "Of all rounds so far, mean over seeds; personalising and scoring are not in it."
    return section("cost", "Cost", lead, "", f'<div class="{layout}">{body}</div>')


def _of_groups(kind: str, height: int, groups: Sequence[str]) -> list[str]:
    return [chart(kind, height, group, f"{group} clients") for group in groups]


def _pair(name: str, heading: str, lead: str, controls: str, body: str, more: str = "") -> str:
    """A part with charts side by side, or a sentence that there is nothing to draw yet."""
    inner = f'<div class="pair">{body}</div>{more}' if body else NO_SCORES
    return section(name, heading, lead, controls if body else "", inner)


def _stages(drawn: Drawn) -> list[tuple[str, str]]:
    """After personalising first, then in time."""
    steps = [(stage, f"{stage} pass{'' if stage == '1' else 'es'}") for stage in drawn["stages"] if stage.isdecimal()]
    return [("after", "after"), ("before", "before"), *steps]


def _scored(drawn: Drawn) -> list[tuple[str, str]]:
    return [(str(number), line["tuned"]) for number, line in enumerate(drawn["lines"]) if line["clients"]]


def _chosen(choices: Sequence[tuple[str, str]], lines: Sequence[Line], metric: Metric) -> str:
    """The best line of those that can be chosen."""
    order = [str(number) for number in ranking(lines, metric)]
    return next((number for number in order if number in dict(choices)), choices[0][0])


def _thinned(drawn: Drawn, lines: Sequence[Line]) -> str:
    runs = [run for line in lines for run in line.runs]
    largest = max((len(scores["ids"]) for run in runs for scores in (run["scores"] or {}).values()), default=0)
    most = most_of(len(runs), len(drawn["groups"]))
    return f" Of larger groups {most:,} clients are drawn, evenly spaced." if largest > most else ""
