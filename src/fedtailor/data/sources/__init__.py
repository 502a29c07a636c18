"""Data sets by name: what is known of them, and what is on this machine.

`add` puts one where data lies (`place.folder`), as a store that opens in an instant; `federated` divides it.
"""

from fedtailor.data.sources.catalog import CatalogEntry, Remote
from fedtailor.data.sources.custom import read_custom_blocks
from fedtailor.data.sources.install import (
    CATALOG,
    add,
    add_custom,
    count_classes,
    get_attributes,
    list_installed,
    open_dataset,
)

__all__ = [
    "CATALOG",
    "CatalogEntry",
    "Remote",
    "add",
    "add_custom",
    "count_classes",
    "get_attributes",
    "list_installed",
    "open_dataset",
    "read_custom_blocks",
]
