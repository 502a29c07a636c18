"""Bars as SVG, which need nothing to be looked at: each the median, with a line from the smallest
to the largest.
"""

import statistics
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, MARGIN, LEFT, RIGHT, BAR, GAP, HEAD = 720, 16, 190, 150, 18, 8, 34
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:14px}"
    ".o{fill:#1b6ca8}.p{fill:#b9c4cc}"
    ".w{stroke:#222;stroke-width:1.5}.b{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.b{fill:#161a1d}.p{fill:#56636d}.o{fill:#4aa3df}.w{stroke:#ddd}}"
)


class Bar(NamedTuple):
    """One bar: what it is, its values, what is written behind it, and whether it stands out."""

    label: str
    values: Sequence[float]
    note: str = ""
    own: bool = False


class Panel(NamedTuple):
    """Bars on one scale, from 0."""

    title: str
    bars: Sequence[Bar]

    @property
    def height(self) -> int:
        """How many pixels it needs."""
        return HEAD + len(self.bars) * (BAR + GAP) + GAP


def svg(panels: Sequence[Panel]) -> str:
    """Panels below each other."""
    height, top, parts = sum(panel.height for panel in panels) + 2 * MARGIN, MARGIN, []
    for panel in panels:
        parts += _panel(panel, top)
        top += panel.height
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    back = f'<rect class="b" width="{WIDTH}" height="{height}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{back}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel, top: int) -> list[str]:
    longest = max(max(bar.values) for bar in panel.bars)
    scale = (WIDTH - LEFT - RIGHT) / longest
    title = f'<text class="t" x="{MARGIN}" y="{top + HEAD - 14}">{escape(panel.title)}</text>'
    placed = enumerate(panel.bars)
    return [title, *(_bar(bar, scale, top + HEAD + number * (BAR + GAP)) for number, bar in placed)]


def _bar(bar: Bar, scale: float, top: int) -> str:
    middle, low, high = (scale * of(bar.values) for of in (statistics.median, min, max))
    base, center, kind = top + BAR - 5, top + BAR / 2, "o" if bar.own else "p"
    label = f'<text x="{LEFT - 8}" y="{base}" text-anchor="end">{escape(bar.label)}</text>'
    body = f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{middle:.1f}" height="{BAR}"/>'
    ends = f'x1="{LEFT + low:.1f}" x2="{LEFT + high:.1f}" y1="{center}" y2="{center}"'
    line = f'<line class="w" {ends}/>'
    note = f'<text x="{LEFT + high + 8:.1f}" y="{base}">{escape(bar.note)}</text>'
    return label + body + line + note
