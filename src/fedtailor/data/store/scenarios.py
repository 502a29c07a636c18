"""Who holds which rows of a store, under which options: worked out once, then small files beside the store."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.holders import Array, Split
from fedtailor.data.store import files
from fedtailor.data.store.reading import Stored
from fedtailor.data.store.runs import Runs, compact
from fedtailor.errors import InputError

_FORMAT = 1
_ABOUT = "scenario.json"


class Scenario(NamedTuple):
    """Splits of a store's rows, and whatever else was chosen: groups of people, the server's rows, which clients."""

    splits: dict[str, Split]
    arrays: dict[str, Array]


def scenario(stored: Stored, options: dict[str, Any], make: Callable[[], Scenario]) -> Scenario:
    """The scenario of these options over a store: read, if it was made before; else made, and kept if the disk lets it.

    What is read is memory maps and runs. The options must be what JSON can hold, and say all that `make` depends on
    besides the store's content.
    """
    about = json.dumps({"format": _FORMAT, "store": stored.identity, "options": options}, sort_keys=True)
    folder = stored.folder / "scenarios" / hashlib.sha256(about.encode()).hexdigest()[:32]
    found = _read(folder)
    if found is not None:
        return found
    made = make()
    with suppress(InputError):  # a disk that is full or may not be written to: it is made again next time
        _save(stored.name, folder, made, about)
    return _read(folder) or made


def _save(name: str, folder: Path, made: Scenario, about: str) -> None:
    as_split = {what: _first_like(made.splits, split) for what, split in made.splits.items()}
    contents = {**json.loads(about), "splits": as_split, "arrays": list(made.arrays)}
    with files.new_folder(name, folder, wait=True) as fresh, files.trouble(name, folder):
        for what in set(as_split.values()):
            for part, array in _parts(compact(made.splits[what])).items():
                _write_array(fresh / f"split-{what}-{part}.npy", array)
        for what, array in made.arrays.items():
            _write_array(fresh / f"array-{what}.npy", array)
        files.write(fresh / _ABOUT, json.dumps(contents, indent=1).encode())


def _first_like(splits: dict[str, Split], split: Split) -> str:
    """The first name of the very same split: who adapts on all of train says so by naming the same split."""
    return next(what for what, other in splits.items() if other is split)


def _parts(split: Split) -> dict[str, NDArray[np.int64]]:
    index = cast(Any, split.index)
    rows = {"starts": index.starts} if isinstance(index, Runs) else {"index": index}
    return {**rows, "offsets": split.offsets}


def _read(folder: Path) -> Scenario | None:
    """The scenario in a folder, unless it is not there, or damaged, and has to be made again."""
    try:
        contents = json.loads((folder / _ABOUT).read_bytes())
        splits = {what: _read_split(folder, what) for what in set(contents["splits"].values())}
        arrays = {what: _read_array(folder / f"array-{what}.npy") for what in contents["arrays"]}
        return Scenario({what: splits[same] for what, same in contents["splits"].items()}, arrays)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_split(folder: Path, what: str) -> Split:
    offsets = _read_array(folder / f"split-{what}-offsets.npy")
    if (folder / f"split-{what}-starts.npy").exists():
        starts = _read_array(folder / f"split-{what}-starts.npy")
        return Split(cast(NDArray[np.int64], Runs(starts, offsets)), offsets)
    return Split(_read_array(folder / f"split-{what}-index.npy"), offsets)


def _write_array(path: Path, array: Array) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _read_array(path: Path) -> Array:
    mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped
