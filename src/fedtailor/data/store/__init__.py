"""Data sets of any size on disk: flat memory-mapped columns, whose rows are sorted by client.

`build` streams blocks into a folder that appears when it is complete, `open_store` maps it without
reading the data, and `load_or_build_scenario` caches beside it how its rows are split among
clients. Any number of processes may read, also while another one builds.
"""

from fedtailor.data.store.attributes import DatasetAttributes
from fedtailor.data.store.builder import build, pick_int_dtype
from fedtailor.data.store.manifest import Provenance
from fedtailor.data.store.reader import StoredDataset, list_stores, open_store, remove
from fedtailor.data.store.row_ranges import RowRanges, make_range_split
from fedtailor.data.store.scenario_cache import CachedScenario, load_or_build_scenario

__all__ = [
    "CachedScenario",
    "DatasetAttributes",
    "Provenance",
    "RowRanges",
    "StoredDataset",
    "build",
    "list_stores",
    "load_or_build_scenario",
    "make_range_split",
    "open_store",
    "pick_int_dtype",
    "remove",
]
