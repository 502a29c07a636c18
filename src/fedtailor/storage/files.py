"""JSON, tensors and arrays in files.

JSON and tensors are replaced all or nothing, and a file that cannot be read is an InputError.
Arrays can be larger than RAM, so they are memory-mapped. They are not replaced atomically; write
them into a folder that is.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save
from torch import Tensor

from fedtailor.errors import InputError
from fedtailor.storage.atomic import write_bytes


def write_json(path: Path, content: Any) -> None:
    """Replace a file by JSON of finite numbers, strings, booleans, None, lists and dicts."""
    write_bytes(path, encode_json(content))


def encode_json(content: Any) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(path, read_file(path))


def parse_json(path: Path, json_bytes: bytes) -> Any:
    """Return what the bytes of a JSON file hold; `path` is for messages."""
    try:
        return json.loads(json_bytes)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"'{path}' is damaged: {problem}.") from None


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> str:
    """Write named tensors as safetensors and return the SHA-256 of the file's content."""
    content = encode_tensors(tensors)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def encode_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Return the content of a safetensors file of named tensors."""
    # The format refuses tensors that share memory, so each one is copied.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(copies)


def parse_tensors(path: Path, content: bytes) -> dict[str, Tensor]:
    """Return the tensors that the bytes of a safetensors file hold; `path` is for messages."""
    try:
        return load(content)
    except (SafetensorError, ValueError) as problem:
        raise InputError(f"'{path}' cannot be read as safetensors: {problem}.") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name."""
    try:
        if _is_decodable(path):
            return load_file(path)
        return load(path.read_bytes())  # safetensors opens no path whose bytes are no UTF-8
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}'.") from None
    except (SafetensorError, OSError, ValueError) as problem:
        raise InputError(f"'{path}' cannot be read as safetensors: {problem}.") from None


def _is_decodable(path: Path) -> bool:
    """Return whether the bytes of a path are text in the encoding of the file system."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as .npy, not atomically, and sync it to disk."""
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def map_array(path: Path) -> NDArray[Any]:
    """Return a read-only memory map of an .npy file; a damaged one raises NumPy's errors."""
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
