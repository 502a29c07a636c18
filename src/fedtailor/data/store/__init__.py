"""Data sets of any size on disk: flat memory-mapped columns, client by client, opened by name in an instant.

`build` streams blocks into a folder that appears when it is whole; `opened` maps it; `scenario` keeps who holds which
of its rows beside it. Any number of processes may read, also while another builds.
"""

from fedtailor.data.store.building import build, smallest
from fedtailor.data.store.files import File, MadeFrom, fingerprint
from fedtailor.data.store.reading import Stored, names, opened, remove
from fedtailor.data.store.runs import Runs, runs
from fedtailor.data.store.scenarios import Scenario, scenario

__all__ = [
    "File",
    "MadeFrom",
    "Runs",
    "Scenario",
    "Stored",
    "build",
    "fingerprint",
    "names",
    "opened",
    "remove",
    "runs",
    "scenario",
    "smallest",
]
