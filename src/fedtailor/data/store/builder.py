"""Building a store from a stream of blocks, of which a few megabytes are in RAM at a time."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedtailor.data.reader_blocks import Block
from fedtailor.data.store.attributes import DatasetAttributes
from fedtailor.data.store.columns import ProgressCallback, open_column_writer
from fedtailor.data.store.manifest import MANIFEST, Provenance
from fedtailor.data.store.reader import StoredDataset, get_store_path, open_store
from fedtailor.errors import InputError
from fedtailor.storage.checksums import write_file
from fedtailor.storage.data_folders import build_folder, require_free_space, translate_write_errors
from fedtailor.storage.typed_json import encode_model

# From narrow to wide, unsigned before signed.
_INT_DTYPES = [np.dtype(code) for code in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")]


def build(
    name: str,
    blocks: Iterable[Block],
    attributes: DatasetAttributes,
    provenance: Provenance,
    progress: ProgressCallback | None = None,
    needed_bytes: int = 0,
) -> StoredDataset:
    """Write a store, in place of one of that name if there is one, and open it.

    The new store appears when all of it is on the disk. If anything fails before, the old one
    stays and nothing is left of the new one.

    Args:
        name: Name of the store.
        blocks: Examples, each client's blocks one after another. They may be of any size, and
            views of a buffer that the next block overwrites.
        attributes: What `StoredDataset.attributes` gives back.
        provenance: The files that the blocks come from.
        progress: Called after every write.
        needed_bytes: Free space that the disk must have before anything is read.
    """
    folder = get_store_path(name)
    attributes.validate(name)
    with build_folder(name, folder) as new_folder:
        require_free_space(name, needed_bytes, folder.parent)
        with open_column_writer(new_folder, name, attributes, progress) as columns:
            for block in blocks:
                columns.add(block)
            manifest = columns.finish(provenance)
        with translate_write_errors(name, folder.parent):
            write_file(new_folder / MANIFEST, encode_model(manifest.seal()))
    return open_store(name)


def pick_int_dtype(low: int, high: int) -> np.dtype[Any]:
    """Return the smallest type that holds all integers from `low` to `high`, unsigned if it can."""
    for dtype in _INT_DTYPES:
        limits = np.iinfo(dtype)
        if limits.min <= low <= high <= limits.max:
            return dtype
    raise InputError(f"There is no type for integers from {low} to {high}.")
