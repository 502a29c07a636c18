"""Building a store from a stream of blocks: a few megabytes of it are in memory at a time."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedtailor.data.reader_blocks import Block
from fedtailor.data.store.columns import ProgressCallback, open_column_writer
from fedtailor.data.store.manifest import MANIFEST, Provenance
from fedtailor.data.store.reader import StoredDataset, get_store_path, open_store
from fedtailor.errors import InputError, require
from fedtailor.storage.checksums import write_file
from fedtailor.storage.data_folders import build_folder, require_free_space, translate_write_errors

_INT_DTYPES = [np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")]


def build(
    name: str,
    blocks: Iterable[Block],
    attributes: dict[str, Any],
    made_from: Provenance,
    progress: ProgressCallback | None = None,
    needed_bytes: int = 0,
) -> StoredDataset:
    """Writes a store, in place of one of that name if there is one, and opens it.

    It is there when all of it is on the disk and not before, whatever happens meanwhile. Blocks may be of any size, and
    views of a buffer that the next block overwrites. `attributes` is what JSON can hold.
    """
    folder = get_store_path(name)
    _require_json(name, attributes)
    with build_folder(name, folder) as fresh:
        require_free_space(name, needed_bytes, folder.parent)
        with open_column_writer(fresh, name, progress) as columns:
            for block in blocks:
                columns.add(block)
            manifest = columns.finish(attributes, made_from)
        with translate_write_errors(name, folder.parent):
            write_file(fresh / MANIFEST, manifest.to_json())
    return open_store(name)


def pick_int_dtype(low: int, high: int) -> np.dtype[Any]:
    """The smallest type of integers that holds all numbers from low to high, one without a sign if it can."""
    for kind in _INT_DTYPES:
        if np.iinfo(kind).min <= low <= high <= np.iinfo(kind).max:
            return kind
    raise InputError(f"There is no type for integers from {low} to {high}.")


def _require_json(name: str, attributes: dict[str, Any]) -> None:
    try:
        same = json.loads(json.dumps(attributes, allow_nan=False)) == attributes
    except (TypeError, ValueError):
        same = False
    require(
        same,
        f"{name}: attributes must be what JSON can hold (finite numbers, strings, lists), got {attributes}.",
    )
