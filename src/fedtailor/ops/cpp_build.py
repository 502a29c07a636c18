"""Compilation of this project's C++ for the CPU at hand, and the folder of compiled code.

Code is compiled when it is first needed. Without a compiler, or where it fails, there is no
library, and callers use torch or NumPy instead.
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
from fedtailor.ops.cpu import get_cpu_signature
from fedtailor.storage.atomic import hidden_path, write_bytes
from fedtailor.storage.locks import hold_lock
from fedtailor.storage.paths import data_dir

INDUCTOR_CACHE_ENV = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable with the folder of torch's compiled code."""

_COMPILE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)
_LINK_FLAGS = ("-shared", "-fPIC", "-fopenmp")


def get_compile_cache_dir() -> Path:
    """Return the folder of compiled code: beside the data sets, unless the user has set one."""
    configured = os.environ.get(INDUCTOR_CACHE_ENV)
    # Torch sets the variable to its default as soon as its compiler is imported.
    if not configured or configured == get_default_cache_dir():
        return data_dir() / "compiled"
    return Path(configured)


def hash_parts(parts: Iterable[bytes]) -> str:
    """Hash byte strings into a name of 40 hex digits; where one part ends counts too."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


@cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """Return the library compiled from a C++ file, or None if it cannot be compiled or loaded.

    The library is cached on disk by source, compiler, flags and CPU.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not compiler:
        return None
    command = (compiler, *_COMPILE_FLAGS, *_LINK_FLAGS)
    build_settings = repr((command, get_cpu_signature()))
    name = hash_parts((source.read_bytes(), build_settings.encode()))
    path = get_compile_cache_dir() / "native" / f"{source.stem}-{name}.so"
    try:
        if not path.exists():
            _compile_library(source, command, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile_library(source: Path, command: tuple[str, ...], path: Path) -> None:
    """Compile `source` into `path`, which appears when it is complete.

    Nothing is compiled if another process has done so while this one waited for the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(hidden_path(path, "lock"), wait=True), tempfile.TemporaryDirectory() as temp_dir:
        if path.exists():
            return
        output = Path(temp_dir) / path.name
        subprocess.run([*command, str(source), "-o", str(output)], check=True, capture_output=True)
        write_bytes(path, output.read_bytes())
