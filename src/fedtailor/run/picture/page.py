"""Gather what the page shows: figures, label x client, sizes and mixtures, and a few images."""

from collections.abc import Mapping
from typing import Any

import fedtailor
from fedtailor.data.dataset import FederatedDataset
from fedtailor.data.picture import figures, label_table
from fedtailor.run.picture import images
from fedtailor.run.picture.numbers import differ_much, payload
from fedtailor.run.picture.words import options_in_words, sentences, summary
from fedtailor.run.report.frame import make_page, read_own
from fedtailor.run.report.thinning import MOST_CLIENTS

HERE = "fedtailor.run.picture"
TEMPLATE = "picture/templates/picture.html.j2"


def page(dataset: FederatedDataset, options: Mapping[str, Any]) -> str:
    """Return the whole HTML page; the title has the options that the dataset was made with."""
    table = label_table(dataset, MOST_CLIENTS)
    view = {
        "title": ": ".join(filter(None, (dataset.name, options_in_words(options)))),
        "summary": summary(dataset, table),
        "notes": sentences(dataset, table),
        "found": figures(table),
        "kinds": None if table.counts is None else table.counts.shape[1],
        "has_server": table.server is not None,
        "sizes_differ_much": differ_much(table.sizes),
        "rows": images.rows(dataset, table),
        "made_with": f"fedtailor {fedtailor.__version__}",
    }
    scripts = [read_own("data.js"), read_own("picture.js", HERE)]
    return make_page(TEMPLATE, view, payload(table), scripts, read_own("picture.css", HERE))
