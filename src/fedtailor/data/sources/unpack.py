"""Archives as folders, for readers that take folders.

Archives are read to their very end, where the checksums of their compression are. They may hold
files and folders alone: links are refused, and so are members outside of the folder.
"""

import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from zipfile import ZipFile

from fedtailor.data.readers.files import BLOCK_BYTES, open_tar, read_bytes, translate_read_errors
from fedtailor.errors import InputError, require
from fedtailor.storage.data_folders import open_scratch_folder, translate_write_errors
from fedtailor.storage.paths import data_dir

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class _Member(NamedTuple):
    """A file of an archive, or a folder, which cannot be opened."""

    name: str
    open: Callable[[], IO[bytes]] | None


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
            with translate_write_errors(name, target_dir):
                for path in paths:
                    _unpack(path, target_dir)
            entries = list(target_dir.iterdir())
            yield entries[0] if len(entries) == 1 else target_dir
    finally:
        with suppress(OSError):  # other processes may be unpacking there
            unpack_dir.rmdir()


def _is_archive(path: Path) -> bool:
    return str(path).endswith(ARCHIVE_SUFFIXES)


def _unpack(path: Path, target_dir: Path) -> None:
    """Unpack an archive, or link anything else; errors of the disk are raised as they are."""
    if not _is_archive(path):
        (target_dir / path.name).symlink_to(path.resolve())
        return
    members = _iter_zip(path) if path.suffix == ".zip" else _iter_tar(path)
    while True:
        with translate_read_errors(path, "an archive"):
            member = next(members, None)
        if member is None:
            return
        target = _make_target(path, member, target_dir)
        if member.open is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with translate_read_errors(path, "an archive"):
            source = member.open()
        with source, target.open("wb") as file:
            while content := read_bytes(path, source, BLOCK_BYTES):
                file.write(content)


def _iter_zip(path: Path) -> Iterator[_Member]:
    """Yield the members of a zip archive; reading one to its end checks its checksum."""
    with ZipFile(path) as archive:
        for info in archive.infolist():
            is_link = (info.external_attr >> 16) & 0o170000 == 0o120000
            require(not is_link, _describe_link(path, info.filename))
            is_encrypted = bool(info.flag_bits & 1)
            require(
                not is_encrypted,
                f"'{path}' must not be encrypted, but {info.filename!a} in it is; "
                "decrypt it first.",
            )
            if info.is_dir():
                yield _Member(info.filename, None)
            else:
                yield _Member(info.filename, partial(archive.open, info))


def _iter_tar(path: Path) -> Iterator[_Member]:
    """Yield the members of a tar archive; the checksum of its compression is checked at the end."""
    with open_tar(path) as archive:
        for member in archive:
            if member.isdir():
                yield _Member(member.name, None)
                continue
            require(member.isreg(), _describe_link(path, member.name))
            yield _Member(member.name, partial(_extract, archive, member))


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    source = archive.extractfile(member)
    assert source is not None  # only plain files are extracted
    return source


def _describe_link(path: Path, member_name: str) -> str:
    return (
        f"'{path}' must hold files and folders alone, but {member_name!a} in it is a link or "
        "a device; unpack it yourself, and give the folder."
    )


def _make_target(path: Path, member: _Member, target_dir: Path) -> Path:
    """Return where a member of an archive goes, which is inside the folder."""
    member_name = member.name
    is_folder = member.open is None
    parts = PurePosixPath(member_name).parts
    target = target_dir.joinpath(*parts)
    is_inside = ".." not in parts and target.is_relative_to(target_dir) and "\0" not in member_name
    require(
        is_inside,
        f"'{path}' must unpack into one folder, but {member_name!a} in it lies outside.",
    )
    try:
        member_name.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"'{path}' must have names in UTF-8, but {member_name!a} in it is not."
        ) from None
    parents = target.parents[: len(parts)]
    has_conflict = any(parent.is_file() for parent in parents)
    has_conflict |= target.is_file() if is_folder else target.is_dir()
    require(
        not has_conflict,
        f"'{path}' must be unpacked by hand: {member_name!a} in it is both a file and a folder.",
    )
    return target
