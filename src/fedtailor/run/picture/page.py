"""The page: figures, label x client, sizes and mixtures, and a few examples where they are images."""

from collections.abc import Mapping
from string import Template
from typing import Any

import fedtailor
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.picture import Figures, Labels, figures, label_table
from fedtailor.run.picture import images
from fedtailor.run.picture.numbers import payload
from fedtailor.run.picture.words import options_in_words, sentences, summary
from fedtailor.run.report.charts import MOST_CLIENTS
from fedtailor.run.report.frame import framed, own
from fedtailor.run.report.pieces import chart, notes, section, switch, text

HERE = "fedtailor.run.picture"
ROOM, ROW = 300, 14
"""Pixels that the picture has besides its rows, and for a row, until the rows are as high as they may be."""
HIGHEST = 560
DISTANCE = "mean total variation: 0 alike, 1 nothing in common"


def page(dataset: FederatedDataset, options: Mapping[str, Any]) -> str:
    """The whole HTML page; the options are those that the dataset was made with, for the title."""
    table = label_table(dataset, MOST_CLIENTS)
    found, numbers = figures(table), payload(table)
    title = ": ".join(filter(None, (dataset.name, options_in_words(options))))
    body = Template(own("page.html", HERE)).substitute(
        title=text(title),
        summary=text(summary(dataset, table)),
        notes=notes(sentences(dataset, table)),
        tiles=_tiles(table, found),
        picture=_picture(table),
        sizes=_sizes(numbers),
        mixture=_mixture(table),
        examples=_examples(images.rows(dataset, table)),
        version=text(fedtailor.__version__),
    )
    return framed(title, body, numbers, [own("data.js"), own("picture.js", HERE)], own("picture.css", HERE))


def _tiles(table: Labels, found: Figures) -> str:
    sizes = f"{found.smallest:,} to {found.largest:,}, mean {found.mean:,.1f} ± {found.std:,.1f}"
    made = [_tile("examples of a client, median", f"{found.median:,g}", sizes)]
    if found.labels is None:
        made.append(_tile("examples of a client, mean", f"{found.mean:,.1f}", f"standard deviation {found.std:,.1f}"))
        made.append(_tile("examples of a client, most", f"{found.largest:,}", f"fewest: {found.smallest:,}"))
    if found.labels is not None and table.counts is not None:
        made.append(_tile("labels of a client, mean", f"{found.labels:.1f}", f"of {table.counts.shape[1]:,}"))
        made.append(_tile("a client's labels differ from all by", f"{found.apart:.2f}", DISTANCE))
    if found.server_apart is not None:
        clients = f"from a client's by {found.from_server:.2f}, mean"
        made.append(_tile("the server's labels differ from all by", f"{found.server_apart:.2f}", clients))
    return f'<div class="tiles">{"".join(made)}</div>'


def _tile(what: str, big: str, more: str) -> str:
    return (
        f'<div class="tile"><p class="what">{text(what)}</p><p class="big">{text(big)}</p>'
        f'<p class="next">{text(more)}</p></div>'
    )


def _picture(table: Labels) -> str:
    if table.counts is None:
        return ""
    controls = switch("data-colour", "Colour", (("share", "share"), ("count", "√ examples")))
    controls += switch("data-order", "Order", (("label", "main label"), ("size", "size")))
    lead = "A column is a client, a row a label; above, how much the client has in all."
    if table.server is not None:
        lead += " On the right, the server."
    height = ROOM + min(table.counts.shape[1] * ROW, HIGHEST)
    return section("data", "Who has which labels", lead, controls, chart("data", height))


def _sizes(numbers: Mapping[str, Any]) -> str:
    axes = [(kind, label) for kind, label in (("linear", "even"), ("log", "by factors")) if kind in numbers["sizes"]]
    controls = switch("sizes-axis", "Steps", axes) if len(axes) > 1 else ""
    lead = "How many clients have how many examples, all splits together."
    return section("sizes", "How much they have", lead, controls, chart("sizes", 320))


def _mixture(table: Labels) -> str:
    if table.counts is None:
        return ""
    lead = "The share of each label: of a client's examples, on average over clients" + (
        "." if table.server is None else ", and of the server's."
    )
    return section("mixture", "What there is in all", lead, "", chart("mixture", 320))


def _examples(rows: list[images.Row]) -> str:
    if not rows:
        return ""
    body = "".join(_row(row) for row in rows)
    lead = "Some train examples of some clients" + (
        ", and of the server, in order of their labels." if not rows[-1].group else ", in order of their labels."
    )
    return section("examples", "What it looks like", lead, "", f'<div class="people">{body}</div>')


def _row(row: images.Row) -> str:
    whose = row.name if not row.group else f"client {row.name}"
    pictures = "".join(
        f'<figure><img src="{source}" alt="{text(f"label {label}" if label else "example")} of {text(whose)}">'
        f"<figcaption>{text(label)}</figcaption></figure>"
        for source, label in zip(row.pictures, row.labels, strict=True)
    )
    return f'<div class="person"><p><b>{text(row.name)}</b> {text(row.group)}</p><div>{pictures}</div></div>'
