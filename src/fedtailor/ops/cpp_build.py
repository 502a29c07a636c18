"""Code of this project in C++, compiled for the processor when it is first asked for, and where compiled code is kept.

Where there is no compiler, or it fails, there is no such code, and whoever asks for it does without. What the
system's C library is told is here too.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fedtailor.compat.torch_internals import get_default_cache_dir
from fedtailor.ops.cpu import cpu_signature
from fedtailor.storage.atomic import hidden_path, write_bytes
from fedtailor.storage.locks import hold_lock
from fedtailor.storage.paths import data_dir

INDUCTOR_CACHE_ENV = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that says where torch keeps compiled code."""


_COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)


_LINK_FLAGS = ("-shared", "-fPIC", "-fopenmp")


def compile_cache_dir() -> Path:
    """Where compiled code is kept: beside the data, unless the user has said where."""
    configured = os.environ.get(INDUCTOR_CACHE_ENV)
    if configured == get_default_cache_dir():  # torch says so as soon as its compiler is imported
        configured = None
    return Path(configured) if configured else data_dir() / "compiled"


def hash_parts(parts: Iterable[bytes]) -> str:
    """A name that other parts do not have."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """What a file of C++ comes to; None where it cannot be compiled or loaded."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        return None
    command = compiler, *_COMPILE_FLAGS, *_LINK_FLAGS
    name = hash_parts((source.read_bytes(), repr((command, cpu_signature())).encode()))
    path = compile_cache_dir() / "native" / f"{source.stem}-{name}.so"
    try:
        if not path.exists():
            _compile_library(source, command, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile_library(source: Path, command: tuple[str, ...], path: Path) -> None:
    """Compile into a file that appears when it is whole, unless another process has done so meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(hidden_path(path, "lock"), wait=True), tempfile.TemporaryDirectory() as temp_dir:
        if not path.exists():
            output = Path(temp_dir) / path.name
            subprocess.run(
                [*command, str(source), "-o", str(output)], check=True, capture_output=True
            )
            write_bytes(path, output.read_bytes())
