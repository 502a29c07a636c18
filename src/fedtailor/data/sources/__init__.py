"""Data sets by name: the catalog of the known ones, and those that are installed on this machine.

`add` installs one in the data folder, as a store that opens without reading the data. It is
partitioned among clients in `fedtailor.data.partition`.
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
