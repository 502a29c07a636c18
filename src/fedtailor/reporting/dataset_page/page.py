"""Gather what the page shows: figures, label x client, sizes and mixtures, and a few images."""

from collections.abc import Mapping
from typing import Any

import fedtailor
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.label_table import compute_label_table, compute_stats
from fedtailor.reporting.dataset_page import images
from fedtailor.reporting.dataset_page.numbers import build_payload, has_wide_range
from fedtailor.reporting.dataset_page.words import format_options, list_notes, make_summary
from fedtailor.reporting.html.frame import make_page, read_own
from fedtailor.reporting.html.thinning import MAX_CLIENTS

PACKAGE = "fedtailor.reporting.dataset_page"
TEMPLATE = "dataset_page/templates/dataset.html.j2"


def render_dataset_page(dataset: FederatedDataset, options: Mapping[str, Any]) -> str:
    """Return the whole HTML page; the title has the options that the dataset was made with."""
    table = compute_label_table(dataset, MAX_CLIENTS)
    view = {
        "title": ": ".join(filter(None, (dataset.name, format_options(options)))),
        "summary": make_summary(dataset, table),
        "notes": list_notes(dataset, table),
        "found": compute_stats(table),
        "kinds": None if table.counts is None else table.counts.shape[1],
        "has_server": table.server is not None,
        "sizes_differ_much": has_wide_range(table.sizes),
        "rows": images.build_image_rows(dataset, table),
        "made_with": f"fedtailor {fedtailor.__version__}",
    }
    scripts = [read_own("data.js"), read_own("picture.js", PACKAGE)]
    return make_page(
        TEMPLATE, view, build_payload(table), scripts, read_own("picture.css", PACKAGE)
    )
