"""The page: header, advice, table, charts and how to repeat it."""

from collections.abc import Sequence
from string import Template

from fedtailor.run.report import sections, wording
from fedtailor.run.report.advice import advice, rules
from fedtailor.run.report.charts import payload
from fedtailor.run.report.figures import Row
from fedtailor.run.report.frame import framed, own
from fedtailor.run.report.grouping import Line, Metric, metric_of
from fedtailor.run.report.more import more
from fedtailor.run.report.phrases import Words
from fedtailor.run.report.pieces import notes, swatch, text
from fedtailor.run.report.runs import made_with, repeat
from fedtailor.run.report.table import table
from fedtailor.run.report.tiles import tiles

SCRIPTS = ("labels.js", "curves.js", "glance.js", "scores.js", "marks.js", "alone.js", "costs.js", "data.js")


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
        advice=_advice(lines, metric),
        table=table(lines, metric) + more(lines, metric),
        methods=_methods(lines),
        charts=sections.charts(drawn, lines, metric),
        data=sections.data(drawn["data"]),
        repeat=repeat(lines),
        made_with=text(made_with(lines)),
    )
    return framed(wording.title(lines), body, drawn, [own(name) for name in SCRIPTS])


def _advice(lines: Sequence[Line], metric: Metric) -> str:
    found = advice(lines, metric)
    if not found:
        return ""
    answers = "".join(
        f"<div><dt>{text(each.question)}</dt><dd>{_with_swatches(each.answer)}</dd></div>" for each in found
    )
    return (
        '<section id="advice" aria-labelledby="advice-heading"><h2 id="advice-heading">Which method to use when</h2>'
        f'<dl class="advice">{answers}</dl><p class="caption">{text(rules(lines))}</p></section>'
    )


def _with_swatches(words: Words) -> str:
    return "".join(
        f'<b class="name">{swatch(word.line)}{text(word.label)}</b>' if isinstance(word, Row) else text(word)
        for word in words
    )


def _methods(lines: Sequence[Line]) -> str:
    boxes = "".join(
        f'<label><input type="checkbox" name="line" value="{number}" checked>{swatch(number)}'
        f"<span>{text(line.label)}</span></label>"
        for number, line in enumerate(lines)
    )
    hidden = " hidden" if len(lines) == 1 else ""
    return f'<fieldset class="methods"{hidden}><legend>Shown in the charts</legend>{boxes}</fieldset>'
