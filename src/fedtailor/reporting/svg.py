"""Lines as SVG, which needs nothing to be looked at: each with a band, its name at its end, in light and in dark."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

LEFT, RIGHT, TOP, BOTTOM, PLOT_WIDTH, PLOT_HEIGHT = 58, 12, 64, 52, 480, 300
LEADER_LENGTH, LABEL_OFFSET, LETTER_WIDTH, LINE_HEIGHT = 24, 52, 7.3, 17
"""From a line's end to its sample, and to its name; what a letter of a name takes; what a name takes in height."""
LIGHT_COLORS = (
    "#1b6ca8",
    "#c4501b",
    "#2f8f4e",
    "#8a4fae",
    "#b08600",
    "#c2378a",
    "#0f8b8d",
    "#6b6f76",
)
DARK_COLORS = (
    "#4aa3df",
    "#f08a57",
    "#5cc07e",
    "#bd8be0",
    "#e0b93a",
    "#ee7cc0",
    "#45c4c6",
    "#a4a9b1",
)
DASHES = ("", "7 4", "2 4")
_LIGHT_CSS = "".join(
    f".c{place}{{stroke:{color};fill:{color}}}" for place, color in enumerate(LIGHT_COLORS)
)
_DARK_CSS = "".join(
    f".c{place}{{stroke:{color};fill:{color}}}" for place, color in enumerate(DARK_COLORS)
)
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:14px}.s{font-size:12px;fill:#555}"
    ".g{stroke:#e3e6e8}.a{stroke:#9aa3aa}.b{fill:#fff}.l{fill:none;stroke-width:2}.e{fill:none;stroke-width:1;opacity:.6}"
    f".band{{stroke:none;opacity:.14}}{_LIGHT_CSS}.l,.e{{fill:none}}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#a9b1b8}.g{stroke:#2c3338}.a{stroke:#56636d}"
    f".b{{fill:#161a1d}}{_DARK_CSS}.l,.e{{fill:none}}}}"
)


class ChartPoint(NamedTuple):
    """A figure somewhere: its mean over seeds, and the smallest and the largest."""

    x: float
    mean: float
    low: float
    high: float


class ChartLine(NamedTuple):
    """A method's figures from left to right."""

    name: str
    points: Sequence[ChartPoint]


class Chart(NamedTuple):
    """What is drawn: lines, and what their axes say; `ticks` are names at places of the x axis, or it is of numbers."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    ticks: Sequence[tuple[float, str]] = ()


def render_svg(chart: Chart) -> str:
    """The chart as a file."""
    scale = _fit_scale(chart)
    widest = max((len(line.name) for line in chart.lines), default=0)
    width = max(
        LEFT + PLOT_WIDTH + LABEL_OFFSET + widest * LETTER_WIDTH + RIGHT,
        8.2 * len(chart.title) + 2 * RIGHT,
    )
    height = TOP + scale.height + BOTTOM
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<rect class="b" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="t" x="{RIGHT}" y="22">{escape(chart.title)}</text>',
        f'<text class="s" x="{RIGHT}" y="44">{escape(chart.y_label)}</text>',
        *_draw_axes(chart, scale),
        *_draw_lines(chart, scale),
        *_draw_labels(chart, scale),
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


def _fit_scale(chart: Chart) -> _Scale:
    points = [point for line in chart.lines for point in line.points] or [ChartPoint(0, 0, 0, 1)]
    xs = [point.x for point in points] + [x for x, _ in chart.ticks]
    left, right = min(xs), max(xs)
    low, high = min(point.low for point in points), max(point.high for point in points)
    margin = 0.06 * (high - low) or 0.5
    side = 0.5 if left == right else 0.0
    height = max(PLOT_HEIGHT, LINE_HEIGHT * len(chart.lines))
    return _Scale(left - side, right + side, low - margin, high + margin, height)


def compute_ticks(low: float, high: float, num_ticks: int = 6) -> list[float]:
    """Round numbers between two, about so many."""
    rough = (high - low) / num_ticks
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= 0.8 * rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _draw_axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    bottom, end = TOP + scale.height, LEFT + PLOT_WIDTH
    for value in compute_ticks(scale.low, scale.high):
        y = scale.y(value)
        yield f'<line class="g" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="s" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    yield f'<line class="a" x1="{LEFT}" x2="{end}" y1="{bottom}" y2="{bottom}"/>'
    for value, text in chart.ticks or [
        (value, f"{value:g}") for value in compute_ticks(scale.left, scale.right)
    ]:
        yield f'<text class="s" x="{scale.x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>'
    middle = LEFT + PLOT_WIDTH / 2
    yield f'<text class="s" x="{middle}" y="{bottom + 40}" text-anchor="middle">{escape(chart.x_label)}</text>'


def _draw_lines(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Bands first, so that no line is under one."""
    for line_idx, line in enumerate(chart.lines):
        if len(line.points) > 1 and any(point.high > point.low for point in line.points):
            upper = [(point.x, point.high) for point in line.points]
            lower = [(point.x, point.low) for point in reversed(line.points)]
            band = _format_points(upper + lower, scale)
            yield f'<polygon class="band c{line_idx % len(LIGHT_COLORS)}" points="{band}"/>'
    for line_idx, line in enumerate(chart.lines):
        kind, dash = f"c{line_idx % len(LIGHT_COLORS)}", _format_dash(line_idx)
        if len(line.points) > 1:
            path = _format_points([(point.x, point.mean) for point in line.points], scale)
            yield f'<polyline class="{kind} l"{dash} points="{path}"/>'
        few = line.points if chart.ticks or len(line.points) == 1 else ()
        yield from (
            f'<circle class="{kind}" cx="{scale.x(p.x):.1f}" cy="{scale.y(p.mean):.1f}" r="3"/>'
            for p in few
        )


