"""Data sets by name: what is known of them, and what is on this machine.

`add` puts one where data lies (`place.folder`), as a store that opens in an instant; `federated` divides it.
"""

from fedtailor.data.sets.adding import KNOWN, add, add_own, attributes_of, classes_of, installed, stored
from fedtailor.data.sets.known import Known, Remote
from fedtailor.data.sets.own import own_blocks

__all__ = [
    "KNOWN",
    "Known",
    "Remote",
    "add",
    "add_own",
    "attributes_of",
    "classes_of",
    "installed",
    "own_blocks",
    "stored",
]
