"""Lines as SVG, which needs nothing to be looked at: each with a band, its name at its end, in light and in dark."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

LEFT, RIGHT, TOP, BOTTOM, PLOT_WIDTH, PLOT_HEIGHT = 58, 12, 64, 52, 480, 300
THREAD, GUTTER, LETTER, LINE = 24, 52, 7.3, 17
"""From a line's end to its sample, and to its name; what a letter of a name takes; what a name takes in height."""
LIGHT = ("#1b6ca8", "#c4501b", "#2f8f4e", "#8a4fae", "#b08600", "#c2378a", "#0f8b8d", "#6b6f76")
DARK = ("#4aa3df", "#f08a57", "#5cc07e", "#bd8be0", "#e0b93a", "#ee7cc0", "#45c4c6", "#a4a9b1")
DASHES = ("", "7 4", "2 4")
_COLOURS = "".join(f".c{place}{{stroke:{colour};fill:{colour}}}" for place, colour in enumerate(LIGHT))
_DARK_COLOURS = "".join(f".c{place}{{stroke:{colour};fill:{colour}}}" for place, colour in enumerate(DARK))
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:14px}.s{font-size:12px;fill:#555}"
    ".g{stroke:#e3e6e8}.a{stroke:#9aa3aa}.b{fill:#fff}.l{fill:none;stroke-width:2}.e{fill:none;stroke-width:1;opacity:.6}"
    f".band{{stroke:none;opacity:.14}}{_COLOURS}.l,.e{{fill:none}}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#a9b1b8}.g{stroke:#2c3338}.a{stroke:#56636d}"
    f".b{{fill:#161a1d}}{_DARK_COLOURS}.l,.e{{fill:none}}}}"
)


class Point(NamedTuple):
    """A figure somewhere: its mean over seeds, and the smallest and the largest."""

    x: float
    mean: float
    low: float
    high: float


class Line(NamedTuple):
    """A method's figures from left to right."""

    name: str
    points: Sequence[Point]


class Chart(NamedTuple):
    """What is drawn: lines, and what their axes say; `ticks` are names at places of the x axis, or it is of numbers."""

    title: str
    across: str
    up: str
    lines: Sequence[Line]
    ticks: Sequence[tuple[float, str]] = ()


def svg(chart: Chart) -> str:
    """The chart as a file."""
    scale = _scale(chart)
    widest = max((len(line.name) for line in chart.lines), default=0)
    width = max(LEFT + PLOT_WIDTH + GUTTER + widest * LETTER + RIGHT, 8.2 * len(chart.title) + 2 * RIGHT)
    height = TOP + scale.height + BOTTOM
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<rect class="b" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="t" x="{RIGHT}" y="22">{escape(chart.title)}</text>',
        f'<text class="s" x="{RIGHT}" y="44">{escape(chart.up)}</text>',
        *_axes(chart, scale),
        *_lines(chart, scale),
        *_names(chart, scale),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(chart.title, quote=True)}">'
    return f"{head}<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"


class _Scale(NamedTuple):
    """Where numbers are on the page."""

    left: float
    right: float
    low: float
    high: float
    height: float

    def x(self, value: float) -> float:
        return LEFT + PLOT_WIDTH * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        return TOP + self.height * (self.high - value) / (self.high - self.low)


def _scale(chart: Chart) -> _Scale:
    points = [point for line in chart.lines for point in line.points] or [Point(0, 0, 0, 1)]
    places = [point.x for point in points] + [place for place, _ in chart.ticks]
    left, right = min(places), max(places)
    low, high = min(point.low for point in points), max(point.high for point in points)
    margin = 0.06 * (high - low) or 0.5
    side = 0.5 if left == right else 0.0
    height = max(PLOT_HEIGHT, LINE * len(chart.lines))
    return _Scale(left - side, right + side, low - margin, high + margin, height)


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers between two, about so many."""
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= 0.8 * rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(place * step, 10) for place in range(first, last + 1)]


def _axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    bottom, end = TOP + scale.height, LEFT + PLOT_WIDTH
    for value in ticks(scale.low, scale.high):
        y = scale.y(value)
        yield f'<line class="g" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="s" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    yield f'<line class="a" x1="{LEFT}" x2="{end}" y1="{bottom}" y2="{bottom}"/>'
    for value, text in chart.ticks or [(value, f"{value:g}") for value in ticks(scale.left, scale.right)]:
        yield f'<text class="s" x="{scale.x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>'
    middle = LEFT + PLOT_WIDTH / 2
    yield f'<text class="s" x="{middle}" y="{bottom + 40}" text-anchor="middle">{escape(chart.across)}</text>'


def _lines(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Bands first, so that no line is under one."""
    for number, line in enumerate(chart.lines):
        if len(line.points) > 1 and any(point.high > point.low for point in line.points):
            upper = [(point.x, point.high) for point in line.points]
            lower = [(point.x, point.low) for point in reversed(line.points)]
            yield f'<polygon class="band c{number % len(LIGHT)}" points="{_path(upper + lower, scale)}"/>'
    for number, line in enumerate(chart.lines):
        kind, dash = f"c{number % len(LIGHT)}", _dash(number)
        if len(line.points) > 1:
            path = _path([(point.x, point.mean) for point in line.points], scale)
            yield f'<polyline class="{kind} l"{dash} points="{path}"/>'
        few = line.points if chart.ticks or len(line.points) == 1 else ()
        yield from (f'<circle class="{kind}" cx="{scale.x(p.x):.1f}" cy="{scale.y(p.mean):.1f}" r="3"/>' for p in few)


def _names(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Each line's name beside its end, moved so far that no two are on top of each other, with a thread between.

    A line that ends before the others has a cross there, and no thread.
    """
    edge = LEFT + PLOT_WIDTH
    wanted = [scale.y(line.points[-1].mean) if line.points else TOP + scale.height for line in chart.lines]
    placed = apart(wanted, LINE, TOP, TOP + scale.height)
    for number, (line, y) in enumerate(zip(chart.lines, placed, strict=True)):
        kind, end = f"c{number % len(LIGHT)}", wanted[number]
        if line.points and (x := scale.x(line.points[-1].x)) < edge - 1:
            cross = f"M{x - 4:.1f},{end - 4:.1f}l8,8m0,-8l-8,8"
            yield f'<path class="{kind} l" d="{cross}"/>'
        elif line.points:
            yield f'<polyline class="{kind} e" points="{edge + 4},{end:.1f} {edge + THREAD},{y:.1f}"/>'
        sample = f'x1="{edge + THREAD}" x2="{edge + GUTTER - 6}" y1="{y:.1f}" y2="{y:.1f}"'
        yield f'<line class="{kind} l"{_dash(number)} {sample}/>'
        yield f'<text x="{edge + GUTTER}" y="{y + 4:.1f}">{escape(line.name)}</text>'


def apart(wanted: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Places as near to those wanted as one pass down and one up bring them, at least so far apart, and in between."""
    order = np.argsort(wanted, kind="stable")
    places = np.array(wanted, dtype=float)[order]
    for here in range(1, len(places)):
        places[here] = max(places[here], places[here - 1] + least)
    if len(places) and places[-1] > high:
        places[-1] = high
        for here in range(len(places) - 2, -1, -1):
            places[here] = min(places[here], places[here + 1] - least)
    found = np.empty(len(places))
    found[order] = np.maximum(places, low) if len(places) == 1 else places
    return [float(place) for place in found]


def _dash(number: int) -> str:
    dash = DASHES[number // len(LIGHT) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _path(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)
