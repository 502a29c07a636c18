"""Line charts as SVG files without scripts: lines with bands, named at their ends.

They are light or dark as the reader's system is.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

# All lengths are in pixels.
LEFT = 58
RIGHT = 12
TOP = 64
BOTTOM = 52
PLOT_WIDTH = 480
PLOT_HEIGHT = 300
LEADER_LENGTH = 24
"""From the end of a line to the sample beside its name."""
LABEL_OFFSET = 52
"""From the end of a line to its name."""
LETTER_WIDTH = 7.3
"""Width of a letter of a name, on average."""
TITLE_LETTER_WIDTH = 8.2
"""Width of a letter of the title, on average."""
LINE_HEIGHT = 17
"""Height of a name."""
MARGIN_SHARE = 0.06
"""Room above and below the lines, as a share of the range of the y axis."""

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


def _make_color_css(colors: Sequence[str]) -> str:
    rules = [f".c{index}{{stroke:{color};fill:{color}}}" for index, color in enumerate(colors)]
    return "".join(rules)


STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}"
    ".t{font-weight:600;font-size:14px}"
    ".s{font-size:12px;fill:#555}"
    ".g{stroke:#e3e6e8}"
    ".a{stroke:#9aa3aa}"
    ".b{fill:#fff}"
    ".l{fill:none;stroke-width:2}"
    ".e{fill:none;stroke-width:1;opacity:.6}"
    f".band{{stroke:none;opacity:.14}}{_make_color_css(LIGHT_COLORS)}.l,.e{{fill:none}}"
    "@media(prefers-color-scheme:dark){"
    "text{fill:#ddd}"
    ".s{fill:#a9b1b8}"
    ".g{stroke:#2c3338}"
    ".a{stroke:#56636d}"
    f".b{{fill:#161a1d}}{_make_color_css(DARK_COLORS)}.l,.e{{fill:none}}}}"
)
"""Classes: t title, s small text, g grid, a axis, b background, l line, e leader, c0-c7 colors."""


class ChartPoint(NamedTuple):
    """A figure at a place of the x axis: its mean over seeds, and the lowest and highest seed."""

    x: float
    mean: float
    low: float
    high: float


class ChartLine(NamedTuple):
    """The figures of a method from left to right."""

    name: str
    points: Sequence[ChartPoint]


class Chart(NamedTuple):
    """Lines with a title and axis labels.

    `ticks` are (x, name) pairs for an x axis of names; without them it is an axis of numbers.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[ChartLine]
    ticks: Sequence[tuple[float, str]] = ()


