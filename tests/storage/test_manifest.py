"""Folders with a manifest: nothing but what was written is read, whenever a process was killed."""

import json
import os
import signal
from pathlib import Path

import pytest

from damage import iterate_mutations, list_files
from fedtailor.errors import InputError
from fedtailor.storage.manifest import MANIFEST_FILE, ListedFolder
from interruptions import Fault, faulty, full_disk, warm

OLD = {"a.json": b'{"a": 1}', "b.bin": b"old"}
NEW = {"b.bin": b"new", "c.bin": b"first"}


@pytest.fixture
def folder(tmp_path: Path) -> ListedFolder:
    path = tmp_path / "folder"
    path.mkdir()
    made = ListedFolder(path, "do this.")
    made.create("things", OLD)
    return made


def test_what_was_written_is_read(folder: ListedFolder) -> None:
    assert {name: folder.read(name) for name in OLD} == OLD
    assert not folder.has("c.bin")
    folder.write(NEW)
    assert {name: folder.read(name) for name in OLD | NEW} == OLD | NEW
    assert folder.find_problems() == dict.fromkeys(OLD | NEW, "")
    manifest = folder.read_manifest()
    assert manifest.kind == "things"
    assert all(len(contents) == 1 for contents in manifest.files.values())


def test_a_changed_a_missing_and_an_unlisted_file_are_refused(folder: ListedFolder) -> None:
    (folder.path / "a.json").write_bytes(b'{"a": 2}')
    (folder.path / "b.bin").unlink()
    (folder.path / "c.bin").write_bytes(b"first")
    damages = {"a.json": "is not what was written", "b.bin": "is missing"}
    for name, damage in (damages | {"c.bin": "is not what was written"}).items():
        with pytest.raises(InputError) as caught:
            folder.read(name)
        assert str(caught.value) == f"'{folder.path / name}' {damage}; do this."
    assert folder.find_problems() == damages


def test_every_damage_of_a_file_is_noticed(folder: ListedFolder) -> None:
    for seed, name in enumerate(list_files(folder.path)):
        content = (folder.path / name).read_bytes()
        for change, mutated in iterate_mutations(content, seed):
            (folder.path / name).write_bytes(mutated)
            with pytest.raises(InputError):
                folder.read(name if name != MANIFEST_FILE else "a.json")
            assert change
        (folder.path / name).write_bytes(content)
        assert folder.read(name if name != MANIFEST_FILE else "a.json")


def test_an_edited_manifest_is_refused(folder: ListedFolder) -> None:
    path = folder.path / MANIFEST_FILE
    content = json.loads(path.read_text())
    content["files"]["a.json"][0]["bytes"] = 9
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"manifest.json' is not what was written; put back "):
        folder.read("a.json")


def test_a_folder_of_another_version_gets_a_sentence(folder: ListedFolder) -> None:
    path = folder.path / MANIFEST_FILE
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(InputError, match=r"written in format 2, but this fedtailor reads format 1"):
        folder.read("a.json")
    path.unlink()
    with pytest.raises(InputError, match=r"manifest.json' is missing: another version of fedtail"):
        folder.read("a.json")


def write_and_die(path: Path, at: int) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with faulty(Fault(at, die)):
        ListedFolder(path).write(NEW)


def test_killed_between_any_two_writes_old_or_new_files_are_read(tmp_path: Path) -> None:
    counted = Fault(-1, full_disk)
    (tmp_path / "counted").mkdir()
    ListedFolder(tmp_path / "counted").create("things", OLD)
    with faulty(counted):
        ListedFolder(tmp_path / "counted").write(NEW)
    assert counted.count >= 15
    path = tmp_path / "folder"
    path.mkdir()
    seen = set()
    for at in range(1, counted.count + 1):
        folder = ListedFolder(path)
        folder.create("things", OLD)
        (path / "c.bin").unlink(missing_ok=True)
        for repeat in (at, 1 + at % 7):  # a second process may die, too
            child = warm().Process(target=write_and_die, args=(path, repeat))
            child.start()
            child.join()
            assert child.exitcode == -signal.SIGKILL
            assert folder.read("a.json") == OLD["a.json"]
            b_content = folder.read("b.bin")
            c_content = folder.read("c.bin") if folder.has("c.bin") else b""
            assert b_content in (OLD["b.bin"], NEW["b.bin"])
            assert c_content in (b"", NEW["c.bin"])
            seen.add((b_content, c_content))
            folder.settle()
            assert all(len(contents) == 1 for contents in folder.read_manifest().files.values())
            assert folder.read("b.bin") == b_content
        folder.write(NEW)
        assert folder.read_manifest() == ListedFolder(tmp_path / "counted").read_manifest()
        assert folder.find_problems() == dict.fromkeys(OLD | NEW, "")
    assert seen == {(b"old", b""), (b"new", b""), (b"new", b"first")}


def test_a_file_that_another_process_replaces_meanwhile_is_read(
    folder: ListedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = Path.read_bytes
    other_process = ListedFolder(folder.path)

    def replace_first(path: Path) -> bytes:
        if path.name == "b.bin":
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            other_process.write(NEW)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", replace_first)
    assert folder.read("b.bin") == b"new"
