"""Archives as folders, for readers that take folders: unpacked where there is room for data, and removed afterwards."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtailor.data.readers.files import reading
from fedtailor.data.store.files import scratch
from fedtailor.place import folder

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@contextmanager
def unpacked(name: str, paths: list[Path]) -> Iterator[Path]:
    """The one path as it is if it is no archive; else a folder with what is in all of them."""
    if len(paths) == 1 and not str(paths[0]).endswith(ENDINGS):
        yield paths[0]
        return
    place = folder() / "unpacked"
    try:
        with scratch(name, place / name) as made:
            for path in paths:
                with reading(path, "an archive"):
                    _unpack(path, made)
            inside = list(made.iterdir())
            yield inside[0] if len(inside) == 1 else made
    finally:
        with suppress(OSError):  # others may be unpacking there
            place.rmdir()


def _unpack(path: Path, place: Path) -> None:
    if str(path).endswith(ENDINGS):
        shutil.unpack_archive(path, place, filter=None if path.suffix == ".zip" else "data")
    else:
        (place / path.name).symlink_to(path.resolve())