def render_svg(chart: Chart) -> str:
    """Return the content of the SVG file."""
    scale = _fit_scale(chart)
    longest_name = max((len(line.name) for line in chart.lines), default=0)
    plot_and_names = LEFT + PLOT_WIDTH + LABEL_OFFSET + longest_name * LETTER_WIDTH + RIGHT
    title_width = TITLE_LETTER_WIDTH * len(chart.title) + 2 * RIGHT
    width = max(plot_and_names, title_width)
    height = TOP + scale.height + BOTTOM
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    label = escape(chart.title, quote=True)
    parts = [
        f'<rect class="b" width="{width:.0f}" height="{height:.0f}"/>',
        f'<text class="t" x="{RIGHT}" y="22">{escape(chart.title)}</text>',
        f'<text class="s" x="{RIGHT}" y="44">{escape(chart.y_label)}</text>',
        *_draw_axes(chart, scale),
        *_draw_lines(chart, scale),
        *_draw_labels(chart, scale),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return f"{head}<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"


class _Scale(NamedTuple):
    """The ranges of both axes, and the height of the plot in pixels."""

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
    points = [point for line in chart.lines for point in line.points]
    if not points:
        points = [ChartPoint(x=0, mean=0, low=0, high=1)]
    xs = [point.x for point in points] + [x for x, _ in chart.ticks]
    left = min(xs)
    right = max(xs)
    low = min(point.low for point in points)
    high = max(point.high for point in points)
    # A range of a single value is widened, because the scale divides by it.
    margin = 0.5 if low == high else MARGIN_SHARE * (high - low)
    side = 0.5 if left == right else 0.0
    height = max(PLOT_HEIGHT, LINE_HEIGHT * len(chart.lines))
    return _Scale(left - side, right + side, low - margin, high + margin, height)


def compute_ticks(low: float, high: float, num_ticks: int = 6) -> list[float]:
    """Return about `num_ticks` round numbers from `low` to `high`."""
    rough_step = (high - low) / num_ticks
    unit = 10.0 ** math.floor(math.log10(rough_step))
    steps = (unit * factor for factor in (1, 2, 5, 10))
    step = next(step for step in steps if step >= 0.8 * rough_step)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _draw_axes(chart: Chart, scale: _Scale) -> Iterator[str]:
    bottom = TOP + scale.height
    right = LEFT + PLOT_WIDTH
    for value in compute_ticks(scale.low, scale.high):
        y = scale.y(value)
        yield f'<line class="g" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="s" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    yield f'<line class="a" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    ticks = chart.ticks
    if not ticks:
        ticks = [(value, f"{value:g}") for value in compute_ticks(scale.left, scale.right)]
    for value, text in ticks:
        yield _draw_centered_text(f"{scale.x(value):.1f}", bottom + 18, text)
    yield _draw_centered_text(f"{LEFT + PLOT_WIDTH / 2}", bottom + 40, chart.x_label)


def _draw_centered_text(x: str, y: float, text: str) -> str:
    return f'<text class="s" x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _draw_lines(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Yield bands, then lines, so that no line is covered by a band."""
    for line_idx, line in enumerate(chart.lines):
        has_band = any(point.high > point.low for point in line.points)
        if len(line.points) > 1 and has_band:
            upper = [(point.x, point.high) for point in line.points]
            lower = [(point.x, point.low) for point in reversed(line.points)]
            band = _format_points(upper + lower, scale)
            yield f'<polygon class="band {_get_color_class(line_idx)}" points="{band}"/>'
    for line_idx, line in enumerate(chart.lines):
        color = _get_color_class(line_idx)
        if len(line.points) > 1:
            path = _format_points([(point.x, point.mean) for point in line.points], scale)
            yield f'<polyline class="{color} l"{_format_dash(line_idx)} points="{path}"/>'
        if chart.ticks or len(line.points) == 1:
            for point in line.points:
                center = f'cx="{scale.x(point.x):.1f}" cy="{scale.y(point.mean):.1f}"'
                yield f'<circle class="{color}" {center} r="3"/>'


def _draw_labels(chart: Chart, scale: _Scale) -> Iterator[str]:
    """Yield the name of each line beside its end, with a leader where the name had to move.

    A line that ends before the right edge has a cross at its end, and no leader.
    """
    edge = LEFT + PLOT_WIDTH
    bottom = TOP + scale.height
    ends = [scale.y(line.points[-1].mean) if line.points else bottom for line in chart.lines]
    label_ys = separate_labels(ends, LINE_HEIGHT, TOP, bottom)
    for line_idx, line in enumerate(chart.lines):
        color = _get_color_class(line_idx)
        end = ends[line_idx]
        y = label_ys[line_idx]
        if line.points:
            yield _draw_line_end(scale.x(line.points[-1].x), end, y, color)
        sample_start = edge + LEADER_LENGTH
        sample_end = edge + LABEL_OFFSET - 6
        sample = f'x1="{sample_start}" x2="{sample_end}" y1="{y:.1f}" y2="{y:.1f}"'
        yield f'<line class="{color} l"{_format_dash(line_idx)} {sample}/>'
        yield f'<text x="{edge + LABEL_OFFSET}" y="{y + 4:.1f}">{escape(line.name)}</text>'


def _draw_line_end(x: float, y: float, label_y: float, color: str) -> str:
    edge = LEFT + PLOT_WIDTH
    if x < edge - 1:
        cross = f"M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8"
        return f'<path class="{color} l" d="{cross}"/>'
    points = f"{edge + 4},{y:.1f} {edge + LEADER_LENGTH},{label_y:.1f}"
    return f'<polyline class="{color} e" points="{points}"/>'


def separate_labels(
    targets: Sequence[float], min_gap: float, low: float, high: float
) -> list[float]:
    """Return places near `targets` that are at least `min_gap` apart, between `low` and `high`.

    One pass moves places up from the lowest, and one moves them down from `high` if they exceed it.

    Args:
        targets: Preferred places, in the order of the result.
        min_gap: Smallest distance between two places.
        low: Lower bound, which only a single label is moved to.
        high: Upper bound.
    """
    order = np.argsort(targets, kind="stable")
    positions = np.array(targets, dtype=float)[order]
    for index in range(1, len(positions)):
        positions[index] = max(positions[index], positions[index - 1] + min_gap)
    if len(positions) and positions[-1] > high:
        positions[-1] = high
        for index in range(len(positions) - 2, -1, -1):
            positions[index] = min(positions[index], positions[index + 1] - min_gap)
    if len(positions) == 1:
        positions = np.maximum(positions, low)
    separated = np.empty(len(positions))
    separated[order] = positions
    return [float(position) for position in separated]


def _get_color_class(line_idx: int) -> str:
    return f"c{line_idx % len(LIGHT_COLORS)}"


def _format_dash(line_idx: int) -> str:
    dash = DASHES[line_idx // len(LIGHT_COLORS) % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _format_points(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)
