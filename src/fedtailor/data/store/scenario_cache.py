"""Cache of scenarios: how rows of a store are split among clients, in files beside the store."""

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
from fedtailor.data.store.scenario_files import (
    SCENARIO_FORMAT,
    SCENARIOS_DIR,
    ScenarioDamageError,
    ScenarioFile,
    read_scenario_file,
    write_scenario_file,
)
from fedtailor.errors import InputError
from fedtailor.storage.checksums import fingerprint
from fedtailor.storage.data_folders import build_folder, translate_write_errors
from fedtailor.storage.files import map_array, write_array


class CachedScenario(NamedTuple):
    """Splits of a store's rows among clients, and arrays of whatever else was drawn with them."""

    splits: dict[str, Split]
    arrays: dict[str, Array]  # such as the clients of each group, or the server's rows


def load_or_build_scenario(
    dataset: StoredDataset, options: dict[str, Any], make: Callable[[], CachedScenario]
) -> CachedScenario:
    """Return a scenario over a store: read if there is one of these options, or else built.

    A scenario that was built is kept, if the disk has room, and read the next time; one that is
    damaged, by the checksums of its files, is built again. What is read is memory maps and ranges
    of rows.

    Args:
        dataset: The store.
        options: What JSON can hold, and everything that `make` depends on besides the store's
            content.
        make: Builds the scenario.
    """
    identity = {"format": SCENARIO_FORMAT, "store": dataset.content_hash, "options": options}
    key = json.dumps(identity, sort_keys=True)
    folder = dataset.folder / SCENARIOS_DIR / hashlib.sha256(key.encode()).hexdigest()[:32]
    cached = _read(folder)
    if cached is not None:
        return cached
    built = make()
    # A scenario that cannot be written (the disk is full or read-only) is built again next time.
    with suppress(InputError):
        _save(dataset.name, folder, built, key)
    cached = _read(folder)
    return built if cached is None else cached


def _save(name: str, folder: Path, scenario: CachedScenario, key: str) -> None:
    """Write a scenario into a folder.

    Args:
        name: The data set.
        folder: Where the scenario goes.
        scenario: What is written. A split that has several names is written once.
        key: JSON of the format, the store and the options.
    """
    first_names = {
        split_name: _find_first_name(scenario.splits, split)
        for split_name, split in scenario.splits.items()
    }
    with (
        build_folder(name, folder, wait=True) as new_folder,
        translate_write_errors(name, folder),
    ):
        for split_name in set(first_names.values()):
            parts = _to_arrays(compact(scenario.splits[split_name]))
            for part_name, array in parts.items():
                write_array(new_folder / f"split-{split_name}-{part_name}.npy", array)
        for array_name, array in scenario.arrays.items():
            write_array(new_folder / f"array-{array_name}.npy", array)
        content = ScenarioFile(
            **json.loads(key),
            splits=first_names,
            arrays=tuple(scenario.arrays),
            files=tuple(fingerprint(path) for path in sorted(new_folder.glob("*.npy"))),
        )
        write_scenario_file(new_folder, content)


def _find_first_name(splits: dict[str, Split], split: Split) -> str:
    """Return the first name of a split; adapting on all of "train" names the same split again."""
    return next(name for name, other in splits.items() if other is split)


def _to_arrays(split: Split) -> dict[str, NDArray[np.int64]]:
    """Return the arrays that a split consists of by the names that they have in files."""
    index = cast(Any, split.index)
    if isinstance(index, RowRanges):
        return {"starts": index.starts, "offsets": split.offsets}
    return {"index": index, "offsets": split.offsets}


def _read(folder: Path) -> CachedScenario | None:
    """Read the scenario in a folder; None: there is none, or it is damaged."""
    try:
        content = read_scenario_file(folder)
        splits = {name: _read_split(folder, name) for name in set(content.splits.values())}
        arrays = {name: map_array(folder / f"array-{name}.npy") for name in content.arrays}
    except (ScenarioDamageError, OSError, ValueError, EOFError):  # the last two are NumPy's
        return None
    named_splits = {name: splits[first_name] for name, first_name in content.splits.items()}
    return CachedScenario(named_splits, arrays)


def _read_split(folder: Path, split_name: str) -> Split:
    offsets = map_array(folder / f"split-{split_name}-offsets.npy")
    starts_path = folder / f"split-{split_name}-starts.npy"
    if starts_path.exists():
        row_ranges = RowRanges(map_array(starts_path), offsets)
        return Split(cast(NDArray[np.int64], row_ranges), offsets)
    return Split(map_array(folder / f"split-{split_name}-index.npy"), offsets)
