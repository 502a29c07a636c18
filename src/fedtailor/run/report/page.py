"""The page: header, table, charts and how to repeat it."""

from collections.abc import Sequence
from string import Template

from fedtailor.run.report import sections, wording
from fedtailor.run.report.charts import payload
from fedtailor.run.report.frame import framed, own
from fedtailor.run.report.grouping import Line, metric_of
from fedtailor.run.report.more import more
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
        table=table(lines, metric) + more(lines, metric),
        methods=_methods(lines),
        charts=sections.charts(drawn, lines, metric),
        data=sections.data(drawn["data"]),
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
