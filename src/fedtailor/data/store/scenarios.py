"""Who holds which rows of a store, under which options: worked out once, then small files beside the store."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.examples import Array, Split
from fedtailor.data.store.reader import StoredDataset
from fedtailor.data.store.row_ranges import RowRanges, compact
from fedtailor.errors import InputError
from fedtailor.storage.checksums import write_file
from fedtailor.storage.data_folders import build_folder, translate_write_errors
from fedtailor.storage.files import map_array, write_array

_FORMAT = 1
_SCENARIO_FILE = "scenario.json"


class StoredScenario(NamedTuple):
    """Splits of a store's rows, and whatever else was chosen: groups of people, the server's rows, which clients."""

    splits: dict[str, Split]
    arrays: dict[str, Array]


def load_or_build_scenario(
    dataset: StoredDataset, options: dict[str, Any], make: Callable[[], StoredScenario]
) -> StoredScenario:
    """The scenario of these options over a store: read, if it was made before; else made, and kept if the disk lets it.

    What is read is memory maps and runs. The options must be what JSON can hold, and say all that `make` depends on
    besides the store's content.
    """
    about = json.dumps(
        {"format": _FORMAT, "store": dataset.content_hash, "options": options}, sort_keys=True
    )
    folder = dataset.folder / "scenarios" / hashlib.sha256(about.encode()).hexdigest()[:32]
    found = _read(folder)
    if found is not None:
        return found
    built = make()
    with suppress(
        InputError
    ):  # a disk that is full or may not be written to: it is made again next time
        _save(dataset.name, folder, built, about)
    return _read(folder) or built


def _save(name: str, folder: Path, scenario: StoredScenario, about: str) -> None:
    as_split = {
        what: _find_alias(scenario.splits, split) for what, split in scenario.splits.items()
    }
    contents = {**json.loads(about), "splits": as_split, "arrays": list(scenario.arrays)}
    with (
        build_folder(name, folder, wait=True) as fresh,
        translate_write_errors(name, folder),
    ):
        for what in set(as_split.values()):
            for part, array in _to_arrays(compact(scenario.splits[what])).items():
                write_array(fresh / f"split-{what}-{part}.npy", array)
        for what, array in scenario.arrays.items():
            write_array(fresh / f"array-{what}.npy", array)
        write_file(fresh / _SCENARIO_FILE, json.dumps(contents, indent=1).encode())


def _find_alias(splits: dict[str, Split], split: Split) -> str:
    """The first name of the very same split: who adapts on all of train says so by naming the same split."""
    return next(what for what, other in splits.items() if other is split)


def _to_arrays(split: Split) -> dict[str, NDArray[np.int64]]:
    index = cast(Any, split.index)
    rows = {"starts": index.starts} if isinstance(index, RowRanges) else {"index": index}
    return {**rows, "offsets": split.offsets}


def _read(folder: Path) -> StoredScenario | None:
    """The scenario in a folder, unless it is not there, or damaged, and has to be made again."""
    try:
        contents = json.loads((folder / _SCENARIO_FILE).read_bytes())
        splits = {what: _read_split(folder, what) for what in set(contents["splits"].values())}
        arrays = {what: map_array(folder / f"array-{what}.npy") for what in contents["arrays"]}
        return StoredScenario(
            {what: splits[same] for what, same in contents["splits"].items()}, arrays
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_split(folder: Path, split_name: str) -> Split:
    offsets = map_array(folder / f"split-{split_name}-offsets.npy")
    if (folder / f"split-{split_name}-starts.npy").exists():
        starts = map_array(folder / f"split-{split_name}-starts.npy")
        return Split(cast(NDArray[np.int64], RowRanges(starts, offsets)), offsets)
    return Split(map_array(folder / f"split-{split_name}-index.npy"), offsets)
