"""The manifest of a folder: the size and SHA-256 of each of its files, and a checksum of itself.

    FOLDER/manifest.json

A file is read only if its content is listed, so damage and careless edits are noticed, but not an
attacker who rewrites the manifest too. Files are replaced in three steps: the manifest lists the
old and the new content, the files are replaced, the manifest lists the new content alone. A process
that is killed between two of them leaves a folder that can be read.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

from fedtailor.errors import InputError, require
from fedtailor.storage.atomic import write_bytes
from fedtailor.storage.typed_json import encode_model, read_versioned

MANIFEST_FILE = "manifest.json"
RESTORE_REMEDY = "put back the file that was written."
"""End of a message about a file that is not what was written: what to do."""


class DamagedFileError(InputError):
    """Refusal of a file that is not what was written."""

    def __init__(self, message: str, damage: str = "") -> None:
        """Take the whole sentence, and the part of it that says what is wrong."""
        super().__init__(message)
        self.damage = damage


class SealedModel(BaseModel):
    """Typed content of a JSON file with a checksum of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    checksum: str = ""
    """SHA-256 of the other fields."""

    def seal(self) -> Self:
        """Return the same with its checksum."""
        return self.model_copy(update={"checksum": self._compute_checksum()})

    def is_intact(self) -> bool:
        """Return whether the checksum is that of the other fields."""
        return self.checksum == self._compute_checksum()

    def _compute_checksum(self) -> str:
        content = self.model_dump(mode="json", exclude={"checksum"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class FileDigest(BaseModel):
    """The size in bytes and the SHA-256 of a file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


Files = dict[str, list[FileDigest | None]]
"""The contents that each file may have by name; None is no file."""


class FolderManifest(SealedModel):
    """The content of a folder's `manifest.json`."""

    format: Literal[1] = 1
    kind: str
    """What the folder holds."""
    files: Files

    def list_accepted(self, name: str) -> list[FileDigest | None]:
        """Return the contents that a file may have; one that is not listed must not exist."""
        return self.files.get(name, [None])


class ListedFolder:
    """A folder with a manifest, whose files are read only if they are what was written."""

    def __init__(self, path: Path, remedy: str = RESTORE_REMEDY) -> None:
        """Take the folder, which need not exist, and the end of messages about changed files."""
        self.path = path
        self._remedy = remedy

    def create(self, kind: str, contents: Mapping[str, bytes]) -> None:
        """Write the manifest of a new folder, and its files in their order.

        Args:
            kind: What the folder holds.
            contents: The content of each file by name.
        """
        files: Files = {name: [compute_digest(content)] for name, content in contents.items()}
        self._write_manifest(kind, files, should_sync_folder=False)
        for name, content in contents.items():
            write_bytes(self.path / name, content)

    def create_or_write(self, kind: str, contents: Mapping[str, bytes]) -> None:
        """Write files, in their order, and the manifest if there is none yet.

        Args:
            kind: What the folder holds.
            contents: The content of each file by name.
        """
        if self.has_manifest():
            self.write(contents)
        else:
            self.create(kind, contents)

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Replace or add files, in their order."""
        manifest = self.read_manifest()
        new_files: Files = {name: [compute_digest(content)] for name, content in contents.items()}
        both_files: Files = {
            name: [*manifest.list_accepted(name), *digests] for name, digests in new_files.items()
        }
        self._write_manifest(manifest.kind, manifest.files | both_files)
        for name, content in contents.items():
            write_bytes(self.path / name, content)
        # If a power failure brings the manifest before back, that lists the new files, too.
        self._write_manifest(manifest.kind, manifest.files | new_files, should_sync_folder=False)

    def remove(self, name: str) -> None:
        """Remove a file."""
        manifest = self.read_manifest()
        maybe_removed: Files = {name: [*manifest.list_accepted(name), None]}
        self._write_manifest(manifest.kind, manifest.files | maybe_removed)
        (self.path / name).unlink(missing_ok=True)
        others = {other: digests for other, digests in manifest.files.items() if other != name}
        self._write_manifest(manifest.kind, others, should_sync_folder=False)

    def settle(self) -> None:
        """Finish what a killed process has begun: list only the contents that files have."""
        manifest = self.read_manifest()
        files: Files = {}
        for name in manifest.files:
            files[name] = [compute_digest(self.read(name)) if self.has(name) else None]
        if files != manifest.files:
            self._write_manifest(manifest.kind, files)

    def read(self, name: str) -> bytes:
        """Return the content of a file; raise an InputError if it is not what was written."""
        manifest = self.read_manifest()
        while True:
            content = self._read_content(name)
            if content is not None and compute_digest(content) in manifest.list_accepted(name):
                return content
            current_manifest = self.read_manifest()
            if current_manifest == manifest:
                break
            manifest = current_manifest  # another process has replaced the file meanwhile
        damage = "is missing" if content is None else "is not what was written"
        raise DamagedFileError(f"'{self.path / name}' {damage}; {self._remedy}", damage)

    def has_manifest(self) -> bool:
        """Return whether there is a manifest, damaged or not."""
        return (self.path / MANIFEST_FILE).exists()

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name, or ought to be."""
        return (self.path / name).exists() or None not in self.read_manifest().list_accepted(name)

    def find_problems(self) -> dict[str, str]:
        """Return what is wrong with each file that there is or ought to be; "" with intact ones."""
        problems: dict[str, str] = {}
        for name in filter(self.has, self.read_manifest().files):
            try:
                self.read(name)
                problems[name] = ""
            except DamagedFileError as problem:
                problems[name] = problem.damage
        return problems

    def read_manifest(self) -> FolderManifest:
        """Return the manifest; raise an InputError if it is not what was written."""
        path = self.path / MANIFEST_FILE
        require(
            self.has_manifest(),
            f"'{path}' is missing: another version of fedtailor wrote this folder, or the file was "
            "removed; use that version, or put the file back.",
        )
        manifest = read_versioned(path, FolderManifest)
        require(manifest.is_intact(), f"'{path}' is not what was written; {RESTORE_REMEDY}")
        return manifest

    def _write_manifest(self, kind: str, files: Files, should_sync_folder: bool = True) -> None:
        content = encode_model(FolderManifest(kind=kind, files=files).seal())
        write_bytes(self.path / MANIFEST_FILE, content, should_sync_folder)

    def _read_content(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None


def read_listed(path: Path, remedy: str) -> bytes:
    """Return the content of a file, verified if its folder has a manifest that lists it.

    Other programs have files of the same name as manifests, too.

    Args:
        path: The file.
        remedy: End of the message about a file that is not what was written.
    """
    folder = ListedFolder(path.parent, remedy)
    try:
        is_listed = path.name in folder.read_manifest().files
    except InputError:
        is_listed = False
    return folder.read(path.name) if is_listed else path.read_bytes()


def compute_digest(content: bytes) -> FileDigest:
    """Return the size and checksum of a file's content."""
    return FileDigest(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
