"""Archives as folders, for readers that take folders."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtailor.data.readers.files import translate_read_errors
from fedtailor.storage.data_folders import open_scratch_folder
from fedtailor.storage.paths import data_dir

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@contextmanager
def unpack_archives(name: str, paths: list[Path]) -> Iterator[Path]:
    """Yield one path with the content of all paths, archives unpacked.

    A single path that is no archive is yielded as it is. Otherwise everything goes into a scratch
    folder in the data folder, where there is room for data, which is removed afterwards.

    Args:
        name: The data set.
        paths: Archives, and files and folders that are linked beside what is in the archives.
    """
    if len(paths) == 1 and not _is_archive(paths[0]):
        yield paths[0]
        return
    unpack_dir = data_dir() / "unpacked"
    try:
        with open_scratch_folder(name, unpack_dir / name) as target_dir:
            for path in paths:
                with translate_read_errors(path, "an archive"):
                    _unpack(path, target_dir)
            entries = list(target_dir.iterdir())
            yield entries[0] if len(entries) == 1 else target_dir
    finally:
        with suppress(OSError):  # other processes may be unpacking there
            unpack_dir.rmdir()


def _is_archive(path: Path) -> bool:
    return str(path).endswith(ARCHIVE_SUFFIXES)


def _unpack(path: Path, target_dir: Path) -> None:
    if not _is_archive(path):
        (target_dir / path.name).symlink_to(path.resolve())
        return
    # Only tar archives take a filter; "data" keeps their members inside the folder.
    shutil.unpack_archive(path, target_dir, filter=None if path.suffix == ".zip" else "data")
