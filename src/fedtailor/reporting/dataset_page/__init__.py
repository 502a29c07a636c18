"""A dataset to look at: label x client in the terminal, and as one HTML file that needs nothing else.

fedtailor.data.label_table (who has which labels) -> terminal; numbers, images -> page
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.data import FederatedDataset, load
from fedtailor.data.label_table import DatasetStats, LabelTable, compute_label_table, compute_stats
from fedtailor.reporting.dataset_page.page import render_dataset_page
from fedtailor.reporting.dataset_page.terminal import draw_labels
from fedtailor.reporting.dataset_page.words import describe_figures, list_notes, make_summary
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
    """Writes the page, all or nothing; an `OSError` leaves the file that was there before."""
    write_bytes(path, render_dataset_page(dataset, options).encode())
