"""Installing data sets: downloaded or from the user's files, read, and built into a store."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedtailor.data.reader_blocks import Block
from fedtailor.data.readers.files import is_present
from fedtailor.data.sources.catalog import BUILT_IN, READER_VERSION, CatalogEntry
from fedtailor.data.sources.download import DownloadCallback, download
from fedtailor.data.sources.images import IMAGE_SETS
from fedtailor.data.sources.text import TEXT_SETS
from fedtailor.data.sources.unpack import unpack_archives
from fedtailor.data.store import (
    DatasetAttributes,
    Provenance,
    StoredDataset,
    build,
    list_stores,
    open_store,
)
from fedtailor.data.store.columns import ProgressCallback
from fedtailor.errors import InputError, require, suggest_name, summarize_error
from fedtailor.storage.atomic import DiskError
from fedtailor.storage.checksums import fingerprint
from fedtailor.storage.paths import data_dir

CATALOG: dict[str, CatalogEntry] = {**IMAGE_SETS, **TEXT_SETS}
"""The known data sets by name."""

_DEFAULT_ATTRIBUTES = DatasetAttributes()


def add(
    name: str,
    source: str | Path | None = None,
    progress: ProgressCallback | None = None,
    download_progress: DownloadCallback | None = None,
    replace: bool = False,
) -> StoredDataset:
    """Install a known data set.

    Args:
        name: Name in the catalog.
        source: File, folder or archive with the data set's files; None: they are downloaded,
            checked, and kept for the next time.
        progress: Called while the store is built.
        download_progress: Called while files are downloaded.
        replace: Whether it may take the place of one that was installed under this name, which
            stays until the new one is complete.
    """
    require(name in CATALOG, f"There is no data set '{name}' to add; {suggest_name(name, CATALOG)}")
    if not replace:
        _require_new(name)
    entry = CATALOG[name]
    paths = _download_files(name, entry, download_progress) if source is None else [Path(source)]
    for path in paths:
        require(
            is_present(path),
            f"{name}: there is no file or folder '{path}'; expected {entry.expected_files}.",
        )
    with ExitStack() as stack:
        # Errors of building the store below are not explained: the files are not to blame.
        with _explain_read_errors(name, entry):
            source_path = stack.enter_context(unpack_archives(name, paths))
        files = tuple(fingerprint(path) for path in paths if path.is_file())
        provenance = Provenance(READER_VERSION, files)
        blocks = _read_blocks(name, entry, source_path)
        return build(name, blocks, entry.attributes, provenance, progress)


def add_custom(
    name: str,
    blocks: Iterable[Block],
    attributes: DatasetAttributes = _DEFAULT_ATTRIBUTES,
    progress: ProgressCallback | None = None,
    replace: bool = False,
) -> StoredDataset:
    """Install data of the user's own.

    Args:
        name: Name that no known data set has.
        blocks: The examples, as the readers in `fedtailor.data.readers` yield them.
        attributes: Facts about the examples, such as the number of classes or the scale of images.
        progress: Called while the store is built.
        replace: Whether they may take the place of those that were installed under this name, which
            stay until the new ones are complete.
    """
    is_taken = name in CATALOG or name in BUILT_IN or name.endswith(".npz")
    require(
        not is_taken,
        f"'{name}' is the name of a known data set or of a file; choose another name.",
    )
    if not replace:
        _require_new(name)
    return build(name, blocks, attributes, Provenance(READER_VERSION), progress)


def _require_new(name: str) -> None:
    require(
        name not in list_installed(),
        f"{name}: there is a data set of this name already; say --replace (in Python, "
        "replace=True) to put this one in its place, or choose another name.",
    )


def open_dataset(name: str) -> StoredDataset:
    """Open an installed data set; the error for any other says how to add it."""
    return open_store(name, READER_VERSION)


def count_classes(data: StoredDataset) -> int | None:
    """Return the number of classes of a data set, or None for regression."""
    classes = data.attributes.classes
    if not isinstance(classes, str):
        return classes
    y = data.columns["y"]
    if y.dtype.kind == "f":
        return None
    largest_label = int(y.max())
    if data.server_columns:
        largest_label = max(largest_label, int(data.server_columns["y"].max()))
    return max(1, largest_label + 1)


def list_installed() -> list[str]:
    """Return the names of the data sets that have been added."""
    return list_stores()


def get_attributes(name: str) -> DatasetAttributes:
    """Return the attributes of a known data set, installed or not, or of any installed one."""
    return CATALOG[name].attributes if name in CATALOG else open_dataset(name).attributes


@contextmanager
def _explain_read_errors(name: str, entry: CatalogEntry) -> Iterator[None]:
    """Add to an InputError the name of the data set and which files it expects.

    Errors of the disk are raised as they are.
    """
    try:
        yield
    except DiskError:
        raise
    except InputError as problem:
        reason = str(problem).rstrip(".").removeprefix(f"{name}: ")
        message = f"{name}: {reason}; expected {entry.expected_files}."
        raise InputError(message) from problem


def _read_blocks(name: str, entry: CatalogEntry, source_path: Path) -> Iterator[Block]:
    has_examples = False
    with _explain_read_errors(name, entry):
        for block in entry.read(source_path):
            has_examples |= bool(block.columns)
            yield block
        require(has_examples, f"there are no examples in '{source_path}'.")


def _download_files(
    name: str, entry: CatalogEntry, progress: DownloadCallback | None
) -> list[Path]:
    """Return the published files, or their folder if that is what the reader takes."""
    remedy = f"get {entry.expected_files} yourself and run `fedtailor data add {name} --from PATH`."
    require(bool(entry.remotes), f"{name}: it cannot be downloaded; {remedy}")
    # Data sets that share their files share the folder of the first of them.
    first_name = next(other for other in CATALOG if CATALOG[other].remotes == entry.remotes)
    target_dir = data_dir() / "downloads" / first_name
    paths = []
    for remote in entry.remotes:
        try:
            target_dir.mkdir(parents=True, exist_ok=True)
            paths.append(download(remote, target_dir, progress))
        except Exception as problem:  # of the network, of the disk, or a checksum that differs
            reason = summarize_error(problem, has_type=False)
            message = f"{name}: {remote.url} could not be downloaded: {reason}; {remedy}"
            raise InputError(message) from None
    # The four files of MNIST are read from their folder.
    is_idx = all(path.name.endswith("ubyte.gz") for path in paths)
    return [target_dir] if is_idx else paths
