"""Archives that are whole, damaged, hostile, or too large for the disk."""

import bz2
import errno
import gzip
import io
import lzma
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import set_files as write
from fedtailor.data import add
from fedtailor.data.builtin.npz import read_npz
from fedtailor.data.sources import open_dataset
from fedtailor.data.sources.unpack import unpack_archives
from fedtailor.errors import InputError

FILES = {
    "set/images.bin": bytes(range(256)) * 40,
    "set/labels.bin": bytes(300),
    "set/inner/words.txt": b"the cat and the dog " * 30,
}


def make_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def make_zip(method: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in FILES.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return packed.getvalue()


WHOLE: dict[str, Callable[[], bytes]] = {
    "stored.zip": lambda: make_zip(zipfile.ZIP_STORED),
    "deflated.zip": lambda: make_zip(zipfile.ZIP_DEFLATED),
    "lzma.zip": lambda: make_zip(zipfile.ZIP_LZMA),
    "some.tar": make_tar,
    "some.tar.gz": lambda: gzip.compress(make_tar()),
    "some.tgz": lambda: gzip.compress(make_tar()),
    "some.tar.bz2": lambda: bz2.compress(make_tar()),
    "some.tar.xz": lambda: lzma.compress(make_tar()),
}


def unpack_content(path: Path) -> dict[str, bytes]:
    """Return the content of all files that an archive unpacks to, by their names."""
    with unpack_archives("any", [path]) as folder:
        files = [file for file in folder.rglob("*") if file.is_file()]
        return {f"set/{file.relative_to(folder)}": file.read_bytes() for file in files}


def left_in(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.suffix != ".lock"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.setenv("FEDTAILOR_DATA", str(folder))
    return folder


@pytest.mark.parametrize("name", WHOLE)
def test_every_kind_is_unpacked(name: str, tmp_path: Path, place: Path) -> None:
    (tmp_path / name).write_bytes(WHOLE[name]())
    assert unpack_content(tmp_path / name) == FILES
    assert left_in(place) == []


def mutate(raw: bytes, seed: int) -> bytes:
    """Flip a bit, cut the end off, swap two ranges, or drop one."""
    draws = np.random.default_rng(seed)
    first, second = sorted(draws.integers(0, len(raw) - 8, 2).tolist())
    kind = seed % 5
    if kind == 0:
        return raw[: second + 1]
    if kind == 1:
        return raw[:first] + raw[second : second + 8] + raw[first + 8 :]
    if kind == 2:
        return raw[:first] + raw[first + 8 :]
    changed = bytearray(raw)
    changed[first if kind == 3 else len(raw) - 1 - first % 40] ^= 1 << int(draws.integers(8))
    return bytes(changed)


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "some.tar"])
def test_a_mutated_archive_is_refused_or_harmless(name: str, tmp_path: Path, place: Path) -> None:
    whole = WHOLE[name]()
    num_refused = 0
    for seed in range(60):
        (tmp_path / name).write_bytes(mutate(whole, seed))
        try:
            content = unpack_content(tmp_path / name)
        except InputError:
            num_refused += 1
        else:
            assert content == FILES, seed
        assert left_in(place) == []
    assert num_refused >= 30


def test_a_plain_tar_shows_damage_of_its_headers_and_its_end(tmp_path: Path) -> None:
    """Its content has no checksum: that is in the documentation."""
    whole = make_tar()
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        headers = [member.offset for member in archive]
        end = archive.offset
    path = tmp_path / "some.tar"
    for header in headers:
        path.write_bytes(whole[: header + 5] + b"!" + whole[header + 6 :])
        with pytest.raises(InputError, match=r"'.*some.tar' cannot be read as an archive: "):
            unpack_content(path)
        path.write_bytes(whole[:header])
        with pytest.raises(InputError, match=r"'.*some.tar' cannot be read as an archive: "):
            unpack_content(path)
    path.write_bytes(whole[:end] + bytes(512) + b"more" + bytes(508))
    with pytest.raises(InputError, match="there is more after its end"):
        unpack_content(path)


