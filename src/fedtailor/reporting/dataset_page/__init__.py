"""Pictures of a data set: labels by client in the terminal, and a self-contained HTML file.

`fedtailor.data.label_table` has the numbers: which clients have which labels. `terminal` draws them
in characters; `numbers`, `images` and `page` make the HTML file; `wording` has sentences of both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.data import FederatedDataset, load
from fedtailor.data.label_table import DatasetStats, LabelTable, compute_label_table, compute_stats
from fedtailor.reporting.dataset_page.page import render_dataset_page
from fedtailor.reporting.dataset_page.terminal import draw_labels
from fedtailor.reporting.dataset_page.wording import describe_figures, list_notes, make_summary
from fedtailor.storage.atomic import write_bytes

__all__ = [
    "DatasetStats",
    "LabelTable",
    "compute_label_table",
    "compute_stats",
    "describe_figures",
    "draw_labels",
    "list_notes",
    "load",
    "make_summary",
    "render_dataset_page",
    "write_page",
]


def write_page(dataset: FederatedDataset, options: Mapping[str, Any], path: Path) -> None:
    """Write the page of a data set, all or nothing.

    Args:
        dataset: The data set.
        options: What it was made with, for the title.
        path: The HTML file; after an `OSError` it is as it was before.
    """
    write_bytes(path, render_dataset_page(dataset, options).encode(errors="backslashreplace"))