def _draw_labels(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Each line's name beside its end, moved so far that no two are on top of each other, with a thread between.

    A line that ends before the others has a cross there, and no thread.
    """
    edge = LEFT + PLOT_WIDTH
    wanted = [
        scale.y(line.points[-1].mean) if line.points else TOP + scale.height for line in chart.lines
    ]
    placed = separate_labels(wanted, LINE_HEIGHT, TOP, TOP + scale.height)
    for line_idx, (line, y) in enumerate(zip(chart.lines, placed, strict=True)):
        kind, end = f"c{line_idx % len(LIGHT_COLORS)}", wanted[line_idx]
        if line.points and (x := scale.x(line.points[-1].x)) < edge - 1:
            cross = f"M{x - 4:.1f},{end - 4:.1f}l8,8m0,-8l-8,8"
            yield f'<path class="{kind} l" d="{cross}"/>'
        elif line.points:
            yield f'<polyline class="{kind} e" points="{edge + 4},{end:.1f} {edge + LEADER_LENGTH},{y:.1f}"/>'
        sample = (
            f'x1="{edge + LEADER_LENGTH}" x2="{edge + LABEL_OFFSET - 6}" y1="{y:.1f}" y2="{y:.1f}"'
        )
        yield f'<line class="{kind} l"{_format_dash(line_idx)} {sample}/>'
        yield f'<text x="{edge + LABEL_OFFSET}" y="{y + 4:.1f}">{escape(line.name)}</text>'


def separate_labels(
    wanted: Sequence[float], min_gap: float, low: float, high: float
) -> list[float]:
    """Places as near to those wanted as one pass down and one up bring them, at least so far apart, and in between."""
    order = np.argsort(wanted, kind="stable")
    positions = np.array(wanted, dtype=float)[order]
    for index in range(1, len(positions)):
        positions[index] = max(positions[index], positions[index - 1] + min_gap)
    if len(positions) and positions[-1] > high:
        positions[-1] = high
        for index in range(len(positions) - 2, -1, -1):
            positions[index] = min(positions[index], positions[index + 1] - min_gap)
    found = np.empty(len(positions))
    found[order] = np.maximum(positions, low) if len(positions) == 1 else positions
    return [float(position) for position in found]


def _format_dash(line_idx: int) -> str:
    dash = DASHES[line_idx // len(LIGHT_COLORS) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _format_points(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)
