"""Data sets of any size on disk: flat memory-mapped columns, client by client, opened by name in an instant.

`build` streams blocks into a folder that appears when it is whole; `opened` maps it; `scenario` keeps who holds which
of its rows beside it. Any number of processes may read, also while another builds.
"""

from fedtailor.data.store.builder import build, pick_int_dtype
from fedtailor.data.store.manifest import Provenance
from fedtailor.data.store.reader import StoredDataset, list_stores, open_store, remove
from fedtailor.data.store.row_ranges import RowRanges, make_range_split
from fedtailor.data.store.scenarios import StoredScenario, load_or_build_scenario

__all__ = [
    "Provenance",
    "RowRanges",
    "StoredDataset",
    "StoredScenario",
    "build",
    "list_stores",
    "load_or_build_scenario",
    "make_range_split",
    "open_store",
    "pick_int_dtype",
    "remove",
]
