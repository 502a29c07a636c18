"""Writing files so that a crash, a full disk or a kill leaves either the old file or the new one, never half of one."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedtailor.disk import sync_folder
from fedtailor.errors import InputError

_NEW = ".new"


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file by new content, all or nothing, on the disk when it returns."""
    fresh = _beside(path)
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place, all or nothing, when it has been filled; what was there goes."""
    fresh = _beside(path)
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        yield fresh
        shutil.rmtree(path, ignore_errors=True)
        fresh.replace(path)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    sync_folder(path.parent)


@contextmanager
def held(path: Path, sentence: str) -> Iterator[None]:
    """Keeps a file for one process alone, for as long as that lives; another is refused with a sentence."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(sentence) from None
        except OSError:
            pass  # some network disks know no locks, and a run there is better than none
        yield


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
    """Writes named tensors, which may share their numbers, as safetensors; returns the content's checksum."""
    content = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})
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
def disk_trouble(place: Path, remedy: str) -> Iterator[None]:
    """Turns a failing write into one sentence that ends with what to do."""
    try:
        yield
    except OSError as problem:
        what, asked = problem.strerror or str(problem), Path(problem.filename or place)
        if asked.name.endswith(_NEW):
            asked = asked.with_name(asked.name[1 : -len(_NEW)])
        raise InputError(f"'{asked}' could not be written: {what}; {remedy}") from problem


def _beside(path: Path) -> Path:
    """Where something is made that will take the place of a path."""
    return path.with_name(f".{path.name}{_NEW}")
