"""JSON and tensors in files: each is replaced whole, and what cannot be read ends in a sentence."""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedtailor.errors import InputError
from fedtailor.storage.atomic import write_bytes


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
    content = save(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    )
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