def test_an_archive_with_another_checksum_leaves_the_store(tmp_path: Path, place: Path) -> None:
    archive = write.cifar10(binary=True)(tmp_path)
    before = add("cifar10", archive)
    raw = bytearray(archive.read_bytes())
    raw[-6] ^= 1  # in the checksum of gzip
    archive.write_bytes(raw)
    with pytest.raises(InputError, match=r"^cifar10: '.*' cannot be read as an archive: CRC check"):
        add("cifar10", archive, replace=True)
    after = open_dataset("cifar10")
    after.verify()
    assert after.content_hash == before.content_hash


def pack_member(path: Path, member: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(member, io.BytesIO(bytes(member.size)))


def make_link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member


HOSTILE: dict[str, tuple[tarfile.TarInfo, str]] = {
    "parent": (tarfile.TarInfo("../out"), "must unpack into one folder, but '../out' in it lies"),
    "inner parent": (tarfile.TarInfo("a/../../out"), "must unpack into one folder, but 'a/"),
    "absolute": (tarfile.TarInfo("/tmp/out"), "must unpack into one folder, but '/tmp/out' in it"),
    "loop": (make_link("loop", "loop"), "must hold files and folders alone, but 'loop' in it is a"),
    "link": (make_link("a", "/etc/passwd"), "files and folders alone, but 'a' in it is a link"),
    "hard link": (make_link("a", "b", tarfile.LNKTYPE), "but 'a' in it is a link or a device;"),
    "device": (make_link("a", "", tarfile.CHRTYPE), "but 'a' in it is a link or a device; unpack"),
    "pipe": (make_link("a", "", tarfile.FIFOTYPE), "but 'a' in it is a link or a device; unpack"),
    "undecodable": (tarfile.TarInfo("a\udcff"), r"must have names in UTF-8, but 'a\\udcff' in it"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_member_is_refused(kind: str, tmp_path: Path, place: Path) -> None:
    member, sentence = HOSTILE[kind]
    with tarfile.open(tmp_path / "some.tar.gz", "w:gz", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(InputError, match=sentence):
        unpack_content(tmp_path / "some.tar.gz")
    assert left_in(place) == []
    assert not (place / "out").exists()


def test_hostile_members_of_zip_archives_are_refused(tmp_path: Path, place: Path) -> None:
    path = tmp_path / "some.zip"
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    members: dict[str, str | zipfile.ZipInfo] = {"lies outside": "../out", "is a link": link}
    for sentence, member in members.items():
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, "content")
        with pytest.raises(InputError, match=sentence):
            unpack_content(path)
    raw = bytearray(make_zip(zipfile.ZIP_STORED))
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"must not be encrypted, but 'set/images.bin' in it is"):
        unpack_content(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "content")
        archive.writestr("a/b", "content")
    with pytest.raises(InputError, match="'a/b' in it is both a file and a folder"):
        unpack_content(path)
    assert left_in(place) == []


def test_a_disk_that_fills_up_while_unpacking_is_not_the_archives_fault(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write.cifar10(binary=True)(tmp_path)
    opened = Path.open

    class FullFile(io.BytesIO):
        def write(self, content: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_full(path: Path, mode: str = "r", *args: Any) -> IO[Any]:
        is_full = mode == "wb" and place in path.parents and "unpacked" in path.parts
        return FullFile() if is_full else opened(path, mode, *args)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(
        InputError, match=r"^cifar10: '.*' could not be written: No space left on device; make room"
    ) as refused:
        add("cifar10", archive)
    assert "archive" not in str(refused.value)
    assert "expected" not in str(refused.value)
    assert left_in(place / "stores") == []


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_mutated_npz_file_is_refused_or_harmless(method: int, tmp_path: Path) -> None:
    arrays = {"x": np.arange(600.0).reshape(200, 3), "y": np.arange(200), "client": np.ones(200)}
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            archive.writestr(f"{name}.npy", content.getvalue())
    shutil.copy(path, tmp_path / "whole.npz")
    whole = path.read_bytes()
    num_refused = 0
    for seed in range(60):
        path.write_bytes(mutate(whole, seed))
        try:
            found = read_npz(path, tuple(arrays))
        except InputError:
            num_refused += 1
        else:
            for name, array in arrays.items():
                np.testing.assert_array_equal(found[name], array)
    assert num_refused >= 30
