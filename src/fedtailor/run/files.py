"""Writing files so that a crash, a full disk or a kill leaves either the old file or the new one, never half of one."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedtailor.errors import InputError


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file by new content, all or nothing, on the disk when it returns."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_json(path: Path, content: Any) -> None:
    """Replaces a JSON file."""
    write_bytes(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file, or a sentence."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"'{path}' is damaged: {problem}.") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Writes named tensors as safetensors; returns the content's checksum."""
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or a sentence."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except (SafetensorError, OSError, ValueError) as problem:
        raise InputError(f"'{path}' cannot be read as safetensors: {problem}.") from None


def checksum(path: Path) -> str:
    """The SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def disk_trouble(folder: Path) -> Iterator[None]:
    """Turns a failing write into one sentence."""
    try:
        yield
    except OSError as problem:
        what = problem.strerror or str(problem)
        raise InputError(
            f"'{problem.filename or folder}' could not be written: {what}; what was saved before is whole, so make "
            f"room and go on with: fedtailor resume {folder}"
        ) from problem


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
