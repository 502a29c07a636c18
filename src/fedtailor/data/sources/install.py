"""Putting a data set where data lies: downloaded or from files at hand, read by its reader, built into a store."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from fedtailor.data.reader_blocks import Block
from fedtailor.data.sources.catalog import BUILT_IN, READER_VERSION, CatalogEntry
from fedtailor.data.sources.download import DownloadCallback, download
from fedtailor.data.sources.images import IMAGE_SETS
from fedtailor.data.sources.text import TEXT_SETS
from fedtailor.data.sources.unpack import unpack_archives
from fedtailor.data.store import (
    Provenance,
    StoredDataset,
    build,
    list_stores,
    open_store,
)
from fedtailor.data.store.columns import ProgressCallback
from fedtailor.errors import InputError, require, suggest_name
from fedtailor.storage.checksums import fingerprint
from fedtailor.storage.paths import data_dir

CATALOG: dict[str, CatalogEntry] = {**IMAGE_SETS, **TEXT_SETS}
"""The data sets that have a name here."""


def add(
    name: str,
    source: str | Path | None = None,
    progress: ProgressCallback | None = None,
    download_progress: DownloadCallback | None = None,
) -> StoredDataset:
    """Adds a known data set: from a file, folder or archive at hand, or, without one, from where it is published.

    What is downloaded is checked, kept, and not downloaded again; `progress` and `download_progress` are told
    how far it is.
    """
    require(
        name in CATALOG, f"There is no data set '{name}' to be added; {suggest_name(name, CATALOG)}"
    )
    entry = CATALOG[name]
    paths = _download_files(name, entry, download_progress) if source is None else [Path(source)]
    for path in paths:
        require(
            path.exists(),
            f"{name}: there is no file or folder '{path}'; what is wanted is {entry.expected_files}.",
        )
    with ExitStack() as stack:
        with _explain_read_errors(name, entry):
            source_path = stack.enter_context(unpack_archives(name, paths))
        made_from = Provenance(
            READER_VERSION, tuple(fingerprint(path) for path in paths if path.is_file())
        )
        attributes = {**entry.attributes, "about": entry.about}
        return build(name, _read_blocks(name, entry, source_path), attributes, made_from, progress)


@contextmanager
def _explain_read_errors(name: str, entry: CatalogEntry) -> Iterator[None]:
    """Adds to what is said of files that cannot be read whose they should have been, and what is wanted."""
    try:
        yield
    except InputError as problem:
        told = f"{str(problem).rstrip('.')}; what is wanted is {entry.expected_files}."
        raise InputError(f"{name}: {told.removeprefix(f'{name}: ')}") from problem


def _read_blocks(name: str, entry: CatalogEntry, source_path: Path) -> Iterator[Block]:
    found = False
    with _explain_read_errors(name, entry):
        for block in entry.read(source_path):
            found = True
            yield block
        require(found, f"there are no examples in '{source_path}'.")


def add_custom(
    name: str,
    blocks: Iterable[Block],
    *,
    classes: int | Literal["auto"] | None = "auto",
    scale: float = 1.0,
    tokens: bool = False,
    about: str = "your own",
    progress: ProgressCallback | None = None,
) -> StoredDataset:
    """Adds data of the user's own, as blocks that a reader gives (`fedtailor.data.readers`), under a new name.

    `classes` None: targets are numbers to be predicted; "auto": so they are if they are floating, else the classes are
    counted, from 0 to the highest label.
    """
    taken = name in CATALOG or name in BUILT_IN or name.endswith(".npz")
    require(
        not taken, f"'{name}' is the name of a known data set or of a file; give yours another."
    )
    attributes = {"classes": classes, "scale": scale, "tokens": tokens, "about": about}
    return build(name, blocks, attributes, Provenance(READER_VERSION), progress)


def open_dataset(name: str) -> StoredDataset:
    """A data set that has been added, or a sentence that says how to add it."""
    return open_store(name, READER_VERSION)


def count_classes(data: StoredDataset) -> int | None:
    """How many classes a data set has; None: its targets are numbers."""
    known: int | str | None = data.attributes["classes"]
    if isinstance(known, str):
        y = data.columns["y"]
        return None if y.dtype.kind == "f" else max(1, int(y.max()) + 1)
    return known


def list_installed() -> list[str]:
    """The data sets that have been added."""
    return list_stores()


def get_attributes(name: str) -> dict[str, Any]:
    """What is said of a data set, added or known."""
    return CATALOG[name].attributes if name in CATALOG else open_dataset(name).attributes


def _download_files(
    name: str, entry: CatalogEntry, progress: DownloadCallback | None
) -> list[Path]:
    """The published files, checked; those that are there already are not downloaded again."""
    remedy = f"get {entry.expected_files} yourself and say `fedtailor data add {name} --from PATH`."
    require(bool(entry.remotes), f"{name}: there is no place to download it from; {remedy}")
    first = next(
        other for other, each in CATALOG.items() if each.remotes == entry.remotes
    )  # several may share files
    target_dir, found = data_dir() / "downloads" / first, []
    for remote in entry.remotes:
        try:
            target_dir.mkdir(parents=True, exist_ok=True)
            found.append(download(remote, target_dir, progress))
        except Exception as problem:  # of the network, of the disk, or a checksum that differs
            reason = next(iter(str(problem).splitlines()), type(problem).__name__)
            raise InputError(
                f"{name}: {remote.url} could not be had: {reason.rstrip('.')}; {remedy}"
            ) from None
    # The four files of MNIST are read from their folder.
    return [target_dir] if all(path.name.endswith("ubyte.gz") for path in found) else found
