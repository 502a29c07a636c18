"""Archives as folders, for readers that take folders: unpacked where there is room for data, and removed afterwards."""

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
    """The one path as it is if it is no archive; else a folder with what is in all of them."""
    if len(paths) == 1 and not str(paths[0]).endswith(ARCHIVE_SUFFIXES):
        yield paths[0]
        return
    unpack_dir = data_dir() / "unpacked"
    try:
        with open_scratch_folder(name, unpack_dir / name) as target_dir:
            for path in paths:
                with translate_read_errors(path, "an archive"):
                    _unpack(path, target_dir)
            inside = list(target_dir.iterdir())
            yield inside[0] if len(inside) == 1 else target_dir
    finally:
        with suppress(OSError):  # others may be unpacking there
            unpack_dir.rmdir()


def _unpack(path: Path, target_dir: Path) -> None:
    if str(path).endswith(ARCHIVE_SUFFIXES):
        shutil.unpack_archive(path, target_dir, filter=None if path.suffix == ".zip" else "data")
    else:
        (target_dir / path.name).symlink_to(path.resolve())
