"""The page of a data set: figures, labels by client, sizes, mixtures, and a few images."""

from collections.abc import Mapping
from typing import Any

import fedtailor
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import compute_label_table, compute_stats
from fedtailor.reporting.dataset_page.images import build_image_rows
from fedtailor.reporting.dataset_page.numbers import build_payload, has_wide_range
from fedtailor.reporting.dataset_page.wording import format_options, list_notes, make_summary
from fedtailor.reporting.html.frame import make_page, read_asset
from fedtailor.reporting.html.thinning import MAX_CLIENTS

PACKAGE = "fedtailor.reporting.dataset_page"
TEMPLATE = "dataset_page/templates/dataset.html.j2"


def render_dataset_page(dataset: FederatedDataset, options: Mapping[str, Any]) -> str:
    """Return the whole HTML page; `options`, with which the data set was made, are in the title."""
    table = compute_label_table(dataset, MAX_CLIENTS)
    title = dataset.name
    if options:
        title = f"{dataset.name}: {format_options(options)}"
    view = {
        "title": title,
        "summary": make_summary(dataset, table),
        "notes": list_notes(dataset, table),
        "stats": compute_stats(table),
        "num_labels": None if table.counts is None else table.counts.shape[1],
        "has_server": table.server is not None,
        "has_wide_range": has_wide_range(table.sizes),
        "image_rows": build_image_rows(dataset, table),
        "made_with": f"fedtailor {fedtailor.__version__}",
    }
    scripts = [read_asset("data.js"), read_asset("picture.js", PACKAGE)]
    style = read_asset("picture.css", PACKAGE)
    return make_page(TEMPLATE, view, build_payload(table), scripts, style)
