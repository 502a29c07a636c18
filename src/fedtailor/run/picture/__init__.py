"""A dataset to look at: label x client in the terminal, and as one HTML file that needs nothing else.

fedtailor.data.picture (who has which labels) -> terminal; numbers, images -> page
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.data import FederatedDataset, load
from fedtailor.data.picture import Figures, Labels, figures, label_table
from fedtailor.disk import write_bytes
from fedtailor.run.picture.page import page
from fedtailor.run.picture.terminal import drawn
from fedtailor.run.picture.words import said, sentences, summary

__all__ = [
    "Figures",
    "Labels",
    "drawn",
    "figures",
    "label_table",
    "load",
    "page",
    "said",
    "sentences",
    "summary",
    "write",
]


def write(dataset: FederatedDataset, options: Mapping[str, Any], path: Path) -> None:
    """Writes the page, all or nothing; an `OSError` leaves the file that was there before."""
    write_bytes(path, page(dataset, options).encode())
