"""Small pieces of HTML. What comes from records is escaped here, and only here."""

import html
from collections.abc import Iterable
from typing import Any

COLOURS = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4")  # as in common.js
MARKS = (
    '<circle cx="14" cy="6" r="3.6"/>',
    '<path d="M10.6 2.6h6.8v6.8h-6.8z"/>',
    '<path d="M14 1.2 18.8 6 14 10.8 9.2 6z"/>',
    '<path d="M14 1.6 18.6 9.6H9.4z"/>',
    '<path d="M14 10.4 18.6 2.4H9.4z"/>',
    '<path d="M12.6 1.5h2.8v3.1h3.1v2.8h-3.1v3.1h-2.8V7.4H9.5V4.6h3.1z"/>',
)


def text(value: Any) -> str:
    """Escaped for elements and attributes."""
    return html.escape(str(value))


def swatch(number: int) -> str:
    """A line's colour, dash and mark; a picture for the eye only."""
    dash = DASHES[(number + number // COLOURS) % len(DASHES)]
    mark = MARKS[(number + number // COLOURS) % len(MARKS)]
    stroke = f'<path d="M0 6h28" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="{dash}"/>'
    return (
        f'<svg class="swatch c{number % COLOURS}" width="28" height="12" viewBox="0 0 28 12" aria-hidden="true">'
        f'{stroke}<g fill="currentColor">{mark}</g></svg>'
    )


def switch(name: str, legend: str, options: Iterable[tuple[str, str]]) -> str:
    """A row of radio buttons, of which the first is on; nothing where there is no choice."""
    choices = list(options)
    hidden = " hidden" if len(choices) < 2 else ""
    buttons = "".join(
        f'<label><input type="radio" name="{text(name)}" value="{text(value)}"{"" if place else " checked"}>'
        f"<span>{text(label)}</span></label>"
        for place, (value, label) in enumerate(choices)
    )
    return f'<fieldset class="switch"{hidden}><legend>{text(legend)}</legend>{buttons}</fieldset>'


def chooser(name: str, legend: str, options: Iterable[tuple[str, str]], first: str) -> str:
    """A list of which one is chosen, at first this one."""
    inner = "".join(
        f'<option value="{text(value)}"{" selected" if value == first else ""}>{text(label)}</option>'
        for value, label in options
    )
    return f'<label class="chooser"><span>{text(legend)}</span><select name="{text(name)}">{inner}</select></label>'


def chart(kind: str, height: int, group: str = "", heading: str = "") -> str:
    """The place of a chart; the page's scripts draw it and say in words what it shows."""
    title = f"<h3>{text(heading)}</h3>" if heading else ""
    what = f"Save {text(heading or kind)} as"
    save = "".join(
        f'<button type="button" class="save" value="{form.lower()}" aria-label="{what} {form}">{form}</button>'
        for form in ("SVG", "PNG")
    )
    return (
        f'<figure>{title}<div class="chart" role="img" aria-label="{text(heading or kind)}" data-chart="{kind}" '
        f'data-group="{text(group)}" style="--height:{height}px"></div><p class="saving">{save}</p></figure>'
    )


def notes(sentences: Iterable[str]) -> str:
    """What to know before looking further; nothing where there is nothing to know."""
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return f'<ul class="notes" aria-label="Notes">{items}</ul>' if items else ""


def section(name: str, heading: str, lead: str, controls: str, body: str) -> str:
    """A part of the page with a heading, a sentence, controls and what they control."""
    bar = f'<div class="controls">{controls}</div>' if controls else ""
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{text(heading)}</h2>'
        f'<p class="lead">{text(lead)}</p>{bar}{body}</section>'
    )
